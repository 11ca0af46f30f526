//! Wire format of the messages between nodes.
//!
//! A frame contains one message: a version, a byte with the message kind and flags, and the fields, mostly
//! variable-length integers. Decoding is strict. A frame may contain no unused bytes. A length in a frame is compared
//! with the size of the frame before memory is allocated for it. Invalid input returns an error and never panics.

mod roster;
mod updates;
mod varint;

#[cfg(test)]
mod tests;

use thiserror::Error;

use crate::pn_counter::CounterUpdate;

pub use roster::{MAX_ROSTER_ENTRIES, Roster, RosterEntry};

use updates::UpdateEncoder;
use varint::{ByteReader, MAX_VARINT_BYTES, write_varint};

/// Version of the message format. A node drops messages of other versions.
pub const VERSION: u8 = 1;

/// Maximum size of a frame, in bytes.
pub const MAX_MESSAGE_BYTES: usize = 64 * 1024;

/// Maximum size of the header of an update frame, in bytes: version, kind, and the two integers of the position. The
/// roster and the updates follow the header.
const MAX_UPDATE_FRAME_HEADER_BYTES: usize = 2 + 2 * MAX_VARINT_BYTES;

/// The lowest two bits of the second byte of a frame are the message kind; the next two bits are flags.
const MESSAGE_KIND_UPDATES: u8 = 0;
const MESSAGE_KIND_ACK: u8 = 1;
const MESSAGE_KIND_LEAVING: u8 = 2;
const MESSAGE_KIND_MASK: u8 = 0b11;
const MESSAGE_FLAG_INITIAL_STATE_COMPLETE: u8 = 0b100;
const MESSAGE_FLAG_HAS_ROSTER: u8 = 0b1000;

/// Position of a frame in the stream from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the epoch, a part of the stream that begins with an initial state. The first epoch has number 1; 0
    /// means that no epoch has begun.
    pub epoch: u64,
    /// Number of the frame within the epoch, from 1; 0 before the first frame.
    pub seq: u64,
}

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Counter updates.
    Updates(UpdateFrame),
    /// Acknowledgement of received updates.
    Ack(Ack),
    /// The sender leaves the cluster and charges nothing more.
    Leaving,
}

/// Counter updates in one frame of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateFrame {
    /// Position of the frame in the stream.
    pub position: Position,
    /// Whether this frame is the last frame of the initial state with which an epoch begins.
    pub is_complete: bool,
    /// Members of the cluster, as known to the sender; `None` if the frame contains no roster.
    pub roster: Option<Roster>,
    /// The counter updates.
    pub updates: Vec<CounterUpdate>,
}

/// An acknowledgement that all frames of a stream up to a position have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ack {
    /// The position of the last frame that has arrived together with all earlier frames of its epoch.
    pub received: Position,
    /// The position that the acknowledging node had reached in its own stream to the receiver of this acknowledgement.
    pub sent: Position,
}

/// An error that occurs when a frame is decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The frame is longer than [`MAX_MESSAGE_BYTES`].
    #[error("frame of {0} bytes is longer than the maximum of {MAX_MESSAGE_BYTES}")]
    TooLong(usize),
    /// The version is not [`VERSION`].
    #[error("message version {0} is not supported")]
    UnsupportedVersion(u8),
    /// The message kind is unknown.
    #[error("unknown message kind {0:#04x}")]
    UnknownKind(u8),
    /// The frame ends inside a field.
    #[error("frame ends too early")]
    Truncated,
    /// Bytes follow the end of the message.
    #[error("{0} bytes after the end of the message")]
    TrailingBytes(usize),
    /// A variable-length integer is not in its canonical (shortest) form.
    #[error("invalid integer encoding")]
    InvalidNumber,
    /// The epoch or the frame number of a stream position is zero.
    #[error("invalid stream position")]
    InvalidPosition,
    /// The roster contains an invalid name or flag, or too many entries.
    #[error("invalid roster")]
    InvalidRoster,
    /// The bucket length or the number of buckets is out of range.
    #[error("invalid bucket length or number of buckets")]
    InvalidShape,
    /// An update refers to a group (bucket layout and incarnation) that the frame does not contain.
    #[error("update of an unknown group")]
    UnknownGroup,
    /// The first update of the frame has no key. Only later updates may omit the key, to repeat the previous key.
    #[error("first update has no key")]
    MissingKey,
}

/// Decodes the message in a frame.
///
/// # Errors
///
/// Returns the first error if the frame is not exactly one message of this version.
pub fn decode(frame: &[u8]) -> Result<Message, MessageError> {
    if frame.len() > MAX_MESSAGE_BYTES {
        return Err(MessageError::TooLong(frame.len()));
    }
    let mut reader = ByteReader::new(frame);
    match reader.read_byte()? {
        VERSION => {}
        version => return Err(MessageError::UnsupportedVersion(version)),
    }
    let kind = reader.read_byte()?;
    let message = match kind & MESSAGE_KIND_MASK {
        MESSAGE_KIND_UPDATES
            if kind
                & !(MESSAGE_KIND_MASK
                    | MESSAGE_FLAG_INITIAL_STATE_COMPLETE
                    | MESSAGE_FLAG_HAS_ROSTER)
                == 0 =>
        {
            decode_updates(kind, &mut reader)?
        }
        MESSAGE_KIND_ACK if kind == MESSAGE_KIND_ACK => decode_ack(&mut reader)?,
        MESSAGE_KIND_LEAVING if kind == MESSAGE_KIND_LEAVING => Message::Leaving,
        _ => return Err(MessageError::UnknownKind(kind)),
    };
    match reader.remaining() {
        0 => Ok(message),
        remaining => Err(MessageError::TrailingBytes(remaining)),
    }
}

