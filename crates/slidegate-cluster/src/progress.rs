//! Replication progress: for each other member, the last flush of this node that the member has acknowledged.
//!
//! Decisions need no other information from the replication engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use arc_swap::{ArcSwap, Guard};
use slidegate::Timestamp;
use slidegate::store::OnPartition;

use crate::pn_counter::Incarnation;
use crate::replicated_counters::FlushSeq;

/// Replication progress of all other members.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The other members that must acknowledge the charges of this node.
    pub members: Vec<MemberProgress>,
    /// The number of members that have not left, including this node and silent members.
    pub nodes: u32,
    /// The moment at which this node and the members that it can reach became a majority; `None` if they are not a
    /// majority. A majority is more than half of all members, or exactly half of them if this half contains the member
    /// with the smallest name.
    pub majority_since: Option<Timestamp>,
    /// Whether this node is still waiting for the member list and the counters of the cluster.
    pub is_joining: bool,
    /// Maximum difference between the clocks of two nodes, in microseconds.
    pub max_clock_skew_us: u64,
}

/// Replication progress of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberProgress {
    /// The incarnation of the member.
    pub incarnation: Incarnation,
    /// The last flush of this node that the member has acknowledged together with all earlier flushes.
    pub acknowledged_flush: FlushSeq,
    /// The moment at which the member became silent; `None` if it is alive.
    pub silent_since: Option<Timestamp>,
}

impl Progress {
    /// Returns the progress of a node that is the only member of its cluster.
    pub fn single_node() -> Self {
        Self { nodes: 1, majority_since: Some(Timestamp::default()), ..Self::default() }
    }

    /// Returns `true` if the cluster has no other members to replicate to.
    #[inline]
    pub fn has_no_peers(&self) -> bool {
        self.members.is_empty() && !self.is_joining
    }

    /// Returns the last flush that every required member has acknowledged. Returns [`FlushSeq::MAX`] if no member is
    /// required, and 0 while this node is joining. The charges of the limit expire after `lifetime_us` microseconds.
    ///
    /// For a [bounded](OnPartition::Bounded) limit, a silent member is required until this node has been part of a
    /// majority without that member for longer than `lifetime_us` plus the maximum clock skew. After this time, all
    /// earlier charges of the silent member have expired on every node, even if its clock differs by the maximum clock
    /// skew.
    pub fn acknowledged_flush(
        &self,
        now: Timestamp,
        lifetime_us: u64,
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
                    !self.is_silent_for_longer_than_charge_lifetime(since, now, lifetime_us)
                }
            });
        required.map(|member| member.acknowledged_flush).min().unwrap_or(FlushSeq::MAX)
    }

    fn is_silent_for_longer_than_charge_lifetime(
        &self,
        since: Timestamp,
        now: Timestamp,
        lifetime_us: u64,
    ) -> bool {
        self.majority_since.is_some_and(|majority_since| {
            let silent_us = now.as_micros().saturating_sub(since.max(majority_since).as_micros());
            silent_us > lifetime_us.saturating_add(self.max_clock_skew_us)
        })
    }

    /// Returns the last flush that every member has acknowledged, including silent members. Returns [`FlushSeq::MAX`]
    /// if there are no other members, and 0 while this node is joining.
    pub fn last_flush_acknowledged_by_all(&self) -> FlushSeq {
        if self.is_joining {
            0
        } else {
            self.members
                .iter()
                .map(|member| member.acknowledged_flush)
                .min()
                .unwrap_or(FlushSeq::MAX)
        }
    }

    /// Returns `true` if at least one member is silent.
    pub fn has_silent_member(&self) -> bool {
        self.members.iter().any(|member| member.silent_since.is_some())
    }
}

/// The published replication progress, which all decisions read. The most frequently read values are also stored as
/// atomics.
#[derive(Debug)]
pub struct SharedReplicationProgress {
    progress: ArcSwap<Progress>,
    has_no_peers: AtomicBool,
    nodes: AtomicU32,
}

impl Default for SharedReplicationProgress {
    fn default() -> Self {
        Self {
            progress: ArcSwap::from_pointee(Progress::single_node()),
            has_no_peers: AtomicBool::new(true),
            nodes: AtomicU32::new(1),
        }
    }
}

