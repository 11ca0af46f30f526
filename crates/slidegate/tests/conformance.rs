//! Tests of the conformance suite. A store with the same outcomes as the reference model must pass, and the suite must
//! detect a store with other outcomes.

use std::time::Duration;

use slidegate::store::{
    Adjustment, Asynchronous, CallIdentity, CallSettlement, ChargeOnceResult, ChargeResult,
    CounterId, Edit, Hit, Key, Outcomes, PermitChange, Receipt, Scope, SettleResult, Value,
};
use slidegate::testkit::block_on;
use slidegate::testkit::conformance::{
    ALL_ALGORITHMS, Mismatch, TraceStats, run_trace, run_trace_with_clock_steps,
};
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::testkit::model::ModelStore;
use slidegate::{
    Algorithm, Limit, Limiter, ManualClock, MemoryStore, Store, StoreError, SyncStore, Timestamp,
};

/// Runs random traces with each algorithm alone, and with all algorithms together. Returns the total statistics.
fn compare_store_with_model<S: Store>(
    traces: u64,
    steps: usize,
    store: impl Fn(&ManualClock, u64) -> S,
) -> TraceStats {
    let all: &[Algorithm] = &ALL_ALGORITHMS;
    let mut sum = TraceStats::default();
    for algorithms in all.chunks(1).chain([all]) {
        let stats = run_traces(algorithms, traces, steps, &store);
        assert!(stats.repeated_calls * 20 > stats.decisions, "{stats:?}");
        if algorithms == [Algorithm::Concurrent] {
            assert!(stats.permit_changes * 20 > stats.decisions, "{stats:?}");
        }
        add_trace_stats(&mut sum, stats);
    }
    sum
}

/// Runs random traces with limits of these algorithms. Returns the total statistics.
fn run_traces<S: Store>(
    algorithms: &[Algorithm],
    traces: u64,
    steps: usize,
    store: impl Fn(&ManualClock, u64) -> S,
) -> TraceStats {
    let mut stats = TraceStats::default();
    for seed in 0..traces {
        let clock = ManualClock::default();
        let store = store(&clock, seed);
        match block_on(run_trace(&store, &clock, algorithms, seed, steps)) {
            Ok(more) => add_trace_stats(&mut stats, more),
            Err(mismatch) => panic!("{algorithms:?}: {mismatch}"),
        }
    }
    println!("{algorithms:?}: {stats:?}");
    // Traces that only allow, or only deny, would not test anything.
    assert!(stats.allowed * 10 > stats.decisions && stats.allowed * 10 < stats.decisions * 9);
    assert!(stats.refunds * 50 > stats.decisions, "{stats:?}");
    assert!(stats.waits * 20 > stats.decisions, "{stats:?}");
    stats
}

fn add_trace_stats(sum: &mut TraceStats, more: TraceStats) {
    sum.decisions += more.decisions;
    sum.allowed += more.allowed;
    sum.waits += more.waits;
    sum.refunds += more.refunds;
    sum.permit_changes += more.permit_changes;
    sum.repeated_calls += more.repeated_calls;
    sum.failures += more.failures;
}

#[test]
fn memory_store_matches_model() {
    let stats = compare_store_with_model(250, 1_000, |clock, _| {
        MemoryStore::with_clock(clock.clone(), 1_000)
    });
    assert!(stats.decisions >= 600_000, "at least 100,000 for each algorithm: {stats:?}");
}

#[test]
fn memory_store_matches_model_with_clock_steps() {
    for algorithms in ALL_ALGORITHMS.chunks(1).chain([&ALL_ALGORITHMS[..]]) {
        for seed in 0..100 {
            let clock = ManualClock::default();
            let store = StoreWithSweepBeforeCalls(MemoryStore::with_clock(clock.clone(), 1_000));
            let trace = run_trace_with_clock_steps(&store, &clock, algorithms, seed, 400);
            if let Err(mismatch) = block_on(trace) {
                panic!("{algorithms:?}: {mismatch}");
            }
        }
    }
}

/// A memory store that removes expired counters before each call that charges or reads counters.
struct StoreWithSweepBeforeCalls(MemoryStore<ManualClock>);

