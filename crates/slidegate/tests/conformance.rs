//! Every store does what the model does.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use slidegate::store::Outcomes;
use slidegate::testkit::block_on;
use slidegate::testkit::conformance::{Difference, Tried, hold};
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::testkit::model::ModelStore;
use slidegate::{
    Algorithm, Asynchronous, ChargeResult, Hit, ManualClock, MemoryStore, Receipt, Store,
    StoreError, SyncStore,
};

/// Traces of each algorithm alone, and of all together.
fn hold_all<S: Store>(traces: u64, steps: usize, store: impl Fn(&ManualClock, u64) -> S) -> Tried {
    let all: &[Algorithm] = &Algorithm::ALL;
    let mut sum = Tried::default();
    for algorithms in all.chunks(1).chain([all]) {
        let mut tried = Tried::default();
        for seed in 0..traces {
            let clock = ManualClock::default();
            let store = store(&clock, seed);
            match block_on(hold(&store, &clock, algorithms, seed, steps)) {
                Ok(more) => add(&mut tried, more),
                Err(difference) => panic!("{algorithms:?}: {difference}"),
            }
        }
        println!("{algorithms:?}: {tried:?}");
        // A trace that only allows, or only denies, shows nothing.
        assert!(tried.allowed * 10 > tried.decisions && tried.allowed * 10 < tried.decisions * 9);
        assert!(tried.refunds * 50 > tried.decisions, "{tried:?}");
        assert!(tried.waits * 20 > tried.decisions, "{tried:?}");
        add(&mut sum, tried);
    }
    sum
}

fn add(sum: &mut Tried, more: Tried) {
    sum.decisions += more.decisions;
    sum.allowed += more.allowed;
    sum.waits += more.waits;
    sum.refunds += more.refunds;
    sum.failures += more.failures;
}

#[test]
fn the_memory_store_does_what_the_model_does() {
    let tried = hold_all(250, 1_000, |clock, _| MemoryStore::with_clock(clock.clone(), 1_000));
    assert!(tried.decisions >= 600_000, "at least 100,000 for each algorithm: {tried:?}");
}

/// A memory store that forgets whatever it may, whenever it is asked.
struct Forgetful(MemoryStore<ManualClock>);

impl SyncStore for Forgetful {
    fn take_now(&self, hits: &[Hit<'_>]) -> ChargeResult {
        self.0.sweep();
        self.0.take_now(hits)
    }

    fn take_many_now(&self, asks: &[&[Hit<'_>]], answer: impl FnMut(ChargeResult)) {
        self.0.sweep();
        self.0.take_many_now(asks, answer);
    }

    fn peek_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        self.0.sweep();
        self.0.peek_now(hits)
    }

    fn revert_now(&self, receipt: &Receipt) {
        self.0.revert_now(receipt);
    }

    fn refund_now(&self, hits: &[Hit<'_>]) -> Outcomes {
        self.0.sweep();
        self.0.refund_now(hits)
    }

    fn reset_now(&self, hits: &[Hit<'_>]) {
        self.0.reset_now(hits);
    }
}

#[test]
fn what_the_memory_store_forgets_is_not_missed() {
    hold_all(40, 600, |clock, _| Forgetful(MemoryStore::with_clock(clock.clone(), 1_000)));
}

#[test]
fn the_awkward_store_does_what_the_model_does() {
    let calm = Faults::default();
    hold_all(40, 600, |clock, seed| FaultyStore::new(clock, 3, calm, seed));
}

#[test]
fn the_awkward_store_does_what_the_model_does_while_calls_fail() {
    let faults = Faults { unavailable: 10, lost_before: 10, lost_after: 10 };
    let tried = hold_all(40, 600, |clock, seed| FaultyStore::new(clock, 3, faults, seed));
    assert!(tried.failures * 10 > tried.decisions, "{tried:?}");
}

/// A suite that cannot fail shows nothing.
#[test]
fn a_store_on_another_clock_is_found_out() {
    let difference: Difference = (0..20)
        .find_map(|seed| {
            let clock = ManualClock::default();
            let store = ModelStore::new(ManualClock::default());
            block_on(hold(&store, &clock, &Algorithm::ALL, seed, 600)).err()
        })
        .unwrap();
    assert!(difference.to_string().contains("the model"), "{difference}");
}

/// A store that cannot count by any limit.
struct Unable;

fn refuse<T>() -> Result<T, StoreError> {
    Err(StoreError::Unsupported("it has no way to".to_owned()))
}

impl Store for Unable {
    type Kind = Asynchronous;

    async fn take(&self, _: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        refuse()
    }

    async fn take_many(&self, _: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        refuse()
    }

    async fn peek(&self, _: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        refuse()
    }

    async fn revert(&self, _: &Receipt) -> Result<(), StoreError> {
        refuse()
    }

    async fn refund(&self, _: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        refuse()
    }

    async fn reset(&self, _: &[Hit<'_>]) -> Result<(), StoreError> {
        refuse()
    }
}

/// To ask it again changes nothing, so this is no failure that a store may have.
#[test]
fn a_store_that_cannot_count_by_what_it_is_held_to_is_found_out() {
    for seed in 0..20 {
        let held = block_on(hold(&Unable, &ManualClock::default(), &Algorithm::ALL, seed, 600));
        let difference = held.unwrap_err().to_string();
        assert!(
            difference.ends_with("does not support this limit: it has no way to"),
            "{difference}"
        );
    }
}
