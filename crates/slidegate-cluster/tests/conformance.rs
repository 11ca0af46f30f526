//! Tests that the counters of a cluster give correct results. A single node must behave like the model. Several nodes
//! that replicate after each request must behave like one memory store.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use slidegate::store::Outcomes;
use slidegate::testkit::block_on;
use slidegate::testkit::conformance::run_trace;
use slidegate::{
    Adjustment, Algorithm, Align, ChargeResult, Clock, Edit, Hit, Key, Limit, ManualClock,
    MemoryStore, Receipt, Scope, Store, StoreError, SyncStore, Timestamp,
};
use slidegate_cluster::ClusterStore;
use slidegate_cluster::counters::{Attempt, CapPolicy, CounterSettings, Counters};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::replicated_counters::{FlushSeq, ReplicatedCounters};
use slidegate_cluster::store::ReplicationHandle;

const CLUSTER_SUPPORTED_ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingBuckets { precision: None },
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow { align: Align::Key },
    Algorithm::FixedWindow { align: Align::Clock },
];

/// Returns empty counters of one node.
fn new_counters(incarnation: u64, now: Timestamp) -> Counters {
    let settings = CounterSettings {
        incarnation: Incarnation(incarnation),
        secret: [7; 16].into(),
        max_clock_skew_us: 2_000_000,
        sync_interval: Duration::from_millis(250),
        max_keys: 1_000,
        max_memory: 1 << 30,
    };
    Counters::new(settings, now)
}

#[test]
fn single_node_conforms_to_store_model() {
    let (mut allowed, mut decisions) = (0, 0);
    for algorithms in
        CLUSTER_SUPPORTED_ALGORITHMS.chunks(1).chain([&CLUSTER_SUPPORTED_ALGORITHMS[..]])
    {
        for seed in 0..200 {
            let clock = ManualClock::default();
            let counters = Arc::new(new_counters(1, clock.now()));
            let store = ClusterStore::new(
                clock.clone(),
                counters,
                ReplicationHandle::default(),
                Duration::ZERO,
            );
            match block_on(run_trace(&store, &clock, algorithms, seed, 800)) {
                Ok(trace) => {
                    allowed += trace.allowed;
                    decisions += trace.decisions;
                }
                Err(difference) => panic!("{algorithms:?}: {difference}"),
            }
        }
    }
    assert!(decisions > 300_000 && allowed * 10 > decisions && allowed * 10 < decisions * 9);
}

/// Nodes that send the charges of each request to all other nodes before the next request.
struct SynchronizedNodes {
    nodes: Vec<Counters>,
    flush: FlushSeq,
}

impl SynchronizedNodes {
    /// Creates nodes with empty counters.
    fn new(nodes: u64, now: Timestamp) -> Self {
        let nodes: Vec<Counters> =
            (1..=nodes).map(|incarnation| new_counters(incarnation, now)).collect();
        Self { nodes, flush: 0 }
    }

    /// Replicates the changes of one node to all others, which acknowledge them.
    fn replicate(&mut self, sender: usize, now: Timestamp) {
        self.flush += 1;
        let mut updates = Vec::new();
        assert!(!self.nodes[sender].drain_changed(self.flush, usize::MAX, &mut updates));
        for (nth, node) in self.nodes.iter().enumerate() {
            if nth != sender {
                node.merge(&updates, now);
                // A repeated merge changes nothing.
                node.merge(&updates, now);
            }
            let other_nodes = (1..=self.nodes.len() as u64)
                .map(Incarnation)
                .filter(|incarnation| *incarnation != node.incarnation());
            let members = other_nodes
                .map(|incarnation| MemberProgress {
                    incarnation,
                    acknowledged_flush: self.flush,
                    silent_since: None,
                })
                .collect();
            let nodes = self.nodes.len() as u32;
            node.progress().store(Arc::new(Progress {
                members,
                nodes,
                majority_since: Some(now),
                ..Progress::default()
            }));
        }
    }

