//! Searches for the sequence of requests with which each algorithm allows the most units in a window.
//!
//! A hill climb changes times, costs and reverts at random, and keeps a change if the worst window does not become
//! smaller. It is not limited to the traffic for which an algorithm was designed. It cannot prove a bound, but it can
//! refute one.
#![allow(clippy::unwrap_used, reason = "a test with a wrong setup must fail")]

use std::time::Duration;

use fastrand::Rng;
use lab::accuracy::{MEASURED_ALGORITHMS, MIDNIGHT_US, never_exceeds_max, proven_max_units};
use lab::exact_log::ExactLog;
use slidegate::clock::Clock;
use slidegate::store::{Adjustment, Hit, Key, Receipt, Scope};
use slidegate::{Algorithm, Align, Limit, ManualClock, MemoryStore, Quota, SyncStore, Timestamp};

/// The maximums and the windows of the searched limits. Limits up to and above each resolution, and windows with ticks
/// of one microsecond and of a millisecond.
const MAXES_AND_WINDOWS: [(u64, Duration); 4] = [
    (10, Duration::from_secs(10)),
    (100, Duration::from_secs(10)),
    (1_000, Duration::from_secs(10)),
    (100, Duration::from_hours(1)),
];

/// The number of searches for each limit, each of which begins with another random sequence.
const SEARCHES_PER_LIMIT: u64 = 4;

/// The number of steps of a random sequence.
const STEPS_PER_SEQUENCE: usize = 60;

/// The largest number of changes between a sequence and the next one.
const MAX_CHANGES: usize = 4;

/// One step of a sequence: a wait, and then a request or a revert.
#[derive(Clone, Copy)]
struct Step {
    wait: Wait,
    action: Action,
}

#[derive(Clone, Copy)]
enum Wait {
    Micros(u64),
    /// The time until the retry time of the latest denial; zero if this time has passed.
    UntilFit,
    /// The time until one microsecond before the retry time of the latest denial.
    UntilAlmostFit,
}

#[derive(Clone, Copy)]
enum Action {
    /// A request with this cost.
    Request(u64),
    /// A revert of an allowed request. 0 is the latest request that was not reverted.
    Revert(usize),
}

/// Returns the largest number of units in a window that all searches for a limit find. Each search evaluates
/// `sequences` sequences.
fn find_worst_window(limit: &Limit, sequences: usize) -> u64 {
    let search = |seed| {
        let mut rng = Rng::with_seed(seed);
        let mut best: Vec<Step> =
            (0..STEPS_PER_SEQUENCE).map(|_| draw_step(limit, &mut rng)).collect();
        let mut best_units = max_units_in_window(limit, &best);
        for _ in 1..sequences {
            let changed = change_sequence(limit, &best, &mut rng);
            let units = max_units_in_window(limit, &changed);
            // Changes without an effect are kept, so that the search leaves plateaus.
            if units >= best_units {
                (best, best_units) = (changed, units);
            }
        }
        best_units
    };
    (0..SEARCHES_PER_LIMIT).map(search).max().unwrap_or(0)
}

/// Returns a copy of a sequence in which some steps are replaced, added, removed or repeated.
fn change_sequence(limit: &Limit, steps: &[Step], rng: &mut Rng) -> Vec<Step> {
    let mut steps = steps.to_vec();
    for _ in 0..rng.usize(1..=MAX_CHANGES) {
        let (at, new) = (rng.usize(..steps.len()), draw_step(limit, rng));
        match rng.u32(..8) {
            0..=1 => steps[at].wait = new.wait,
            2..=3 => steps[at].action = new.action,
            4 => steps[at] = new,
            5 if steps.len() < 2 * STEPS_PER_SEQUENCE => steps.insert(at, new),
            6 if steps.len() < 2 * STEPS_PER_SEQUENCE => steps.insert(at, steps[at]),
            _ if steps.len() > STEPS_PER_SEQUENCE / 2 => drop(steps.remove(at)),
            _ => steps[at] = new,
        }
    }
    steps
}

fn draw_step(limit: &Limit, rng: &mut Rng) -> Step {
    let max = limit.quota().max();
    let action = match rng.u32(..10) {
        0 => Action::Revert(rng.usize(..8)),
        1..=3 => Action::Request(1),
        // The units of a full entry of each resolution, and one more.
        4 => Action::Request(max.div_ceil([8, 32, 128][rng.usize(..3)]) + rng.u64(..=1)),
        5 => Action::Request(max),
        6 => Action::Request(rng.u64(1..=max.min(4))),
        _ => Action::Request(rng.u64(1..=max)),
    };
    Step { wait: draw_wait(limit.quota().window().as_micros() as u64, rng), action }
}

