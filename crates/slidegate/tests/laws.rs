//! The promises, held by the memory store and by the awkward one.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use slidegate::testkit::awkward::{AwkwardStore, Faults};
use slidegate::testkit::block_on;
use slidegate::testkit::laws;
use slidegate::{Limit, ManualClock, MemoryStore};

/// Runs a law for every limit and some seeds, each on an empty store.
macro_rules! hold {
    ($law:path, seeds: $seeds:expr) => {
        for limit in laws::limits() {
            for seed in 0..$seeds {
                let clock = ManualClock::default();
                block_on($law(&MemoryStore::with(clock.clone(), 100), &clock, &limit, seed));
                let awkward = AwkwardStore::new(&clock, 2, Faults::default(), seed);
                block_on($law(&awkward, &clock, &limit, seed));
            }
        }
    };
    ($law:path) => {
        for limit in laws::limits() {
            let clock = ManualClock::default();
            block_on($law(&MemoryStore::with(clock.clone(), 100), &clock, &limit));
            let awkward = AwkwardStore::new(&clock, 2, Faults::default(), 0);
            block_on($law(&awkward, &clock, &limit));
        }
    };
}

#[test]
fn never_above_the_bound_in_any_window() {
    hold!(laws::never_above_the_bound, seeds: 10);
}

#[test]
fn retry_after_and_reset_after_are_exact() {
    hold!(laws::waits_are_exact, seeds: 10);
}

#[test]
fn what_never_fits_never_waits() {
    hold!(laws::what_never_fits_never_waits);
}

#[test]
fn a_denial_changes_nothing() {
    hold!(laws::a_denial_changes_nothing);
}

#[test]
fn debts_are_paid_first() {
    hold!(laws::debts_are_paid_first, seeds: 10);
}

#[test]
fn give_back_undoes_exactly_its_charge() {
    hold!(laws::give_back_undoes_its_charge, seeds: 10);
}

#[test]
fn a_refund_makes_room_for_exactly_as_much() {
    hold!(laws::a_refund_makes_room_for_as_much, seeds: 10);
}

#[test]
fn never_above_the_bound_in_any_window_but_for_what_is_refunded() {
    hold!(laws::never_above_the_bound_without_refunds, seeds: 10);
}

#[test]
fn the_order_of_limits_and_rules_changes_no_decision() {
    let limits: Vec<Limit> = laws::limits().into_iter().step_by(8).collect();
    for seed in 0..50 {
        let clock = ManualClock::default();
        let store = || MemoryStore::with(clock.clone(), 1_000);
        block_on(laws::the_order_of_hits_is_nothing((&store(), &store()), &clock, &limits, seed));
        let awkward = || AwkwardStore::new(&clock, 3, Faults::default(), seed);
        block_on(laws::the_order_of_hits_is_nothing(
            (&awkward(), &awkward()),
            &clock,
            &limits,
            seed,
        ));
    }
}