impl SharedReplicationProgress {
    /// Publishes new progress, which later decisions read.
    pub fn store(&self, progress: Arc<Progress>) {
        self.has_no_peers.store(progress.has_no_peers(), Ordering::Relaxed);
        self.nodes.store(progress.nodes.max(1), Ordering::Relaxed);
        self.progress.store(progress);
    }

    /// Returns the published progress.
    pub fn load(&self) -> Guard<Arc<Progress>> {
        self.progress.load()
    }

    /// Returns the published progress as an `Arc` that the caller can keep.
    pub fn load_full(&self) -> Arc<Progress> {
        self.progress.load_full()
    }

    /// Returns `true` if the cluster has no other members to replicate to.
    #[inline]
    pub fn has_no_peers(&self) -> bool {
        self.has_no_peers.load(Ordering::Relaxed)
    }

    /// Returns the number of nodes including this one, at least 1.
    #[inline]
    pub fn nodes(&self) -> u32 {
        self.nodes.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHARGE_LIFETIME_US: u64 = 10_000_000;

    fn secs_after_start(seconds: u64) -> Timestamp {
        Timestamp::from_secs(1_000 + seconds)
    }

    fn new_member_progress(
        incarnation: u64,
        acknowledged_flush: FlushSeq,
        silent_since: Option<Timestamp>,
    ) -> MemberProgress {
        MemberProgress { incarnation: Incarnation(incarnation), acknowledged_flush, silent_since }
    }

    /// Returns the progress of two other members, one of them silent since second 20.
    fn progress_of_two_members(majority_since: Option<Timestamp>) -> Progress {
        Progress {
            members: vec![
                new_member_progress(2, 9, None),
                new_member_progress(3, 4, Some(secs_after_start(20))),
            ],
            nodes: 3,
            majority_since,
            is_joining: false,
            max_clock_skew_us: 2_000_000,
        }
    }

    #[test]
    fn single_node_cluster_requires_no_acknowledgements() {
        let acknowledged_flush = Progress::single_node().acknowledged_flush(
            secs_after_start(0),
            CHARGE_LIFETIME_US,
            OnPartition::Bounded,
        );
        assert_eq!(acknowledged_flush, FlushSeq::MAX);
    }

    #[test]
    fn joining_node_has_no_acknowledged_flush() {
        let progress =
            Progress { is_joining: true, ..progress_of_two_members(Some(secs_after_start(0))) };
        for on_partition in [OnPartition::Bounded, OnPartition::Available] {
            assert_eq!(
                progress.acknowledged_flush(
                    secs_after_start(900),
                    CHARGE_LIFETIME_US,
                    on_partition
                ),
                0
            );
        }
        assert_eq!(progress.last_flush_acknowledged_by_all(), 0);
    }

    #[test]
    fn silent_member_is_required_until_its_charges_expire() {
        let progress = progress_of_two_members(Some(secs_after_start(0)));
        let acknowledged_flush =
            |now| progress.acknowledged_flush(now, CHARGE_LIFETIME_US, OnPartition::Bounded);
        assert_eq!(acknowledged_flush(secs_after_start(20)), 4);
        assert_eq!(acknowledged_flush(secs_after_start(32)), 4, "its clock may be ahead");
        assert_eq!(
            acknowledged_flush(Timestamp::from_micros(secs_after_start(32).as_micros() + 1)),
            9
        );
        assert_eq!(progress.last_flush_acknowledged_by_all(), 4);
    }

    #[test]
    fn silent_member_stays_required_without_majority() {
        assert_eq!(
            progress_of_two_members(None).acknowledged_flush(
                secs_after_start(9_000),
                CHARGE_LIFETIME_US,
                OnPartition::Bounded
            ),
            4
        );
    }

    #[test]
    fn new_majority_requires_silent_member_until_its_charges_expire() {
        let progress = progress_of_two_members(Some(secs_after_start(100)));
        let acknowledged_flush =
            |now| progress.acknowledged_flush(now, CHARGE_LIFETIME_US, OnPartition::Bounded);
        assert_eq!(
            (acknowledged_flush(secs_after_start(112)), acknowledged_flush(secs_after_start(113))),
            (4, 9)
        );
    }

    #[test]
    fn available_on_partition_does_not_require_silent_member() {
        assert_eq!(
            progress_of_two_members(None).acknowledged_flush(
                secs_after_start(20),
                CHARGE_LIFETIME_US,
                OnPartition::Available
            ),
            9
        );
    }
}