    /// Decides a request on one node, and returns the result.
    fn take(&self, node: usize, hits: &[Hit<'_>], now: Timestamp) -> ChargeResult {
        match self.nodes[node].charge_call(hits, now, CapPolicy::Wait).unwrap() {
            Attempt::Decided(result) => result,
            Attempt::Unsynced => panic!("unsynced although all charges are acknowledged"),
        }
    }
}

/// Draws a random limit with one of the algorithms that the cluster supports.
fn draw_random_limit(rng: &mut Rng) -> Limit {
    let quota = ["10/s", "3/min", "100/7s", "1/s"][rng.usize(..4)].parse().unwrap();
    Limit::new(quota, CLUSTER_SUPPORTED_ALGORITHMS[rng.usize(..CLUSTER_SUPPORTED_ALGORITHMS.len())])
        .unwrap()
}

#[test]
fn synchronized_nodes_conform_to_single_store_model() {
    for seed in 0..300 {
        let mut rng = Rng::with_seed(seed);
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000 + rng.u64(..100_000)));
        let mut nodes = SynchronizedNodes::new(rng.u64(2..=4), clock.now());
        (0..nodes.nodes.len()).for_each(|node| nodes.replicate(node, clock.now()));
        let memory_store = MemoryStore::with_clock(clock.clone(), 1_000);
        let limits = [draw_random_limit(&mut rng), draw_random_limit(&mut rng)];
        let scope = Scope::new("d", "r", "l", &["who"]);
        let mut receipts: Vec<(usize, (Receipt, Receipt))> = Vec::new();
        for step in 0..300 {
            clock.advance(Duration::from_millis([0, 1, 50, 400, 5_000][rng.usize(..5)]));
            let (node, now) = (rng.usize(..nodes.nodes.len()), clock.now());
            let values = [["a".into()], ["b".into()]];
            let hits: Vec<Hit<'_>> = (0..rng.usize(1..=3))
                .map(|_| {
                    let key = Key::new(&scope, &values[rng.usize(..2)]);
                    let hit = Hit::new(key, &limits[rng.usize(..2)], rng.u64(..4));
                    let required = rng.u64(..4);
                    let all = [
                        hit,
                        hit.observed(),
                        hit.reported(),
                        hit.charged_always(),
                        hit.joint(),
                        hit.with_required(required),
                    ];
                    all[rng.usize(..all.len())]
                })
                .collect();
            let description = format!("seed {seed}, step {step}: {hits:?}");
            match rng.u32(..10) {
                0 => {
                    let refunded: Outcomes = nodes.nodes[node].refund(&hits, now).unwrap();
                    assert_eq!(refunded, memory_store.edit(&hits, Edit::Refund), "{description}");
                }
                1 => {
                    if let Some((owner, (cluster_receipt, memory_receipt))) = receipts.pop() {
                        let _: usize = owner;
                        nodes.nodes[owner]
                            .revert(cluster_receipt.charges_to_revert(Adjustment::Revert), now);
                        memory_store.adjust(&memory_receipt, Adjustment::Revert);
                        nodes.replicate(owner, now);
                    }
                }
                2 => assert_eq!(
                    nodes.nodes[node].peek(&hits, now).unwrap(),
                    memory_store.peek(&hits)
                ),
                _ => {
                    let (cluster_result, memory_result) =
                        (nodes.take(node, &hits, now), memory_store.charge(&hits));
                    assert_eq!(cluster_result.outcomes, memory_result.outcomes, "{description}");
                    assert_eq!(cluster_result.allowed, memory_result.allowed, "{description}");
                    receipts.push((node, (cluster_result.receipt, memory_result.receipt)));
                }
            }
            nodes.replicate(node, now);
        }
    }
}

#[test]
fn unsupported_algorithm_returns_error() {
    let clock = ManualClock::at(Timestamp::from_secs(60));
    let counters = Arc::new(new_counters(1, clock.now()));
    let store = ClusterStore::new(clock, counters, ReplicationHandle::default(), Duration::ZERO);
    let scope = Scope::new("d", "r", "l", &["client"]);
    for algorithm in [Algorithm::SlidingLog, Algorithm::TokenBucket { burst: None, max_debt: None }]
    {
        let limit = Limit::new("1/s".parse().unwrap(), algorithm).unwrap();
        let values = ["a".into()];
        let key = Key::new(&scope, &values);
        let hit = Hit::new(key, &limit, 1);
        let Err(StoreError::Unsupported(message)) = block_on(store.charge_async(&[hit])) else {
            panic!("{algorithm} is accepted");
        };
        assert!(
            message.contains(algorithm.name()) && message.contains("sliding_buckets"),
            "{message}"
        );
    }
}
