//! A cluster node for benchmarks that simulate the other nodes of the cluster.

use std::sync::Arc;
use std::time::Duration;

use slidegate::Timestamp;
use slidegate::clock::{Clock, DriftCorrectedClock};
use slidegate_cluster::ClusterStore;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::store::ReplicationHandle;

/// The time between two replications of the changed counters.
pub const REPLICATION_INTERVAL: Duration = Duration::from_millis(250);

/// A cluster node without network connections. The benchmark simulates the other nodes.
pub struct SimulatedNode<C = Arc<DriftCorrectedClock>> {
    store: ClusterStore<C>,
}

impl SimulatedNode {
    /// Creates the node with the number `me`, which counts at most `max_keys` keys.
    pub fn new(me: u64, max_keys: usize) -> Self {
        Self::with_clock(Arc::new(DriftCorrectedClock::new()), me, max_keys)
    }
}

impl<C: Clock> SimulatedNode<C> {
    /// Creates the node with the number `me`, which counts at most `max_keys` keys, with the given clock.
    pub fn with_clock(clock: C, me: u64, max_keys: usize) -> Self {
        let settings = CounterSettings {
            incarnation: Incarnation(me),
            secret: [7; 16].into(),
            max_clock_skew_us: 2_000_000,
            sync_interval: REPLICATION_INTERVAL,
            max_keys,
            max_memory: 1 << 30,
        };
        let counters = Arc::new(Counters::new(settings, clock.now()));
        Self {
            store: ClusterStore::new(clock, counters, ReplicationHandle::default(), Duration::ZERO),
        }
    }

    /// Returns the store of the node.
    pub fn store(&self) -> &ClusterStore<C> {
        &self.store
    }

    /// Returns the store of the node, for a benchmark in which nothing is replicated.
    pub fn into_store(self) -> ClusterStore<C> {
        self.store
    }

    /// Returns the replicated counters of the node.
    pub fn counters(&self) -> &Counters {
        self.store.counters()
    }

    /// Records that two simulated nodes have acknowledged all updates up to the flush with the number `flush`. A flush
    /// is one replication of the changed counters.
    pub fn acknowledge_updates_up_to(&self, flush: u64) {
        let member = |id| MemberProgress {
            incarnation: Incarnation(id),
            acknowledged_flush: flush,
            silent_since: None,
        };
        let members = vec![member(101), member(102)];
        self.counters().progress().store(Arc::new(Progress {
            members,
            nodes: 3,
            majority_since: Some(Timestamp::default()),
            ..Progress::default()
        }));
    }
}
