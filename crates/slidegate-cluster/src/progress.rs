//! How far the other members have come: all that a decision has to know of them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwap, Guard};
use slidegate::{OnPartition, Timestamp};

use crate::pn_counter::Incarnation;
use crate::replicated_counters::FlushSeq;

/// How far the other members have come.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Those that may count, without this node.
    pub members: Vec<MemberProgress>,
    /// Members that have not left, with this node and the silent among them.
    pub nodes: u32,
    /// Since when this node and those that it hears are more than half of all, or of an even split the half with the
    /// smallest name. None if they are not.
    pub majority_since: Option<Timestamp>,
    /// Whether this node does not know yet who is there, and what they have counted.
    pub is_joining: bool,
    /// Clocks of nodes differ by no more, in microseconds.
    pub max_clock_skew_us: u64,
}

/// How far one of them has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// Which.
    pub incarnation: Incarnation,
    /// The last flush of which it has acknowledged all up to there.
    pub acknowledged_flush: FlushSeq,
    /// Since when it has not been heard of.
    pub silent_since: Option<Timestamp>,
}

impl Progress {
    /// Of a node that has nobody to tell.
    pub fn alone() -> Self {
        Self { nodes: 1, majority_since: Some(Timestamp::default()), ..Self::default() }
    }

    /// Whether there is nobody to tell.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.members.is_empty() && !self.is_joining
    }

    /// The last flush that all have acknowledged who count for a limit whose charges count for so long:
    /// [`FlushSeq::MAX`] if nobody counts, 0 while this node is joining.
    ///
    /// A silent member of a [bounded](OnPartition::Bounded) limit counts until this node has been hearing a majority
    /// without it for so long that nothing counts any more which it may have charged before, on the clock that is
    /// furthest off.
    pub fn acknowledged_flush(
        &self,
        now: Timestamp,
        span_us: u64,
        on_partition: OnPartition,
    ) -> FlushSeq {
        if self.is_joining {
            return 0;
        }
        let required =
            self.members.iter().filter(|member| match (member.silent_since, on_partition) {
                (None, _) => true,
                (Some(_), OnPartition::Available) => false,
                (Some(since), OnPartition::Bounded) => {
                    !self.is_silent_for_window(since, now, span_us)
                }
            });
        required.map(|member| member.acknowledged_flush).min().unwrap_or(FlushSeq::MAX)
    }

    fn is_silent_for_window(&self, since: Timestamp, now: Timestamp, span_us: u64) -> bool {
        self.majority_since.is_some_and(|majority_since| {
            let silent_us = now.as_micros().saturating_sub(since.max(majority_since).as_micros());
            silent_us > span_us.saturating_add(self.max_clock_skew_us)
        })
    }

    /// The last flush that every member has acknowledged, the silent among them.
    pub fn flush_acknowledged_by_all(&self) -> FlushSeq {
        match self.is_joining {
            true => 0,
            false => self
                .members
                .iter()
                .map(|member| member.acknowledged_flush)
                .min()
                .unwrap_or(FlushSeq::MAX),
        }
    }

    /// Whether one of them is silent.
    pub fn has_silent(&self) -> bool {
        self.members.iter().any(|member| member.silent_since.is_some())
    }
}

/// The progress that all decisions read, with what most of them want to know.
#[derive(Debug)]
pub struct SharedProgress {
    progress: ArcSwap<Progress>,
    is_alone: AtomicBool,
    nodes: AtomicU32,
}

impl Default for SharedProgress {
    fn default() -> Self {
        Self {
            progress: ArcSwap::from_pointee(Progress::alone()),
            is_alone: AtomicBool::new(true),
            nodes: AtomicU32::new(1),
        }
    }
}

impl SharedProgress {
    /// Publishes how far the others have come.
    pub fn store(&self, progress: Arc<Progress>) {
        self.is_alone.store(progress.is_alone(), Ordering::Relaxed);
        self.nodes.store(progress.nodes.max(1), Ordering::Relaxed);
        self.progress.store(progress);
    }

    /// What was last published.
    pub fn load(&self) -> Guard<Arc<Progress>> {
        self.progress.load()
    }

    /// The same, to keep.
    pub fn load_full(&self) -> Arc<Progress> {
        self.progress.load_full()
    }

    /// Whether there is nobody to tell.
    #[inline]
    pub fn is_alone(&self) -> bool {
        self.is_alone.load(Ordering::Relaxed)
    }

    /// Nodes that count, with this one; at least 1.
    #[inline]
    pub fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN_US: u64 = 10_000_000;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + seconds)
    }

    fn member(
        incarnation: u64,
        acknowledged_flush: FlushSeq,
        silent_since: Option<Timestamp>,
    ) -> MemberProgress {
        MemberProgress { incarnation: Incarnation(incarnation), acknowledged_flush, silent_since }
    }

    /// Of two others one is silent, since second 20.
    fn progress(majority_since: Option<Timestamp>) -> Progress {
        Progress {
            members: vec![member(2, 9, None), member(3, 4, Some(at(20)))],
            nodes: 3,
            majority_since,
            is_joining: false,
            max_clock_skew_us: 2_000_000,
        }
    }

    #[test]
    fn whoever_has_nobody_to_tell_waits_for_nobody() {
        let acknowledged_flush =
            Progress::alone().acknowledged_flush(at(0), SPAN_US, OnPartition::Bounded);
        assert_eq!(acknowledged_flush, FlushSeq::MAX);
    }

    #[test]
    fn nothing_is_acknowledged_to_a_node_that_is_joining() {
        let progress = Progress { is_joining: true, ..progress(Some(at(0))) };
        for on_partition in [OnPartition::Bounded, OnPartition::Available] {
            assert_eq!(progress.acknowledged_flush(at(900), SPAN_US, on_partition), 0);
        }
        assert_eq!(progress.flush_acknowledged_by_all(), 0);
    }

    #[test]
    fn a_silent_member_counts_until_its_window_has_passed() {
        let progress = progress(Some(at(0)));
        let acknowledged_flush =
            |now| progress.acknowledged_flush(now, SPAN_US, OnPartition::Bounded);
        assert_eq!(acknowledged_flush(at(20)), 4);
        assert_eq!(acknowledged_flush(at(32)), 4, "its clock may be ahead");
        assert_eq!(acknowledged_flush(Timestamp::from_micros(at(32).as_micros() + 1)), 9);
        assert_eq!(progress.flush_acknowledged_by_all(), 4);
    }

    #[test]
    fn a_silent_member_counts_for_ever_where_no_majority_is() {
        assert_eq!(progress(None).acknowledged_flush(at(9_000), SPAN_US, OnPartition::Bounded), 4);
    }

    #[test]
    fn who_comes_to_a_majority_waits_for_a_window_there() {
        let progress = progress(Some(at(100)));
        let acknowledged_flush =
            |now| progress.acknowledged_flush(now, SPAN_US, OnPartition::Bounded);
        assert_eq!((acknowledged_flush(at(112)), acknowledged_flush(at(113))), (4, 9));
    }

    #[test]
    fn a_silent_member_does_not_count_where_availability_is_wanted() {
        assert_eq!(progress(None).acknowledged_flush(at(20), SPAN_US, OnPartition::Available), 9);
    }
}
