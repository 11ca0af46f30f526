//! What nodes say to each other, as bytes.
//!
//! A frame is one message: a version, a byte that says which message it is and what it has, and its parts, most of
//! them numbers in as few bytes as they need. What comes in is read strictly: every byte has its meaning, nothing is
//! allocated because a number says so, and what is wrong is an error and never a panic.

mod roster;
mod updates;
mod varint;

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::pn_counter::CounterUpdate;

pub use roster::{MAX_ROSTER_ENTRIES, Roster, RosterEntry};

use updates::UpdateEncoder;
use varint::{MAX_VARINT_BYTES, Reader, write_varint};

/// The version of the messages. A node drops those of another.
pub const VERSION: u8 = 1;

/// No frame has more bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Bytes before the tallies, without a roster: a version, a kind, and two numbers.
const MAX_HEADER_BYTES: usize = 2 + 2 * MAX_VARINT_BYTES;

const KIND_UPDATES: u8 = 0;
const KIND_ACK: u8 = 1;
const KIND_LEAVING: u8 = 2;
const KIND_MASK: u8 = 0b11;
const FLAG_COMPLETE: u8 = 0b100;
const FLAG_ROSTER: u8 = 0b1000;

/// A place in the stream of frames from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// How often the stream was begun; 0: not yet.
    pub epoch: u64,
    /// The frame within the epoch, from 1; 0: none yet.
    pub seq: u64,
}

/// Something that a node says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// What has been counted.
    Updates(UpdateFrame),
    /// How much of that has arrived.
    Ack(Ack),
    /// That the node counts no more.
    Leaving,
}

/// Tallies, as one frame of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateFrame {
    /// Its place in the stream.
    pub position: Position,
    /// Whether with it all has been told that was to be told at the beginning of the epoch.
    pub is_complete: bool,
    /// Who is there, as the sender knows it.
    pub roster: Option<Roster>,
    /// The tallies.
    pub updates: Vec<CounterUpdate>,
}

/// That the frames of a stream up to some place have arrived without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Up to here.
    pub received: Position,
    /// How far the acknowledging node's own stream to the one that it tells had come when it said so.
    pub sent: Position,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// More than [`MAX_MESSAGE_BYTES`].
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    /// Not [`VERSION`].
    #[error("version {0} of the messages is not known here")]
    UnsupportedVersion(u8),
    /// No message that is known.
    #[error("message {0:#04x} is not known")]
    UnknownKind(u8),
    /// It ends before it is whole.
    #[error("the frame ends too early")]
    Truncated,
    /// Bytes that nothing asks for.
    #[error("{0} bytes are left over")]
    TrailingBytes(usize),
    /// A number that is not in its one form.
    #[error("a number is not written as it should be")]
    InvalidNumber,
    /// A place in a stream that cannot be.
    #[error("no frame of a stream has this place")]
    InvalidPosition,
    /// A name that is no text, or a list that is too long.
    #[error("the list of members is not one")]
    InvalidRoster,
    /// A counter that divides time as none does.
    #[error("no counter divides time like this")]
    InvalidShape,
    /// A line of a slot that is not there.
    #[error("a tally is of a slot that is not there")]
    UnknownGroup,
    /// A first line without a key.
    #[error("a tally has no key")]
    MissingKey,
}

/// Reads a frame.
///
/// # Errors
///
/// What is wrong first, if it is not exactly one message of this version.
pub fn decode(frame: &[u8]) -> Result<Message, MessageError> {
    if frame.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::TooLong(frame.len()));
    }
    let mut reader = Reader::new(frame);
    match reader.byte()? {
        VERSION => {}
        version => return Err(MessageError::UnsupportedVersion(version)),
    }
    let kind = reader.byte()?;
    let message = match kind & KIND_MASK {
        KIND_UPDATES if kind & !(KIND_MASK | FLAG_COMPLETE | FLAG_ROSTER) == 0 => {
            decode_updates(kind, &mut reader)?
        }
        KIND_ACK if kind == KIND_ACK => decode_ack(&mut reader)?,
        KIND_LEAVING if kind == KIND_LEAVING => Message::Leaving,
        _ => return Err(MessageError::UnknownKind(kind)),
    };
    match reader.remaining() {
        0 => Ok(message),
        remaining => Err(MessageError::TrailingBytes(remaining)),
    }
}

