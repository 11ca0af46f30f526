//! Medians of rounds in which all contenders take turns, so that noise affects all of them equally.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The extent of a measurement.
#[derive(Clone, Copy)]
pub struct MeasurePlan {
    /// The number of turns of each contender.
    pub rounds: usize,
    /// The number of concurrent threads.
    pub threads: usize,
    /// Decisions per thread and round.
    pub decisions: usize,
}

/// The result of one contender.
#[derive(Clone, Copy)]
pub struct Timing {
    /// The time of a decision in its thread, in nanoseconds: the median of the rounds.
    pub ns: f64,
    /// The share of all decisions that were denied.
    pub denied: f64,
}

/// One turn of a contender in one thread: makes decisions on keys sampled with this seed, and returns the number of
/// denials.
pub type TurnFn<'a> = dyn Fn(u64) -> usize + Sync + 'a;

/// Measures all contenders with the same sampled keys.
pub fn run_interleaved(plan: MeasurePlan, contenders: &[&TurnFn<'_>]) -> Vec<Timing> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for (timings, contender) in rounds.iter_mut().zip(contenders) {
            timings.push(time_turn(plan, round as u64, contender));
        }
    }
    rounds.into_iter().map(summarize).collect()
}

fn time_turn(plan: MeasurePlan, round: u64, turn: &TurnFn<'_>) -> Timing {
    let denied = AtomicUsize::new(0);
    let started = quanta::Instant::now();
    thread::scope(|scope| {
        for thread in 0..plan.threads as u64 {
            let seed = (round << 8) | thread;
            let denied = &denied;
            scope.spawn(move || denied.fetch_add(turn(seed), Ordering::Relaxed));
        }
    });
    let ns = started.elapsed().as_nanos() as f64 / plan.decisions as f64;
    let denied = denied.into_inner() as f64 / (plan.decisions * plan.threads) as f64;
    Timing { ns, denied }
}

/// Returns the median time and the mean share of denials. There must be at least one round.
fn summarize(mut rounds: Vec<Timing>) -> Timing {
    rounds.sort_unstable_by(|one, other| one.ns.total_cmp(&other.ns));
    let denied: f64 = rounds.iter().map(|round| round.denied).sum();
    Timing { ns: rounds[rounds.len() / 2].ns, denied: denied / rounds.len() as f64 }
}

/// Reads the clock `times` times, as slidegate's `SystemClock` does. Returns 0, since nothing is denied.
pub fn read_clock(clock: &quanta::Clock, times: usize) -> usize {
    let started = clock.raw();
    for _ in 0..times {
        black_box(clock.delta_as_nanos(started, clock.raw()) / 1_000);
    }
    0
}
