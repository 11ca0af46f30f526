//! Tests that the counters of a cluster give correct results. A single node must behave like the model. Several nodes
//! that replicate after each request must behave like one memory store.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fastrand::Rng;
use slidegate::clock::Clock;
use slidegate::store::{
    Adjustment, Asynchronous, CallIdentity, CallSettlement, ChargeOnceResult, ChargeResult,
    CounterId, Edit, Hit, Key, Outcomes, Receipt, Scope, SettleResult,
};
use slidegate::testkit::conformance::run_trace;
use slidegate::testkit::{block_on, properties};
use slidegate::{
    Algorithm, Align, Calendar, Limit, ManualClock, MemoryStore, Period, Quota, Store, StoreError,
    SyncStore, Timestamp,
};
use slidegate_cluster::ClusterStore;
use slidegate_cluster::counters::{ChargeAttempt, CounterSettings, Counters, MaxUnsyncedAction};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::replicated_counters::{FlushSeq, ReplicatedCounters};
use slidegate_cluster::store::ReplicationHandle;

/// The algorithms that count the same in a cluster as in one process. `sliding_window` is tested separately.
const UNCHANGED_ALGORITHMS: [Algorithm; 4] = [
    Algorithm::SlidingBuckets { precision: None },
    Algorithm::SlidingCounter,
    Algorithm::FixedWindow { align: Align::Key },
    Algorithm::FixedWindow { align: Align::Clock },
];

/// The resolutions of the `sliding_window` limits that are compared with `sliding_buckets`.
const RESOLUTIONS: [u16; 3] = [8, 10, 32];

/// Returns the `sliding_window` that a cluster counts exactly like this `sliding_buckets`: the same max and window, and
/// the number of buckets as the resolution. Returns `None` for limits without such a `sliding_window`: other
/// algorithms, other numbers of buckets, and windows that `sliding_window` rounds up to a whole number of ticks.
fn equivalent_sliding_window(limit: &Limit) -> Option<Limit> {
    let Algorithm::SlidingBuckets { precision: Some(precision) } = limit.algorithm() else {
        return None;
    };
    let parts = |resolution: &&u16| precision * u32::from(**resolution) == limit.quota().window();
    let resolution = RESOLUTIONS.iter().find(parts).copied();
    let window = Limit::new(limit.quota(), Algorithm::SlidingWindow { resolution }).unwrap();
    (resolution.is_some() && window.quota() == limit.quota()).then_some(window)
}

/// A store that counts each `sliding_buckets` limit as the equivalent `sliding_window` limit, if there is one.
struct SlidingWindowStore<S> {
    store: S,
    replaced: AtomicU64,
}

impl<S: Store> SlidingWindowStore<S> {
    fn new(store: S) -> Self {
        Self { store, replaced: AtomicU64::new(0) }
    }

    /// Returns the limits with which the wrapped store counts the hits.
    fn limits(&self, hits: &[Hit<'_>]) -> Vec<Limit> {
        let limit = |hit: &Hit<'_>| match equivalent_sliding_window(hit.limit) {
            Some(window) => {
                self.replaced.fetch_add(1, Ordering::Relaxed);
                window
            }
            None => *hit.limit,
        };
        hits.iter().map(limit).collect()
    }
}

/// Returns the hits with other limits.
fn with_limits<'h>(hits: &[Hit<'h>], limits: &'h [Limit]) -> Vec<Hit<'h>> {
    hits.iter().zip(limits).map(|(hit, limit)| Hit { limit, ..*hit }).collect()
}

impl<S: Store> Store for SlidingWindowStore<S> {
    type Kind = Asynchronous;

    async fn charge_async(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        let limits = self.limits(hits);
        self.store.charge_async(&with_limits(hits, &limits)).await
    }

    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let limits: Vec<Vec<Limit>> = calls.iter().map(|hits| self.limits(hits)).collect();
        let calls: Vec<Vec<Hit<'_>>> =
            calls.iter().zip(&limits).map(|(hits, limits)| with_limits(hits, limits)).collect();
        let calls: Vec<&[Hit<'_>]> = calls.iter().map(Vec::as_slice).collect();
        self.store.charge_many_async(&calls).await
    }

