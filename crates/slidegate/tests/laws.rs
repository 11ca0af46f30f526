//! The promises, held by the memory store and by the awkward one.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::time::Duration;

use slidegate::testkit::awkward::{AwkwardStore, Faults};
use slidegate::testkit::block_on;
use slidegate::testkit::laws;
use slidegate::{Algorithm, Align, Limit, ManualClock, MemoryStore, Quota};

const WINDOWS: [Duration; 5] = [
    Duration::from_millis(100),
    Duration::from_secs(1),
    Duration::from_secs(60),
    Duration::from_secs(3_600),
    Duration::from_secs(7 * 86_400),
];

fn limits() -> Vec<Limit> {
    let algorithms = [
        Algorithm::SlidingLog,
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::SlidingWindow,
        Algorithm::FixedWindow { align: Align::Key },
        Algorithm::FixedWindow { align: Align::Clock },
        Algorithm::TokenBucket { burst: None },
        Algorithm::TokenBucket { burst: Some(3) },
    ];
    let mut limits = Vec::new();
    for window in WINDOWS {
        for max in [2, 10, 1_000] {
            let quota = Quota::new(max, window).unwrap();
            limits.extend(algorithms.map(|algorithm| Limit::new(quota, algorithm).unwrap()));
        }
    }
    limits
}

/// Runs a law for every limit and some seeds, each on an empty store.
macro_rules! hold {
    ($law:path, seeds: $seeds:expr) => {
        for limit in limits() {
            for seed in 0..$seeds {
                let clock = ManualClock::default();
                block_on($law(&MemoryStore::with(clock.clone(), 100), &clock, &limit, seed));
                let awkward = AwkwardStore::new(&clock, 2, Faults::default(), seed);
                block_on($law(&awkward, &clock, &limit, seed));
            }
        }
    };
    ($law:path) => {
        for limit in limits() {
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
fn give_back_undoes_exactly_its_charge() {
    hold!(laws::give_back_undoes_its_charge, seeds: 10);
}

#[test]
fn the_order_of_limits_and_rules_changes_no_decision() {
    let limits: Vec<Limit> = limits().into_iter().step_by(8).collect();
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