fn decode_updates(kind: u8, reader: &mut ByteReader<'_>) -> Result<Message, MessageError> {
    let position = decode_stream_position(reader)?;
    let roster = match kind & MESSAGE_FLAG_HAS_ROSTER {
        0 => None,
        _ => Some(Roster::decode(reader)?),
    };
    let updates = updates::decode(reader)?;
    Ok(Message::Updates(UpdateFrame {
        position,
        is_complete: kind & MESSAGE_FLAG_INITIAL_STATE_COMPLETE != 0,
        roster,
        updates,
    }))
}

fn decode_ack(reader: &mut ByteReader<'_>) -> Result<Message, MessageError> {
    Ok(Message::Ack(Ack {
        received: decode_stream_position(reader)?,
        sent: decode_stream_position(reader)?,
    }))
}

fn decode_stream_position(reader: &mut ByteReader<'_>) -> Result<Position, MessageError> {
    let position = Position { epoch: reader.read_varint()?, seq: reader.read_varint()? };
    match position {
        Position { epoch: 0, .. } | Position { seq: 0, .. } => Err(MessageError::InvalidPosition),
        position => Ok(position),
    }
}

/// Encodes an acknowledgement as a frame.
pub fn ack_frame(ack: &Ack) -> Vec<u8> {
    let mut frame = vec![VERSION, MESSAGE_KIND_ACK];
    [ack.received, ack.sent].iter().for_each(|place| write_stream_position(&mut frame, *place));
    frame
}

/// Returns the frame with which a node announces that it leaves the cluster.
pub fn leaving_frame() -> Vec<u8> {
    vec![VERSION, MESSAGE_KIND_LEAVING]
}

fn write_stream_position(frame: &mut Vec<u8>, position: Position) {
    write_varint(frame, position.epoch);
    write_varint(frame, position.seq);
}

/// Content of an update frame without its stream position. The content is identical for every recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBody {
    flags: u8,
    bytes: Box<[u8]>,
}

impl FrameBody {
    /// Encodes updates in the given order, and splits them into as many frame bodies as necessary. Each body fits into
    /// one frame.
    pub fn from_updates(updates: &[CounterUpdate]) -> Vec<Self> {
        let mut bodies = FrameBodyBuilder::default();
        updates.iter().for_each(|update| bodies.push(update));
        bodies.finish()
    }

    /// Encodes a roster without updates. If `is_complete` is `true`, the frame marks the end of the initial state of an
    /// epoch.
    pub fn from_roster(roster: &Roster, is_complete: bool) -> Self {
        let mut bytes = Vec::new();
        roster.encode(&mut bytes);
        bytes.extend_from_slice(&UpdateEncoder::default().take_bytes());
        let flags = MESSAGE_FLAG_HAS_ROSTER
            | if is_complete { MESSAGE_FLAG_INITIAL_STATE_COMPLETE } else { 0 };
        Self { flags, bytes: bytes.into() }
    }

    /// Returns the maximum size of a frame with this body, in bytes.
    pub fn max_frame_bytes(&self) -> usize {
        MAX_UPDATE_FRAME_HEADER_BYTES + self.bytes.len()
    }

    /// Returns the complete frame that carries this body at a position of a stream.
    pub fn to_frame(&self, position: Position) -> Vec<u8> {
        let mut frame = Vec::with_capacity(self.max_frame_bytes());
        frame.extend_from_slice(&[VERSION, MESSAGE_KIND_UPDATES | self.flags]);
        write_stream_position(&mut frame, position);
        frame.extend_from_slice(&self.bytes);
        frame
    }
}

/// A builder that packs counter updates into frame bodies.
#[derive(Debug, Default)]
pub struct FrameBodyBuilder {
    finished: Vec<FrameBody>,
    encoder: UpdateEncoder,
}

impl FrameBodyBuilder {
    /// Adds an update to the current frame body. Begins a new body first if the current one is full.
    pub fn push(&mut self, update: &CounterUpdate) {
        if !self.encoder.has_capacity_for_update(MAX_MESSAGE_BYTES - MAX_UPDATE_FRAME_HEADER_BYTES)
        {
            self.finish_current_frame_body();
        }
        self.encoder.push(update);
    }

    fn finish_current_frame_body(&mut self) {
        self.finished.push(FrameBody { flags: 0, bytes: self.encoder.take_bytes().into() });
    }

    /// Returns all frame bodies. The list is empty if no update was added.
    pub fn finish(mut self) -> Vec<FrameBody> {
        if !self.encoder.is_empty() {
            self.finish_current_frame_body();
        }
        self.finished
    }
}
