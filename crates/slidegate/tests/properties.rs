//! The promises, held by the memory store and by the awkward one.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::testkit::properties;
use slidegate::{Limit, ManualClock, MemoryStore};

/// Runs a law for every limit and some seeds, each on an empty store.
macro_rules! hold {
    ($law:path, seeds: $seeds:expr) => {
        for limit in properties::limits() {
            for seed in 0..$seeds {
                let clock = ManualClock::default();
                block_on($law(&MemoryStore::with_clock(clock.clone(), 100), &clock, &limit, seed));
                let faulty = FaultyStore::new(&clock, 2, Faults::default(), seed);
                block_on($law(&faulty, &clock, &limit, seed));
            }
        }
    };
    ($law:path) => {
        for limit in properties::limits() {
            let clock = ManualClock::default();
            block_on($law(&MemoryStore::with_clock(clock.clone(), 100), &clock, &limit));
            let faulty = FaultyStore::new(&clock, 2, Faults::default(), 0);
            block_on($law(&faulty, &clock, &limit));
        }
    };
}

#[test]
fn never_above_the_bound_in_any_window() {
    hold!(properties::units_stay_below_bound, seeds: 10);
}

#[test]
fn retry_after_and_reset_after_are_exact() {
    hold!(properties::retry_after_is_exact, seeds: 10);
}

#[test]
fn cost_above_max_has_no_retry_after() {
    hold!(properties::cost_above_max_has_no_retry_after);
}

#[test]
fn denial_charges_nothing() {
    hold!(properties::denial_charges_nothing);
}

#[test]
fn debts_are_paid_first() {
    hold!(properties::debts_are_paid_first, seeds: 10);
}

#[test]
fn give_back_undoes_exactly_its_charge() {
    hold!(properties::revert_undoes_its_charge, seeds: 10);
}

#[test]
fn a_refund_makes_room_for_exactly_as_much() {
    hold!(properties::refund_frees_as_many_units, seeds: 10);
}

#[test]
fn never_above_the_bound_in_any_window_but_for_what_is_refunded() {
    hold!(properties::units_stay_below_bound_without_refunds, seeds: 10);
}

#[test]
fn the_order_of_limits_and_rules_changes_no_decision() {
    let limits: Vec<Limit> = properties::limits().into_iter().step_by(8).collect();
    for seed in 0..50 {
        let clock = ManualClock::default();
        let store = || MemoryStore::with_clock(clock.clone(), 1_000);
        block_on(properties::order_of_hits_is_irrelevant(
            (&store(), &store()),
            &clock,
            &limits,
            seed,
        ));
        let faulty = || FaultyStore::new(&clock, 3, Faults::default(), seed);
        block_on(properties::order_of_hits_is_irrelevant(
            (&faulty(), &faulty()),
            &clock,
            &limits,
            seed,
        ));
    }
}
