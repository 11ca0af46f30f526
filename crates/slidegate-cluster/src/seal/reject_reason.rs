//! Why something was not opened.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram, a handshake or a frame was refused. Each is counted: see [`RejectCounters`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RejectReason {
    /// It ends before it may.
    Truncated,
    /// It is longer than anything that a node sends.
    TooLong,
    /// Another version of slidegate speaks, or something else altogether.
    WrongVersion,
    /// Its sender has another key, or it was changed on the way.
    WrongMac,
    /// It was opened before, or comes later than its place in the row allows.
    Replayed,
    /// By the own clock it was sealed too long ago: it is a replay, or clocks are far apart.
    Stale,
    /// By the own clock it will be sealed only later: clocks are far apart.
    Early,
    /// The node's own words come back to it. A node that is its own seed under another name hears itself, too.
    Reflected,
    /// The seal is right, what it holds is not.
    Malformed,
    /// Another node answers than the one that was called: it has started anew, or has moved.
    WrongNode,
    /// More senders or connections than a node has room for.
    Crowded,
    /// A connection that did not shake hands in time.
    TooSlow,
}

impl RejectReason {
    /// Every reason, in the order in which they are told.
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

    /// Its name in metrics and in JSON.
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

/// How often each reason was given, since the start. Shared by all that opens seals.
#[derive(Debug, Default)]
pub struct RejectCounters([AtomicU64; RejectReason::ALL.len()]);

impl RejectCounters {
    /// Counts one.
    pub fn count(&self, reason: RejectReason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often this reason was given.
    pub fn get(&self, reason: RejectReason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    /// Every reason, and how often it was given.
    pub fn iter(&self) -> impl Iterator<Item = (RejectReason, u64)> {
        RejectReason::ALL.into_iter().map(|reason| (reason, self.get(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_for_itself_under_a_name_of_its_own() {
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
