//! Messages between nodes, and their encoding with Protocol Buffers.
//!
//! The first frame of each side of a connection introduces the node. Each further frame contains one message and the
//! time of its sender. Invalid input returns an error and never panics. A message takes at most a hundred
//! times the memory of its frame.

mod updates;
mod wire;

#[cfg(test)]
mod tests;

use std::time::Duration;

use bytes::Bytes;
use prost::Message as _;
use slidegate::Timestamp;
use thiserror::Error;

use crate::node_info::{MAX_NAME_BYTES, NodeInfo};
use crate::pn_counter::{CounterUpdate, Incarnation};
use crate::transport::MAX_FRAME_BYTES;

pub use updates::FrameBodyBuilder;

/// Maximum number of members in a roster or in a list of members.
pub const MAX_MEMBERS: usize = 200;

/// Maximum size of an update frame without its body, in bytes: the time, the position, and lengths.
const MAX_UPDATE_HEADER_BYTES: usize = 64;

/// Position of a frame in the stream from one node to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// Number of the epoch, a part of the stream that begins with an initial state. The first epoch has number 1; 0
    /// means that no epoch has begun.
    pub epoch: u64,
    /// Number of the frame within the epoch, from 1; 0 before the first frame.
    pub seq: u64,
}

/// A message, and the time of its sender's clock when it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReceivedMessage {
    /// The time of the sender's clock.
    pub sent_at: Timestamp,
    /// The message; `None` if its kind is unknown, because the sender has a later version.
    pub message: Option<Message>,
}

/// A message from one node to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Counter updates.
    Updates(UpdateFrame),
    /// Acknowledgement of received updates.
    Ack(Ack),
    /// The members that the sender knows, including itself.
    Members(Vec<MemberEntry>),
    /// The sender has lost counters, and needs the full state in an epoch after this one.
    FullStateRequest {
        /// The number of the last epoch of which the sender has received frames.
        after_epoch: u64,
    },
}

/// Counter updates in one frame of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateFrame {
    /// Position of the frame in the stream.
    pub position: Position,
    /// Whether this frame is the last frame of the initial state with which an epoch begins.
    pub is_complete: bool,
    /// Whether the initial state of the epoch is the full state, which includes the counters of other incarnations.
    pub is_full: bool,
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
    /// The receiver applies the acknowledgement when all frames up to this position have arrived.
    pub sent: Position,
}

/// The members of a cluster whose acknowledgements are required, as known to one node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Whether the sender is settled: all other members, or voters that are more than half of all members, have
    /// acknowledged its frames.
    pub is_settled: bool,
    /// The members known to the sender, including itself and silent members, and members that left recently.
    pub entries: Vec<RosterEntry>,
}

/// One member of a roster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RosterEntry {
    /// The incarnation of the member.
    pub incarnation: Incarnation,
    /// The name of the member.
    pub name: Box<str>,
    /// Whether the member has left and charges nothing more.
    pub has_left: bool,
}

/// One member of a list of members.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberEntry {
    /// The member.
    pub node: NodeInfo,
    /// The newest heartbeat of the member that has arrived at the sender, directly or through other nodes.
    pub heartbeat: u64,
    /// Whether the member has announced that it leaves.
    pub has_left: bool,
    /// Whether the sender receives messages from the member itself.
    pub is_direct: bool,
    /// The time since this heartbeat arrived at the sender.
    pub silent_for: Duration,
}

/// An error that occurs when a frame is decoded.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum MessageError {
    /// The frame is not a valid message.
    #[error("invalid message: {0}")]
    Encoding(#[from] prost::DecodeError),
    /// The epoch or the frame number of a stream position is zero.
    #[error("invalid stream position")]
    InvalidPosition,
    /// A list of members has an empty or long name, an invalid address, or too many entries.
    #[error("invalid list of members")]
    InvalidMembers,
    /// The bucket length or the number of buckets is out of range, or the columns of updates have different lengths.
    #[error("invalid updates")]
    InvalidUpdates,
}

