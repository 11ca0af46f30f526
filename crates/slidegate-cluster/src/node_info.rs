//! The identity of a node.

use std::net::SocketAddr;
use std::sync::Arc;

use crate::pn_counter::Incarnation;

/// Maximum length of the name of a node, in bytes.
pub const MAX_NAME_BYTES: usize = 128;

/// A node, as known to other nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// The incarnation of the node. Of two incarnations with the same name, the larger one is newer.
    pub incarnation: Incarnation,
    /// The unique name of the node, which it keeps after a restart.
    pub name: Arc<str>,
    /// The address on which the node listens, if known.
    pub address: Option<SocketAddr>,
}

/// Returns the incarnation of a node: its generation, followed by 12 bits of SHA-256 of its name. The generation is the
/// wall clock time of the node's start, in microseconds.
///
/// A restarted node has a larger incarnation, and two nodes that start in the same microsecond differ by their names.
pub fn incarnation(name: &str, generation: u64) -> Incarnation {
    let hash = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let name_hash =
        hash.as_ref().iter().take(2).fold(0, |number, byte| number << 8 | u64::from(*byte));
    Incarnation(generation << 12 | name_hash >> 4)
}
