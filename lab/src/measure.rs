//! Measures the decision times of several contenders. They take turns in each round, so noise affects all of them
//! equally, and the result is the median of the rounds.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// The number of rounds, threads and decisions of a measurement.
#[derive(Clone, Copy)]
pub struct MeasurePlan {
    /// The number of rounds. Each contender has one turn in each round.
    pub rounds: usize,
    /// The number of threads that make decisions concurrently in a turn.
    pub threads: usize,
    /// The number of decisions per thread in a turn.
    pub decisions: usize,
}

/// The time and the denials of one contender.
#[derive(Clone, Copy)]
pub struct Timing {
    /// The time of one decision of a thread, in nanoseconds. In a final result it is the median of the rounds.
    pub ns: f64,
    /// The share of decisions that were denied, from 0 to 1.
    pub denied: f64,
}

/// A function that runs one turn of a contender in one thread. It makes decisions on keys that are sampled with the
/// seed in its argument. Returns the number of denials.
pub type TurnFn<'a> = dyn Fn(u64) -> usize + Sync + 'a;

/// Measures all contenders in turns, all with the same seeds and so the same sampled keys. Returns one result for each
/// contender, in order.
pub fn run_interleaved(plan: MeasurePlan, contenders: &[&TurnFn<'_>]) -> Vec<Timing> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for (timings, contender) in rounds.iter_mut().zip(contenders) {
            timings.push(measure_round_of_contender(plan, round as u64, contender));
        }
    }
    rounds.into_iter().map(summarize_rounds).collect()
}

fn measure_round_of_contender(plan: MeasurePlan, round: u64, turn: &TurnFn<'_>) -> Timing {
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

/// Returns the median time and the mean share of denials of the rounds. There must be at least one round.
fn summarize_rounds(mut rounds: Vec<Timing>) -> Timing {
    rounds.sort_unstable_by(|one, other| one.ns.total_cmp(&other.ns));
    let denied: f64 = rounds.iter().map(|round| round.denied).sum();
    Timing { ns: rounds[rounds.len() / 2].ns, denied: denied / rounds.len() as f64 }
}

/// Reads the clock `times` times, in the same way as slidegate's `SystemClock` does. Returns 0 as the number of
/// denials, so that it can be used in a turn.
pub fn read_clock(clock: &quanta::Clock, times: usize) -> usize {
    let started = clock.raw();
    for _ in 0..times {
        black_box(clock.delta_as_nanos(started, clock.raw()) / 1_000);
    }
    0
}
