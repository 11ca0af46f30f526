//! Why something was not opened.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram, a handshake or a frame was refused. Each is counted: see [`Refusals`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
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

impl Refusal {
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

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl std::error::Error for Refusal {}

/// How often each reason was given, since the start. Shared by all that opens seals.
#[derive(Debug, Default)]
pub struct Refusals([AtomicU64; Refusal::ALL.len()]);

impl Refusals {
    /// Counts one.
    pub fn count(&self, refusal: Refusal) {
        self.0[refusal as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often this reason was given.
    pub fn of(&self, refusal: Refusal) -> u64 {
        self.0[refusal as usize].load(Ordering::Relaxed)
    }

    /// Every reason, and how often it was given.
    pub fn iter(&self) -> impl Iterator<Item = (Refusal, u64)> {
        Refusal::ALL.into_iter().map(|refusal| (refusal, self.of(refusal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_is_counted_for_itself_under_a_name_of_its_own() {
        let refusals = Refusals::default();
        for (times, refusal) in Refusal::ALL.into_iter().enumerate() {
            (0..times).for_each(|_| refusals.count(refusal));
        }
        let counted: Vec<u64> = refusals.iter().map(|(_, count)| count).collect();
        assert_eq!(counted, (0..Refusal::ALL.len() as u64).collect::<Vec<_>>());
        let names: std::collections::HashSet<_> = Refusal::ALL.map(Refusal::name).into();
        assert_eq!(names.len(), Refusal::ALL.len());
    }
}