    async fn charge_once_async(
        &self,
        hits: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        let limits = self.limits(hits);
        self.store.charge_once_async(&with_limits(hits, &limits), identity).await
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        let limits = self.limits(std::slice::from_ref(hit));
        let id = self.store.counter_id(&Hit { limit: &limits[0], ..*hit });
        assert!(id.is_some());
        id
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        self.store.settle_async(settlement).await
    }

    async fn peek_async(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        let limits = self.limits(hits);
        self.store.peek_async(&with_limits(hits, &limits)).await
    }

    fn revert_later(&self, receipt: Receipt) {
        self.store.revert_later(receipt);
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        self.store.adjust_async(receipt, adjustment).await
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        let limits = self.limits(hits);
        self.store.edit_async(&with_limits(hits, &limits), edit).await
    }
}

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

/// Returns the store of a node without other nodes.
fn new_store_of_single_node(clock: &ManualClock) -> ClusterStore<ManualClock> {
    let counters = Arc::new(new_counters(1, clock.now()));
    ClusterStore::new(clock.clone(), counters, ReplicationHandle::default(), Duration::ZERO)
}

#[test]
fn single_node_conforms_to_store_model() {
    let (mut allowed, mut decisions, mut repeated_calls) = (0, 0, 0);
    for algorithms in UNCHANGED_ALGORITHMS.chunks(1).chain([&UNCHANGED_ALGORITHMS[..]]) {
        for seed in 0..200 {
            let clock = ManualClock::default();
            let store = new_store_of_single_node(&clock);
            match block_on(run_trace(&store, &clock, algorithms, seed, 800)) {
                Ok(trace) => {
                    allowed += trace.allowed;
                    decisions += trace.decisions;
                    repeated_calls += trace.repeated_calls;
                }
                Err(difference) => panic!("{algorithms:?}: {difference}"),
            }
        }
    }
    assert!(repeated_calls * 20 > decisions, "{repeated_calls} of {decisions}");
    assert!(decisions > 300_000 && allowed * 10 > decisions && allowed * 10 < decisions * 9);
}

#[test]
fn calendar_periods_are_counted_separately() {
    for seed in 0..100 {
        let clock = ManualClock::default();
        let store = new_store_of_single_node(&clock);
        block_on(properties::calendar_periods_are_counted_separately(&store, &clock, seed));
    }
}

/// The model counts `sliding_window` with a compacted log, so the model of the cluster's `sliding_window` is
/// `sliding_buckets`.
#[test]
fn sliding_window_on_single_node_conforms_to_sliding_buckets() {
    let (mut allowed, mut decisions, mut replaced) = (0, 0, 0);
    let buckets = [Algorithm::SlidingBuckets { precision: None }];
    for algorithms in [&buckets[..], &UNCHANGED_ALGORITHMS[..]] {
        for seed in 0..400 {
            let clock = ManualClock::default();
            let store = SlidingWindowStore::new(new_store_of_single_node(&clock));
            match block_on(run_trace(&store, &clock, algorithms, seed, 800)) {
                Ok(trace) => {
                    allowed += trace.allowed;
                    decisions += trace.decisions;
                }
                Err(difference) => panic!("{algorithms:?}: {difference}"),
            }
            replaced += store.replaced.into_inner();
        }
    }
    assert!(allowed * 10 > decisions && allowed * 10 < decisions * 9, "{allowed} of {decisions}");
    assert!(replaced > 50_000, "{replaced}");
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
        assert!(!self.nodes[sender].drain_changed_counters(self.flush, usize::MAX, &mut updates));
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
        match self.nodes[node].try_charge_request(hits, now, MaxUnsyncedAction::Wait).unwrap() {
            ChargeAttempt::Decided(result) => result,
            ChargeAttempt::Unsynced => panic!("unsynced although all charges are acknowledged"),
        }
    }
}

