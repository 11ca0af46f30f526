//! Tests of the conformance suite. A store with the same outcomes as the reference model must pass, and the suite must
//! detect a store with other outcomes.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use slidegate::store::{
    Adjustment, Asynchronous, CallIdentity, ChargeResult, CounterId, Edit, Hit, OnceResult,
    Outcomes, PermitChange, Receipt, SettleResult, Settlement,
};
use slidegate::testkit::block_on;
use slidegate::testkit::conformance::{ALL_ALGORITHMS, Mismatch, TraceStats, run_trace};
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::testkit::model::ModelStore;
use slidegate::{Algorithm, ManualClock, MemoryStore, Store, StoreError, SyncStore};

/// Runs random traces with each algorithm alone, and with all algorithms together. Returns the total statistics.
fn compare_store_with_model<S: Store>(
    traces: u64,
    steps: usize,
    store: impl Fn(&ManualClock, u64) -> S,
) -> TraceStats {
    let all: &[Algorithm] = &ALL_ALGORITHMS;
    let mut sum = TraceStats::default();
    for algorithms in all.chunks(1).chain([all]) {
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
        if algorithms == [Algorithm::Concurrent] {
            assert!(stats.permit_changes * 20 > stats.decisions, "{stats:?}");
        }
        add_trace_stats(&mut sum, stats);
    }
    sum
}

fn add_trace_stats(sum: &mut TraceStats, more: TraceStats) {
    sum.decisions += more.decisions;
    sum.allowed += more.allowed;
    sum.waits += more.waits;
    sum.refunds += more.refunds;
    sum.permit_changes += more.permit_changes;
    sum.failures += more.failures;
}

#[test]
fn memory_store_matches_model() {
    let stats = compare_store_with_model(250, 1_000, |clock, _| {
        MemoryStore::with_clock(clock.clone(), 1_000)
    });
    assert!(stats.decisions >= 600_000, "at least 100,000 for each algorithm: {stats:?}");
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

    fn charge_once(&self, call: &[Hit<'_>], identity: &CallIdentity) -> OnceResult {
        self.0.sweep();
        self.0.charge_once(call, identity)
    }

    fn settle(&self, settlement: &Settlement) -> SettleResult {
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

    async fn charge_many_async(&self, _: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        unsupported_limit_error()
    }

    async fn charge_once_async(
        &self,
        _: &[Hit<'_>],
        _: &CallIdentity,
    ) -> Result<OnceResult, StoreError> {
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
        assert!(mismatch.ends_with("does not support this limit: it has no way to"), "{mismatch}");
    }
}