impl SyncStore for StoreWithSweepBeforeCalls {
    fn charge(&self, call: &[Hit<'_>]) -> ChargeResult {
        self.0.sweep();
        self.0.charge(call)
    }

    fn charge_many(&self, calls: &[&[Hit<'_>]]) -> Vec<ChargeResult> {
        self.0.sweep();
        self.0.charge_many(calls)
    }

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> ChargeOnceResult {
        self.0.sweep();
        self.0.charge_once(call, identity)
    }

    fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        self.0.sweep();
        self.0.settle(settlement)
    }

    fn peek(&self, call: &[Hit<'_>]) -> Outcomes {
        self.0.sweep();
        self.0.peek(call)
    }

    fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        self.0.adjust(receipt, adjustment);
    }

    fn change_permit(&self, permit: &Receipt, change: PermitChange) -> bool {
        self.0.sweep();
        self.0.change_permit(permit, change)
    }

    fn local_counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        let id = self.0.local_counter_id(hit);
        assert!(id.is_some());
        id
    }

    fn edit(&self, hits: &[Hit<'_>], edit: Edit) -> Outcomes {
        self.0.sweep();
        self.0.edit(hits, edit)
    }
}

#[test]
fn memory_store_with_frequent_sweeps_matches_model() {
    compare_store_with_model(40, 600, |clock, _| {
        StoreWithSweepBeforeCalls(MemoryStore::with_clock(clock.clone(), 1_000))
    });
}

#[test]
fn multi_slot_store_matches_model() {
    let no_faults = Faults::default();
    compare_store_with_model(40, 600, |clock, seed| FaultyStore::new(clock, 3, no_faults, seed));
}

#[test]
fn faulty_store_matches_model() {
    let faults = Faults { unavailable: 10, lost_before: 10, lost_after: 10 };
    let stats =
        compare_store_with_model(40, 600, |clock, seed| FaultyStore::new(clock, 3, faults, seed));
    assert!(stats.failures * 10 > stats.decisions, "{stats:?}");
}

/// Checks that the suite detects a store that uses another clock than the trace.
#[test]
fn store_with_other_clock_fails_conformance() {
    let mismatch: Mismatch = (0..20)
        .find_map(|seed| {
            let clock = ManualClock::default();
            let store = ModelStore::new(ManualClock::default());
            block_on(run_trace(&store, &clock, &Algorithm::ALL, seed, 600)).err()
        })
        .unwrap();
    assert!(mismatch.to_string().contains("the model"), "{mismatch}");
}

/// A store whose calls all fail, because the store supports no limit.
struct StoreWithoutLimitSupport;

fn unsupported_limit_error<T>() -> Result<T, StoreError> {
    Err(StoreError::Unsupported("it has no way to".to_owned()))
}

impl Store for StoreWithoutLimitSupport {
    type Kind = Asynchronous;

    async fn charge_async(&self, _: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        unsupported_limit_error()
    }

    async fn peek_async(&self, _: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        unsupported_limit_error()
    }

    async fn adjust_async(&self, _: &Receipt, _: Adjustment) -> Result<(), StoreError> {
        unsupported_limit_error()
    }

    async fn edit_async(&self, _: &[Hit<'_>], _: Edit) -> Result<Outcomes, StoreError> {
        unsupported_limit_error()
    }
}

/// Checks that the suite does not accept an `Unsupported` error as a temporary failure, because a retry of the call
/// cannot succeed.
#[test]
fn store_without_limit_support_fails_conformance() {
    for seed in 0..20 {
        let clock = ManualClock::default();
        let result =
            block_on(run_trace(&StoreWithoutLimitSupport, &clock, &Algorithm::ALL, seed, 600));
        let mismatch = result.unwrap_err().to_string();
        assert!(mismatch.ends_with("does not support this call: it has no way to"), "{mismatch}");
    }
}

/// Calls `check` with a hit of a limit that the store of `examples/store.rs` supports, and one that it does not
/// support.
fn with_hits_of_two_limits(check: impl FnOnce(&Hit<'_>, &Hit<'_>)) {
    let buckets = Algorithm::SlidingBuckets { precision: None };
    let supported = Limit::new("3/min".parse().unwrap(), buckets).unwrap();
    let unsupported: Limit = "3/min".parse().unwrap();
    let scope = Scope::new("domain", "rule", "limit", &["key"]);
    let key = Key::new(&scope, &[Value::Text("ann")]);
    check(&Hit::new(key, &supported, 1), &Hit::new(key, &unsupported, 1));
}

#[test]
fn example_store_matches_model() {
    let algorithms = [Algorithm::SlidingBuckets { precision: None }];
    let stats = run_traces(&algorithms, 250, 1_000, |clock, _| {
        crate::example_store::MapStore::new(clock.clone())
    });
    assert!(stats.decisions >= 100_000 && stats.repeated_calls == 0, "{stats:?}");
}

#[test]
fn example_store_rejects_other_algorithms() {
    for algorithm in ALL_ALGORITHMS {
        let clock = ManualClock::default();
        let store = crate::example_store::MapStore::new(clock.clone());
        let result = block_on(run_trace(&store, &clock, &[algorithm], 0, 100));
        if matches!(algorithm, Algorithm::SlidingBuckets { .. }) {
            result.unwrap();
        } else {
            let mismatch = result.unwrap_err().to_string();
            assert!(
                mismatch.ends_with("use sliding_buckets, the only algorithm of this store"),
                "{mismatch}"
            );
        }
    }
}

/// A limit that the store cannot count is an error of the limiter. Otherwise each call would fail, and be decided
/// without the store.
#[test]
fn limiter_rejects_limits_that_its_store_does_not_support() {
    with_hits_of_two_limits(|supported, unsupported| {
        let limiter = |limit: &Limit| {
            let store = crate::example_store::MapStore::new(ManualClock::default());
            Limiter::with_store("api", [*limit], store)
        };
        assert!(limiter(supported.limit).is_ok());
        assert_eq!(
            limiter(unsupported.limit).unwrap_err().to_string(),
            "the store does not support `3/1m sliding_window`: use sliding_buckets, the only algorithm of this store"
        );
    });
}

#[test]
fn failed_batch_reverts_its_charges() {
    with_hits_of_two_limits(|supported, unsupported| {
        let store = crate::example_store::MapStore::new(ManualClock::default());
        let calls: [&[Hit<'_>]; 3] = [&[*supported], &[*supported, *unsupported], &[*supported]];
        assert!(block_on(store.charge_many_async(&calls)).is_err());
        assert_eq!(block_on(store.peek_async(&[*supported])).unwrap()[0].remaining(), 3);
        let results = block_on(store.charge_many_async(&[&[*supported], &[*supported]])).unwrap();
        let remaining = results.iter().map(|result| result.outcomes[0].remaining());
        assert_eq!(remaining.collect::<Vec<_>>(), [2, 1]);
    });
}

#[test]
fn example_store_removes_expired_counters() {
    with_hits_of_two_limits(|hit, _| {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
        let store = crate::example_store::MapStore::new(clock.clone());
        let result = block_on(store.charge_async(&[*hit])).unwrap();
        clock.advance(result.outcomes[0].reset_after());
        assert_eq!(store.remove_expired(), 1, "the clock may be set back");
        clock.advance(Duration::from_secs(1));
        assert_eq!(store.remove_expired(), 0);
    });
}

/// A store that applies settlements, but has no calls with an id.
struct StoreWithSettlementsOnly(ModelStore);

impl Store for StoreWithSettlementsOnly {
    type Kind = Asynchronous;

    async fn charge_async(&self, call: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.0.charge_async(call).await
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        self.0.settle_async(settlement).await
    }

    async fn peek_async(&self, call: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.0.peek_async(call).await
    }

    async fn adjust_async(&self, receipt: &Receipt, change: Adjustment) -> Result<(), StoreError> {
        self.0.adjust_async(receipt, change).await
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        self.0.edit_async(hits, edit).await
    }
}

#[test]
fn store_with_settlements_only_fails_conformance() {
    let clock = ManualClock::default();
    let store = StoreWithSettlementsOnly(ModelStore::new(clock.clone()));
    let mismatch = block_on(run_trace(&store, &clock, &Algorithm::ALL, 0, 600)).unwrap_err();
    assert!(mismatch.description.ends_with("the store does not remember calls"), "{mismatch}");
}