fn decode_updates(kind: u8, reader: &mut Reader<'_>) -> Result<Message, MessageError> {
    let position = decode_position(reader)?;
    let roster = match kind & FLAG_ROSTER {
        0 => None,
        _ => Some(Roster::read(reader)?),
    };
    let updates = updates::read(reader)?;
    Ok(Message::Updates(UpdateFrame {
        position,
        is_complete: kind & FLAG_COMPLETE != 0,
        roster,
        updates,
    }))
}

fn decode_ack(reader: &mut Reader<'_>) -> Result<Message, MessageError> {
    Ok(Message::Ack(Ack { received: decode_position(reader)?, sent: decode_position(reader)? }))
}

fn decode_position(reader: &mut Reader<'_>) -> Result<Position, MessageError> {
    let position = Position { epoch: reader.varint()?, seq: reader.varint()? };
    match position {
        Position { epoch: 0, .. } | Position { seq: 0, .. } => Err(MessageError::InvalidPosition),
        position => Ok(position),
    }
}

/// The frame of an acknowledgement.
pub fn ack_frame(ack: &Ack) -> Vec<u8> {
    let mut frame = vec![VERSION, KIND_ACK];
    [ack.received, ack.sent].iter().for_each(|place| write_position(&mut frame, *place));
    frame
}

/// The frame of a node that leaves.
pub fn leaving_frame() -> Vec<u8> {
    vec![VERSION, KIND_LEAVING]
}

fn write_position(frame: &mut Vec<u8>, position: Position) {
    write_varint(frame, position.epoch);
    write_varint(frame, position.seq);
}

/// What a frame of counts holds but for its place: the same for every peer that it is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBody {
    flags: u8,
    bytes: Box<[u8]>,
}

impl FrameBody {
    /// Bodies for all of these tallies, in their order. None is longer than fits into a frame.
    pub fn from_updates(updates: &[CounterUpdate]) -> Vec<Self> {
        let mut bodies = FrameBodyBuilder::default();
        updates.iter().for_each(|update| bodies.push(update));
        bodies.finish()
    }

    /// A body that tells who is there and no tallies; it may complete what was to be told at the beginning.
    pub fn from_roster(roster: &Roster, is_complete: bool) -> Self {
        let mut bytes = Vec::new();
        roster.write_varint(&mut bytes);
        bytes.extend_from_slice(&UpdateEncoder::default().take());
        let flags = FLAG_ROSTER | if is_complete { FLAG_COMPLETE } else { 0 };
        Self { flags, bytes: bytes.into() }
    }

    /// Bytes of its frame, at most.
    pub fn frame_bytes(&self) -> usize {
        MAX_HEADER_BYTES + self.bytes.len()
    }

    /// Its frame at a place in a stream.
    pub fn to_frame(&self, position: Position) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.frame_bytes());
        frame.extend_from_slice(&[VERSION, KIND_UPDATES | self.flags]);
        write_position(&mut frame, position);
        frame.extend_from_slice(&self.bytes);
        frame
    }
}

/// Makes bodies of tallies that come one by one.
#[derive(Debug, Default)]
pub struct FrameBodyBuilder {
    full: Vec<FrameBody>,
    lines: UpdateEncoder,
}

impl FrameBodyBuilder {
    /// Adds a tally.
    pub fn push(&mut self, update: &CounterUpdate) {
        if !self.lines.has_capacity(MAX_MESSAGE_BYTES - MAX_HEADER_BYTES) {
            self.close();
        }
        self.lines.push(update);
    }

    fn close(&mut self) {
        self.full.push(FrameBody { flags: 0, bytes: self.lines.take().into() });
    }

    /// All bodies. There is none if there was no tally.
    pub fn finish(mut self) -> Vec<FrameBody> {
        if !self.lines.is_empty() {
            self.close();
        }
        self.full
    }
}
