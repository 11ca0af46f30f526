//! The messages as Protocol Buffers. Fields and kinds of messages may be added, because other versions skip unknown
//! ones. The number of a removed field must never be used again.

use bytes::Bytes;
use prost::{Message, Oneof};

/// The content of each frame after the first.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Frame {
    /// The time of the sender's clock, in microseconds since the Unix epoch.
    #[prost(uint64, tag = "1")]
    pub sent_at_us: u64,
    #[prost(oneof = "MessageKind", tags = "2, 3, 4, 5")]
    pub kind: Option<MessageKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum MessageKind {
    #[prost(message, tag = "2")]
    Updates(Updates),
    #[prost(message, tag = "3")]
    Ack(Ack),
    #[prost(message, tag = "4")]
    Members(Members),
    #[prost(message, tag = "5")]
    FullStateRequest(FullStateRequest),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Position {
    #[prost(uint64, tag = "1")]
    pub epoch: u64,
    #[prost(uint64, tag = "2")]
    pub seq: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Updates {
    #[prost(message, required, tag = "1")]
    pub position: Position,
    /// An encoded [`UpdatesBody`]. It is encoded once for all recipients.
    #[prost(bytes = "bytes", tag = "2")]
    pub body: Bytes,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct UpdatesBody {
    #[prost(bool, tag = "1")]
    pub is_complete: bool,
    #[prost(message, optional, tag = "2")]
    pub roster: Option<Roster>,
    #[prost(message, repeated, tag = "3")]
    pub groups: Vec<UpdateGroup>,
    #[prost(bool, tag = "4")]
    pub is_full: bool,
}

/// Updates with the same bucket layout and the same incarnation, as columns: each of `keys`, `bucket_offsets` and
/// `charged` has one value for each update. A changed key thus takes 8 bytes and two small integers.
#[derive(Clone, PartialEq, Message)]
pub(super) struct UpdateGroup {
    #[prost(uint64, tag = "1")]
    pub bucket_us: u64,
    #[prost(uint32, tag = "2")]
    pub buckets: u32,
    #[prost(uint64, tag = "3")]
    pub mean_excess_us: u64,
    #[prost(fixed64, tag = "4")]
    pub incarnation: u64,
    #[prost(uint64, tag = "5")]
    pub first_bucket: u64,
    #[prost(fixed64, repeated, tag = "6")]
    pub keys: Vec<u64>,
    /// For each update, the distance of its bucket from `first_bucket`.
    #[prost(sint64, repeated, tag = "7")]
    pub bucket_offsets: Vec<i64>,
    #[prost(uint64, repeated, tag = "8")]
    pub charged_units: Vec<u64>,
    /// For each update, the number of removed units. Empty if no update has removed units.
    #[prost(uint64, repeated, tag = "9")]
    pub removed_units: Vec<u64>,
    #[prost(uint32, tag = "10")]
    pub epoch_offset_in_first_period_s: u32,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Roster {
    #[prost(bool, tag = "1")]
    pub is_settled: bool,
    #[prost(message, repeated, tag = "2")]
    pub entries: Vec<RosterEntry>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RosterEntry {
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(bool, tag = "3")]
    pub has_left: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Ack {
    #[prost(message, required, tag = "1")]
    pub received: Position,
    #[prost(message, required, tag = "2")]
    pub sent: Position,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct FullStateRequest {
    #[prost(uint64, tag = "1")]
    pub after_epoch: u64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Members {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Member>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Member {
    #[prost(message, required, tag = "1")]
    pub node: Node,
    #[prost(uint64, tag = "2")]
    pub heartbeat: u64,
    #[prost(bool, tag = "3")]
    pub has_left: bool,
    #[prost(bool, tag = "4")]
    pub is_direct: bool,
    #[prost(uint64, tag = "5")]
    pub silent_for_ms: u64,
}

/// A node, also the content of the first frame of each side of a connection.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Node {
    #[prost(fixed64, tag = "1")]
    pub incarnation: u64,
    #[prost(string, tag = "2")]
    pub name: String,
    /// The IP address and port, as text; empty if unknown.
    #[prost(string, tag = "3")]
    pub address: String,
}