fn draw_wait(window_us: u64, rng: &mut Rng) -> Wait {
    match rng.u32(..10) {
        0..=1 => Wait::Micros(rng.u64(..=1)),
        2 => Wait::Micros(rng.u64(..=window_us)),
        3 => Wait::Micros(window_us - rng.u64(..=1)),
        // Fractions of the window of every size, also the length of a bucket and of an entry.
        4..=5 => Wait::Micros(window_us / rng.u64(1..=200)),
        6 => Wait::Micros((window_us >> rng.u32(..20)) + rng.u64(..=1)),
        7..=8 => Wait::UntilFit,
        _ => Wait::UntilAlmostFit,
    }
}

/// Sends the requests of a sequence, and returns the largest number of units that a window contains. Reverted units do
/// not count.
fn max_units_in_window(limit: &Limit, steps: &[Step]) -> u64 {
    let clock = ManualClock::at(Timestamp::from_micros(MIDNIGHT_US));
    let store = MemoryStore::with_clock(clock.clone(), 1);
    let scope = Scope::new("lab", "search", "limit", &["key"]);
    let values = ["key".into()];
    let hit = |cost| Hit::new(Key::new(&scope, &values), limit, cost);
    // The times, units and receipts of the allowed requests that were not reverted.
    let mut allowed: Vec<(u64, u64, Receipt)> = Vec::new();
    let mut retry_at_us = 0;
    for step in steps {
        let now_us = clock.now().as_micros();
        let until = |at_us: u64| at_us.saturating_sub(now_us);
        let wait_us = match step.wait {
            Wait::Micros(us) => us,
            Wait::UntilFit => until(retry_at_us),
            Wait::UntilAlmostFit => until(retry_at_us).saturating_sub(1),
        };
        clock.advance(Duration::from_micros(wait_us));
        match step.action {
            Action::Request(cost) => {
                let result = store.charge(&[hit(cost)]);
                let now = clock.now();
                if result.allowed {
                    allowed.push((now.as_micros(), cost, result.receipt));
                } else if let Some(wait) = result.outcomes[0].retry_after() {
                    retry_at_us = now.after(wait).as_micros();
                }
            }
            Action::Revert(age) => {
                if let Some(at) = allowed.len().checked_sub(age + 1) {
                    let (_, _, receipt) = allowed.remove(at);
                    store.adjust(&receipt, Adjustment::Revert);
                }
            }
        }
    }
    let mut log = ExactLog::new(limit.quota().window().as_micros() as u64);
    allowed.iter().for_each(|(at_us, units, _)| log.charge(*at_us, *units));
    log.max_units()
}

fn new_limit(max: u64, window: Duration, algorithm: Algorithm) -> Limit {
    Limit::new(Quota::new(max, window).unwrap(), algorithm).unwrap()
}

#[test]
fn search_finds_worst_case_of_algorithms_with_larger_bound() {
    for (algorithm, percent_of_bound) in [
        (Algorithm::FixedWindow { align: Align::Key }, 100),
        (Algorithm::SlidingCounter, 85),
        (Algorithm::TokenBucket { burst: None, max_debt: None }, 85),
    ] {
        let limit = new_limit(20, Duration::from_secs(10), algorithm);
        let (units, bound) = (find_worst_window(&limit, 500), proven_max_units(&limit));
        assert!(units <= bound && units * 100 >= bound * percent_of_bound, "{limit}: {units}");
    }
}

#[test]
fn search_finds_exactly_max_with_strict_algorithms() {
    for algorithm in MEASURED_ALGORITHMS.into_iter().filter(|other| never_exceeds_max(*other)) {
        for (max, window) in MAXES_AND_WINDOWS {
            let limit = new_limit(max, window, algorithm);
            assert_eq!(find_worst_window(&limit, 300), max, "{limit}");
        }
    }
}

#[test]
fn search_has_same_result_in_every_run() {
    let limit = new_limit(100, Duration::from_secs(10), Algorithm::SlidingCounter);
    assert_eq!(find_worst_window(&limit, 100), find_worst_window(&limit, 100));
}