/// Draws a random limit with one of the algorithms that the cluster supports. Returns the limit of the cluster, and the
/// limit with which one store counts the same. The two differ if the limit of the cluster is a `sliding_window`.
fn draw_random_limit(rng: &mut Rng) -> [Limit; 2] {
    if rng.u32(..5) == 0 {
        let calendar = Calendar::new(Period::Day).with_time_zone("Europe/Berlin").unwrap();
        return [Limit::calendar(rng.u64(1..20), calendar).unwrap(); 2];
    }
    let quota: Quota = ["10/s", "3/min", "100/7s", "1/s"][rng.usize(..4)].parse().unwrap();
    let new_limit = |algorithm| Limit::new(quota, algorithm).unwrap();
    match UNCHANGED_ALGORITHMS.get(rng.usize(..=UNCHANGED_ALGORITHMS.len())) {
        Some(algorithm) => [new_limit(*algorithm); 2],
        None => {
            // Not 10: the buckets would have the default precision, and share their counter in the one store with the
            // `sliding_buckets` limits.
            let precision = Some(quota.window() / [8, 32][rng.usize(..2)]);
            let buckets = new_limit(Algorithm::SlidingBuckets { precision });
            [equivalent_sliding_window(&buckets).unwrap(), buckets]
        }
    }
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
            let steps_ms = [0, 1, 50, 400, 5_000, 7_200_000];
            clock.advance(Duration::from_millis(steps_ms[rng.usize(..steps_ms.len())]));
            let (node, now) = (rng.usize(..nodes.nodes.len()), clock.now());
            let values = [["a".into()], ["b".into()]];
            let (hits, memory_hits): (Vec<Hit<'_>>, Vec<Hit<'_>>) = (0..rng.usize(1..=3))
                .map(|_| {
                    let key = Key::new(&scope, &values[rng.usize(..2)]);
                    let [limit, memory_limit] = &limits[rng.usize(..2)];
                    let hit = Hit::new(key, limit, rng.u64(..4));
                    let required = rng.u64(..4);
                    let all = [
                        hit,
                        hit.in_observe_mode(),
                        hit.reported(),
                        hit.charged_always(),
                        hit.with_joint_veto(),
                        hit.with_required(required),
                    ];
                    let hit = all[rng.usize(..all.len())];
                    (hit, Hit { limit: memory_limit, ..hit })
                })
                .unzip();
            let description = format!("seed {seed}, step {step}: {hits:?}");
            match rng.u32(..10) {
                0 => {
                    let refunded: Outcomes = nodes.nodes[node].refund(&hits, now).unwrap();
                    assert_eq!(
                        refunded,
                        memory_store.edit(&memory_hits, Edit::Refund),
                        "{description}"
                    );
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
                    memory_store.peek(&memory_hits)
                ),
                _ => {
                    let (cluster_result, memory_result) =
                        (nodes.take(node, &hits, now), memory_store.charge(&memory_hits));
                    assert_eq!(cluster_result.outcomes, memory_result.outcomes, "{description}");
                    assert_eq!(cluster_result.allowed, memory_result.allowed, "{description}");
                    receipts.push((node, (cluster_result.receipt, memory_result.receipt)));
                }
            }
            nodes.replicate(node, now);
        }
    }
}

/// Buckets of different lengths cannot be added, so the resolution is part of the identity of a counter. In one process
/// and in Redis, it is not.
#[test]
fn changed_resolution_resets_sliding_window_in_cluster() {
    let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
    let store = new_store_of_single_node(&clock);
    let scope = Scope::new("d", "r", "l", &["client"]);
    let values = ["a".into()];
    let remaining_after_charge = |quota: &str, resolution, cost| {
        let algorithm = Algorithm::SlidingWindow { resolution: Some(resolution) };
        let limit = Limit::new(quota.parse().unwrap(), algorithm).unwrap();
        let hit = Hit::new(Key::new(&scope, &values), &limit, cost);
        block_on(store.charge_async(&[hit])).unwrap().outcomes[0].remaining()
    };
    assert_eq!(remaining_after_charge("100/min", 32, 40), 60);
    assert_eq!(remaining_after_charge("90/min", 32, 0), 50, "a change of max keeps the counts");
    assert_eq!(remaining_after_charge("100/min", 64, 1), 99, "a change of resolution resets them");
    assert_eq!(remaining_after_charge("100/min", 32, 0), 60, "the counts before still exist");
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