/// Decodes the message in a frame.
///
/// # Errors
/// Returns an error if the frame is not a valid message.
pub fn decode(frame: Bytes) -> Result<ReceivedMessage, MessageError> {
    let wire::Frame { sent_at_us, kind } = wire::Frame::decode(frame)?;
    let message = kind.map(Message::try_from).transpose()?;
    Ok(ReceivedMessage { sent_at: Timestamp::from_micros(sent_at_us), message })
}

impl TryFrom<wire::MessageKind> for Message {
    type Error = MessageError;

    fn try_from(kind: wire::MessageKind) -> Result<Self, MessageError> {
        Ok(match kind {
            wire::MessageKind::Updates(wire::Updates { position, body }) => {
                let wire::UpdatesBody { is_complete, is_full, roster, groups } =
                    wire::UpdatesBody::decode(body)?;
                Self::Updates(UpdateFrame {
                    position: position.try_into()?,
                    is_complete,
                    is_full,
                    roster: roster.map(Roster::try_from).transpose()?,
                    updates: updates::decode_update_groups(groups)?,
                })
            }
            wire::MessageKind::Ack(wire::Ack { received, sent }) => {
                Self::Ack(Ack { received: received.try_into()?, sent: sent.try_into()? })
            }
            wire::MessageKind::FullStateRequest(wire::FullStateRequest { after_epoch }) => {
                Self::FullStateRequest { after_epoch }
            }
            wire::MessageKind::Members(wire::Members { entries }) => {
                check_member_count(entries.len())?;
                let entries = entries.into_iter().map(MemberEntry::try_from);
                Self::Members(entries.collect::<Result<_, _>>()?)
            }
        })
    }
}

fn check_member_count(count: usize) -> Result<(), MessageError> {
    if count > MAX_MEMBERS { Err(MessageError::InvalidMembers) } else { Ok(()) }
}

fn check_name(name: &str) -> Result<(), MessageError> {
    if (1..=MAX_NAME_BYTES).contains(&name.len()) {
        Ok(())
    } else {
        Err(MessageError::InvalidMembers)
    }
}

impl TryFrom<wire::Position> for Position {
    type Error = MessageError;

    fn try_from(wire::Position { epoch, seq }: wire::Position) -> Result<Self, MessageError> {
        if epoch == 0 || seq == 0 {
            return Err(MessageError::InvalidPosition);
        }
        Ok(Self { epoch, seq })
    }
}

impl From<Position> for wire::Position {
    fn from(Position { epoch, seq }: Position) -> Self {
        Self { epoch, seq }
    }
}

impl TryFrom<wire::Roster> for Roster {
    type Error = MessageError;

    fn try_from(roster: wire::Roster) -> Result<Self, MessageError> {
        check_member_count(roster.entries.len())?;
        let entry = |wire::RosterEntry { incarnation, name, has_left }| {
            check_name(&name)?;
            Ok(RosterEntry { incarnation: Incarnation(incarnation), name: name.into(), has_left })
        };
        let entries = roster.entries.into_iter().map(entry).collect::<Result<_, MessageError>>()?;
        Ok(Self { is_settled: roster.is_settled, entries })
    }
}

impl From<&Roster> for wire::Roster {
    /// Entries after the first [`MAX_MEMBERS`] are dropped.
    fn from(roster: &Roster) -> Self {
        let entries = roster.entries.iter().take(MAX_MEMBERS).map(|entry| wire::RosterEntry {
            incarnation: entry.incarnation.0,
            name: entry.name.to_string(),
            has_left: entry.has_left,
        });
        Self { is_settled: roster.is_settled, entries: entries.collect() }
    }
}

impl TryFrom<wire::Member> for MemberEntry {
    type Error = MessageError;

    fn try_from(member: wire::Member) -> Result<Self, MessageError> {
        let wire::Member { node, heartbeat, has_left, is_direct, silent_for_ms } = member;
        let silent_for = Duration::from_millis(silent_for_ms);
        Ok(Self { node: node.try_into()?, heartbeat, has_left, is_direct, silent_for })
    }
}

impl TryFrom<wire::Node> for NodeInfo {
    type Error = MessageError;

