//! Measures the decision times of several contenders. They take turns in each round, so noise affects all of them
//! equally, and the result is the median of the rounds.

use std::hint::black_box;
use std::panic::resume_unwind;
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

/// A function that runs one turn of a contender in one thread. The argument is the seed with which the function samples
/// keys. Returns the number of denied decisions.
pub type TurnFn<'a> = dyn Fn(u64) -> usize + Sync + 'a;

/// Measures all contenders in rounds. In a round, all contenders receive the same seeds and thus sample the same keys.
/// Returns one result for each contender, in the order of `contenders`.
pub fn run_interleaved(plan: MeasurePlan, contenders: &[&TurnFn<'_>]) -> Vec<Timing> {
    interleave_rounds(plan, contenders, |round, contender| {
        measure_round_of_contender(plan, round, contender)
    })
}

/// A function that runs one turn of a contender in one thread and measures the time of its decisions itself, so that
/// it can prepare them without being measured. The arguments are the number of the round and the number of the thread.
pub type TimedTurnFn<'a> = dyn Fn(u64, usize) -> Timing + Sync + 'a;

/// Measures all contenders in rounds, as [`run_interleaved`] does. The result of a round is the mean of the threads.
pub fn run_timed_turns_interleaved(
    plan: MeasurePlan,
    contenders: &[&TimedTurnFn<'_>],
) -> Vec<Timing> {
    interleave_rounds(plan, contenders, |round, turn| {
        let turns: Vec<Timing> = thread::scope(|scope| {
            let spawn = |thread| scope.spawn(move || turn(round, thread));
            let threads: Vec<_> = (0..plan.threads).map(spawn).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| resume_unwind(panic))
            };
            threads.into_iter().map(join).collect()
        });
        let threads = turns.len() as f64;
        Timing {
            ns: turns.iter().map(|turn| turn.ns).sum::<f64>() / threads,
            denied: turns.iter().map(|turn| turn.denied).sum::<f64>() / threads,
        }
    })
}

/// Measures each contender once in each round. Returns one result for each contender, in the order of `contenders`.
fn interleave_rounds<T: Copy>(
    plan: MeasurePlan,
    contenders: &[T],
    measure_round: impl Fn(u64, T) -> Timing,
) -> Vec<Timing> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for (timings, contender) in rounds.iter_mut().zip(contenders) {
            timings.push(measure_round(round as u64, *contender));
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

/// Returns the median time of the rounds, and their mean share of denials. There must be at least one round.
fn summarize_rounds(mut rounds: Vec<Timing>) -> Timing {
    rounds.sort_unstable_by(|one, other| one.ns.total_cmp(&other.ns));
    let denied: f64 = rounds.iter().map(|round| round.denied).sum();
    Timing { ns: rounds[rounds.len() / 2].ns, denied: denied / rounds.len() as f64 }
}

/// Reads the clock `times` times, in the same way as slidegate's `SystemClock` does. Always returns 0, because a turn
/// must return a number of denials.
pub fn read_clock(clock: &quanta::Clock, times: usize) -> usize {
    let started = clock.raw();
    for _ in 0..times {
        black_box(clock.delta_as_nanos(started, clock.raw()) / 1_000);
    }
    0
}
