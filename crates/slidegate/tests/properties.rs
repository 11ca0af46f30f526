//! Property tests. Each property is tested on the memory store, and on a faulty store with two slots.

use std::time::Duration;

use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::testkit::{block_on, permits, properties};
use slidegate::{Limit, ManualClock, MemoryStore, Timestamp};

/// Runs a property test for every limit, each time on an empty memory store and on an empty store with two slots. With
/// `seeds`, the test runs once per seed.
macro_rules! check_property {
    ($property:path, seeds: $seeds:expr) => {
        for limit in properties::limits() {
            for seed in 0..$seeds {
                let clock = ManualClock::default();
                block_on($property(
                    &MemoryStore::with_clock(clock.clone(), 100),
                    &clock,
                    &limit,
                    seed,
                ));
                let faulty = FaultyStore::new(&clock, 2, Faults::default(), seed);
                block_on($property(&faulty, &clock, &limit, seed));
            }
        }
    };
    ($property:path) => {
        for limit in properties::limits() {
            let clock = ManualClock::default();
            block_on($property(&MemoryStore::with_clock(clock.clone(), 100), &clock, &limit));
            let faulty = FaultyStore::new(&clock, 2, Faults::default(), 0);
            block_on($property(&faulty, &clock, &limit));
        }
    };
}

#[test]
fn units_in_window_stay_within_bound() {
    check_property!(properties::units_stay_below_bound, seeds: 10);
}

#[test]
fn retry_after_and_reset_after_are_exact() {
    check_property!(properties::retry_after_is_exact, seeds: 10);
}

#[test]
fn cost_above_max_has_no_retry_after() {
    check_property!(properties::cost_above_max_has_no_retry_after);
}

#[test]
fn free_units_are_exact_in_debt() {
    check_property!(properties::free_units_are_exact_in_debt);
}

#[test]
fn denial_charges_nothing() {
    check_property!(properties::denial_charges_nothing);
}

#[test]
fn counter_in_debt_denies_until_paid() {
    check_property!(properties::debts_are_paid_first, seeds: 10);
}

#[test]
fn revert_restores_state_before_charge() {
    check_property!(properties::revert_undoes_its_charge, seeds: 10);
}

#[test]
fn refund_frees_exactly_its_units() {
    check_property!(properties::refund_frees_as_many_units, seeds: 10);
}

#[test]
fn unrefunded_units_in_window_stay_within_bound() {
    check_property!(properties::units_stay_below_bound_without_refunds, seeds: 10);
}

#[test]
fn order_of_hits_does_not_change_decision() {
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

#[test]
fn calendar_periods_are_counted_separately() {
    for seed in 0..300 {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone(), 1_000);
        block_on(properties::calendar_periods_are_counted_separately(&store, &clock, seed));
    }
}

/// `SEEDS=100` runs 100 seeds for each limit.
#[test]
fn clock_steps_keep_bound_and_waits() {
    let seeds = std::env::var("SEEDS").map_or(10, |seeds| seeds.parse().unwrap());
    let permits = [1, 10].map(|max| Limit::concurrent(max, Duration::from_secs(60)).unwrap());
    for limit in properties::limits().into_iter().chain(permits) {
        for seed in 0..seeds {
            let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
            let store = MemoryStore::with_clock(clock.clone(), 100);
            block_on(properties::clock_steps_keep_bound_and_waits(&store, &clock, &limit, seed));
            let faulty = FaultyStore::new(&clock, 2, Faults::default(), seed);
            block_on(properties::clock_steps_keep_bound_and_waits(&faulty, &clock, &limit, seed));
        }
    }
}

#[test]
fn permits_end_in_time_after_clock_steps() {
    let clock = ManualClock::default();
    let store = MemoryStore::with_clock(clock.clone(), 100);
    block_on(properties::permits_end_in_time_after_clock_steps(&store, &clock));
}

#[test]
fn live_permits_stay_below_max() {
    for seed in 0..200 {
        let clock = ManualClock::default();
        let store = MemoryStore::with_clock(clock.clone(), 100);
        block_on(permits::permits_stay_below_max(&store, &clock, seed));
        let faulty = FaultyStore::new(&clock, 2, Faults::default(), seed);
        block_on(permits::permits_stay_below_max(&faulty, &clock, seed));
    }
}

/// Permits that are not released count like the charges of an exact log.
#[test]
fn unreleased_permits_count_for_time_to_live() {
    let ttls = [Duration::from_millis(100), Duration::from_secs(60), Duration::from_secs(86_400)];
    for (ttl, max) in ttls.into_iter().flat_map(|ttl| [2, 10, 1_000].map(|max| (ttl, max))) {
        let limit = Limit::concurrent(max, ttl).unwrap();
        let clock = ManualClock::default();
        let store = || MemoryStore::with_clock(clock.clone(), 100);
        for seed in 0..10 {
            block_on(properties::units_stay_below_bound(&store(), &clock, &limit, seed));
            block_on(properties::retry_after_is_exact(&store(), &clock, &limit, seed));
        }
        block_on(properties::cost_above_max_has_no_retry_after(&store(), &clock, &limit));
        block_on(properties::denial_charges_nothing(&store(), &clock, &limit));
    }
}