    fn try_from(
        wire::Node { incarnation, name, address }: wire::Node,
    ) -> Result<Self, MessageError> {
        check_name(&name)?;
        let address = match address.as_str() {
            "" => None,
            address => Some(address.parse().map_err(|_| MessageError::InvalidMembers)?),
        };
        Ok(Self { incarnation: Incarnation(incarnation), name: name.into(), address })
    }
}

impl From<&NodeInfo> for wire::Node {
    fn from(NodeInfo { incarnation, name, address }: &NodeInfo) -> Self {
        let address = address.map(|address| address.to_string()).unwrap_or_default();
        Self { incarnation: incarnation.0, name: name.to_string(), address }
    }
}

/// Encodes the first frame of a connection, which introduces a node.
pub fn hello_frame(node: &NodeInfo) -> Bytes {
    wire::Node::from(node).encode_to_vec().into()
}

/// Decodes the first frame of a connection.
///
/// # Errors
/// Returns an error if the frame does not introduce a node.
pub fn decode_hello(frame: Bytes) -> Result<NodeInfo, MessageError> {
    wire::Node::decode(frame)?.try_into()
}

/// Encodes an acknowledgement as a frame.
pub fn ack_frame(ack: &Ack, now: Timestamp) -> Bytes {
    let (received, sent) = (ack.received.into(), ack.sent.into());
    encode(wire::MessageKind::Ack(wire::Ack { received, sent }), now)
}

/// Encodes a request of the full state as a frame.
pub fn full_state_request_frame(after_epoch: u64, now: Timestamp) -> Bytes {
    encode(wire::MessageKind::FullStateRequest(wire::FullStateRequest { after_epoch }), now)
}

/// Encodes a list of members as a frame. Entries after the first [`MAX_MEMBERS`] are dropped.
pub fn members_frame(entries: &[MemberEntry], now: Timestamp) -> Bytes {
    let entries = entries.iter().take(MAX_MEMBERS).map(|entry| wire::Member {
        node: (&entry.node).into(),
        heartbeat: entry.heartbeat,
        has_left: entry.has_left,
        is_direct: entry.is_direct,
        silent_for_ms: u64::try_from(entry.silent_for.as_millis()).unwrap_or(u64::MAX),
    });
    encode(wire::MessageKind::Members(wire::Members { entries: entries.collect() }), now)
}

fn encode(kind: wire::MessageKind, now: Timestamp) -> Bytes {
    wire::Frame { sent_at_us: now.as_micros(), kind: Some(kind) }.encode_to_vec().into()
}

/// Content of an update frame without its stream position. The content is identical for every recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FrameBody(Bytes);

impl FrameBody {
    /// Encodes updates, and splits them into as many frame bodies as necessary. Each body fits into one frame.
    pub fn from_updates(updates: &[CounterUpdate]) -> Vec<Self> {
        let mut bodies = FrameBodyBuilder::default();
        updates.iter().for_each(|update| bodies.push(update));
        bodies.finish()
    }

    /// Encodes a changed roster without updates.
    pub fn from_roster(roster: &Roster) -> Self {
        let roster = Some(roster.into());
        Self::from_wire(&wire::UpdatesBody { roster, ..wire::UpdatesBody::default() })
    }

    /// Encodes the end of the initial state of an epoch, with the roster. `is_full` is `true` if it was the full state.
    pub fn end_of_initial_state(roster: &Roster, is_full: bool) -> Self {
        let (is_complete, roster) = (true, Some(roster.into()));
        Self::from_wire(&wire::UpdatesBody { is_complete, is_full, roster, groups: Vec::new() })
    }

    fn from_wire(body: &wire::UpdatesBody) -> Self {
        Self(body.encode_to_vec().into())
    }

    /// Returns the maximum size of a frame with this body, in bytes.
    pub fn max_frame_bytes(&self) -> usize {
        MAX_UPDATE_HEADER_BYTES + self.0.len()
    }

    /// Returns the complete frame that carries this body at a position of a stream.
    pub fn to_frame(&self, position: Position, now: Timestamp) -> Bytes {
        let updates = wire::Updates { position: position.into(), body: self.0.clone() };
        let frame = encode(wire::MessageKind::Updates(updates), now);
        debug_assert!(frame.len() <= MAX_FRAME_BYTES, "{} bytes", frame.len());
        frame
    }
}
