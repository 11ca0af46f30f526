//! What nodes say to each other, as bytes.
//!
//! A frame is one message: a version, a byte that says which message it is and what it has, and its parts, most of
//! them numbers in as few bytes as they need. What comes in is read strictly: every byte has its meaning, nothing is
//! allocated because a number says so, and what is wrong is an error and never a panic.

mod roster;
mod tallies;
mod varint;

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::counts::Told;

pub use roster::{Listed, MAX_LISTED, Roster};

use tallies::Lines;
use varint::{LONGEST, Reader, put};

/// The version of the messages. A node drops those of another.
pub const VERSION: u8 = 1;

/// No frame has more bytes.
pub const MAX_BYTES: usize = 64 * 1024;

/// Bytes before the tallies, without a roster: a version, a kind, and two numbers.
const HEADER: usize = 2 + 2 * LONGEST;

const COUNTS: u8 = 0;
const ACK: u8 = 1;
const LEAVING: u8 = 2;
const KIND: u8 = 0b11;
const COMPLETE: u8 = 0b100;
const ROSTER: u8 = 0b1000;

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
    Counts(Counts),
    /// How much of that has arrived.
    Ack(Ack),
    /// That the node counts no more.
    Leaving,
}

/// Tallies, as one frame of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Its place in the stream.
    pub at: Position,
    /// Whether with it all has been told that was to be told at the beginning of the epoch.
    pub is_complete: bool,
    /// Who is there, as the sender knows it.
    pub roster: Option<Roster>,
    /// The tallies.
    pub tallies: Vec<Told>,
}

/// That the frames of a stream up to some place have arrived without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// Up to here.
    pub heard: Position,
    /// How far the acknowledging node's own stream to the one that it tells had come when it said so.
    pub sent: Position,
}

/// Why bytes are no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// More than [`MAX_BYTES`].
    #[error("a frame of {0} bytes is too long")]
    TooLong(usize),
    /// Not [`VERSION`].
    #[error("version {0} of the messages is not known here")]
    Version(u8),
    /// No message that is known.
    #[error("message {0:#04x} is not known")]
    Kind(u8),
    /// It ends before it is whole.
    #[error("the frame ends too early")]
    Truncated,
    /// Bytes that nothing asks for.
    #[error("{0} bytes are left over")]
    LeftOver(usize),
    /// A number that is not in its one form.
    #[error("a number is not written as it should be")]
    Number,
    /// A place in a stream that cannot be.
    #[error("no frame of a stream has this place")]
    Position,
    /// A name that is no text, or a list that is too long.
    #[error("the list of members is not one")]
    Roster,
    /// A counter that divides time as none does.
    #[error("no counter divides time like this")]
    BucketLayout,
    /// A line of a slot that is not there.
    #[error("a tally is of a slot that is not there")]
    Slot,
    /// A first line without a key.
    #[error("a tally has no key")]
    Key,
}

/// Reads a frame.
///
/// # Errors
///
/// What is wrong first, if it is not exactly one message of this version.
pub fn decode(frame: &[u8]) -> Result<Message, MessageError> {
    if frame.len() > MAX_BYTES {
        return Err(MessageError::TooLong(frame.len()));
    }
    let mut reader = Reader::new(frame);
    match reader.byte()? {
        VERSION => {}
        version => return Err(MessageError::Version(version)),
    }
    let kind = reader.byte()?;
    let message = match kind & KIND {
        COUNTS if kind & !(KIND | COMPLETE | ROSTER) == 0 => read_counts(kind, &mut reader)?,
        ACK if kind == ACK => read_ack(&mut reader)?,
        LEAVING if kind == LEAVING => Message::Leaving,
        _ => return Err(MessageError::Kind(kind)),
    };
    match reader.left() {
        0 => Ok(message),
        left => Err(MessageError::LeftOver(left)),
    }
}

fn read_counts(kind: u8, reader: &mut Reader<'_>) -> Result<Message, MessageError> {
    let at = read_position(reader)?;
    let roster = match kind & ROSTER {
        0 => None,
        _ => Some(Roster::read(reader)?),
    };
    let tallies = tallies::read(reader)?;
    Ok(Message::Counts(Counts { at, is_complete: kind & COMPLETE != 0, roster, tallies }))
}

fn read_ack(reader: &mut Reader<'_>) -> Result<Message, MessageError> {
    Ok(Message::Ack(Ack { heard: read_position(reader)?, sent: read_position(reader)? }))
}

fn read_position(reader: &mut Reader<'_>) -> Result<Position, MessageError> {
    let position = Position { epoch: reader.number()?, seq: reader.number()? };
    match position {
        Position { epoch: 0, .. } | Position { seq: 0, .. } => Err(MessageError::Position),
        position => Ok(position),
    }
}

/// The frame of an acknowledgement.
pub fn ack_frame(ack: &Ack) -> Vec<u8> {
    let mut frame = vec![VERSION, ACK];
    [ack.heard, ack.sent].iter().for_each(|place| put_position(&mut frame, *place));
    frame
}

/// The frame of a node that leaves.
pub fn leaving_frame() -> Vec<u8> {
    vec![VERSION, LEAVING]
}

fn put_position(frame: &mut Vec<u8>, position: Position) {
    put(frame, position.epoch);
    put(frame, position.seq);
}

/// What a frame of counts holds but for its place: the same for every peer that it is sent to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Body {
    flags: u8,
    bytes: Box<[u8]>,
}

impl Body {
    /// Bodies for all of these tallies, in their order. None is longer than fits into a frame.
    pub fn of(tallies: &[Told]) -> Vec<Self> {
        let mut bodies = Bodies::default();
        tallies.iter().for_each(|told| bodies.push(told));
        bodies.end()
    }

    /// A body that tells who is there and no tallies; it may complete what was to be told at the beginning.
    pub fn of_roster(roster: &Roster, is_complete: bool) -> Self {
        let mut bytes = Vec::new();
        roster.put(&mut bytes);
        bytes.extend_from_slice(&Lines::default().take());
        let flags = ROSTER | if is_complete { COMPLETE } else { 0 };
        Self { flags, bytes: bytes.into() }
    }

    /// Bytes of its frame, at most.
    pub fn frame_bytes(&self) -> usize {
        HEADER + self.bytes.len()
    }

    /// Its frame at a place in a stream.
    pub fn frame(&self, at: Position) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.frame_bytes());
        frame.extend_from_slice(&[VERSION, COUNTS | self.flags]);
        put_position(&mut frame, at);
        frame.extend_from_slice(&self.bytes);
        frame
    }
}

/// Makes bodies of tallies that come one by one.
#[derive(Debug, Default)]
pub struct Bodies {
    full: Vec<Body>,
    lines: Lines,
}

impl Bodies {
    /// Adds a tally.
    pub fn push(&mut self, told: &Told) {
        if !self.lines.has_room(MAX_BYTES - HEADER) {
            self.close();
        }
        self.lines.push(told);
    }

    fn close(&mut self) {
        self.full.push(Body { flags: 0, bytes: self.lines.take().into() });
    }

    /// All bodies. There is none if there was no tally.
    pub fn end(mut self) -> Vec<Body> {
        if !self.lines.is_empty() {
            self.close();
        }
        self.full
    }
}
