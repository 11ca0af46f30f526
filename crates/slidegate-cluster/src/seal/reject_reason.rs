//! Reasons for which received data is rejected, and their counters.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The reason for the rejection of a datagram, handshake or frame. Rejections are counted in [`RejectCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// The message ends too early.
    Truncated,
    /// The message is longer than any valid message.
    TooLong,
    /// The sender uses another version of slidegate or another protocol.
    WrongVersion,
    /// The sender has another key, or the message was changed in transit.
    WrongMac,
    /// The message was received before, or arrived too late or out of order.
    Replayed,
    /// The message was authenticated too long ago, according to the local clock: it is a replay, or the clocks differ
    /// too much.
    Stale,
    /// The timestamp of the message is too far in the future, according to the local clock: the clocks differ too much.
    Early,
    /// The message was sent by this node itself. This also happens if one of the seeds of this node refers to the node
    /// itself.
    Reflected,
    /// The MAC of the message is valid, but its content is not.
    Malformed,
    /// The connection leads to another node than expected: the node has restarted or moved.
    WrongNode,
    /// The maximum number of senders or connections is reached.
    Crowded,
    /// The handshake was not completed in time.
    TooSlow,
}

impl RejectReason {
    /// All reasons, in display order.
    pub const ALL: [Self; 12] = [
        Self::Truncated,
        Self::TooLong,
        Self::WrongVersion,
        Self::WrongMac,
        Self::Replayed,
        Self::Stale,
        Self::Early,
        Self::Reflected,
        Self::Malformed,
        Self::WrongNode,
        Self::Crowded,
        Self::TooSlow,
    ];

    /// Returns the name of the reason in metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Truncated => "truncated",
            Self::TooLong => "too_long",
            Self::WrongVersion => "wrong_version",
            Self::WrongMac => "wrong_mac",
            Self::Replayed => "replayed",
            Self::Stale => "stale",
            Self::Early => "early",
            Self::Reflected => "reflected",
            Self::Malformed => "malformed",
            Self::WrongNode => "wrong_node",
            Self::Crowded => "crowded",
            Self::TooSlow => "too_slow",
        }
    }
}

impl fmt::Display for RejectReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for RejectReason {}

/// The number of rejections for each reason since the start. All sockets and connections of a node share these
/// counters.
#[derive(Debug, Default)]
pub struct RejectCounters([AtomicU64; RejectReason::ALL.len()]);

impl RejectCounters {
    /// Counts one rejection.
    pub fn count(&self, reason: RejectReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of rejections for a reason.
    pub fn get(&self, reason: RejectReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    /// Returns an iterator over all reasons and their counts.
    pub fn iter(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        RejectReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_have_unique_names_and_counters() {
        let reject_counters = RejectCounters::default();
        for (times, reason) in RejectReason::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| reject_counters.count(reason));
        }
        let counted: Vec<u64> = reject_counters.iter().map(|(_, count)| count).collect();
        assert_eq!(counted, (0..RejectReason::ALL.len() as u64).collect::<Vec<_>>());
        let names: std::collections::HashSet<_> = RejectReason::ALL.map(RejectReason::name).into();
        assert_eq!(names.len(), RejectReason::ALL.len());
    }
}
