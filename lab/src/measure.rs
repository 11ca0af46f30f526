//! Medians of rounds in which all contenders take turns, so that a noisy minute hits them all alike.

use std::hint::black_box;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How much is measured.
#[derive(Clone, Copy)]
pub struct Plan {
    /// How often each contender has its turn.
    pub rounds: usize,
    /// Threads that decide at once.
    pub threads: usize,
    /// Decisions of each thread in a round.
    pub decisions: usize,
}

/// The rounds of one contender.
#[derive(Clone, Copy)]
pub struct Timing {
    /// What a decision takes in its thread, in nanoseconds: the median of the rounds.
    pub ns: f64,
    /// The share of all decisions that were denied.
    pub denied: f64,
}

/// A contender's turn in one thread: makes its decisions, drawn from this seed; how many were denied.
pub type Turn<'a> = dyn Fn(u64) -> usize + Sync + 'a;

/// What was measured of each contender. All decide the same draws.
pub fn interleaved(plan: Plan, contenders: &[&Turn<'_>]) -> Vec<Timing> {
    let mut rounds = vec![Vec::new(); contenders.len()];
    for round in 0..plan.rounds {
        for (timings, contender) in rounds.iter_mut().zip(contenders) {
            timings.push(time(plan, round as u64, contender));
        }
    }
    rounds.into_iter().map(summary).collect()
}

fn time(plan: Plan, round: u64, turn: &Turn<'_>) -> Timing {
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

/// The median time and the mean share of denials. There is at least one round.
fn summary(mut rounds: Vec<Timing>) -> Timing {
    rounds.sort_unstable_by(|one, other| one.ns.total_cmp(&other.ns));
    let denied: f64 = rounds.iter().map(|round| round.denied).sum();
    Timing { ns: rounds[rounds.len() / 2].ns, denied: denied / rounds.len() as f64 }
}

/// Reads the clock so many times, as slidegate's `SystemClock` does. Denies nothing.
pub fn read_clock(clock: &quanta::Clock, times: usize) -> usize {
    let started = clock.raw();
    for _ in 0..times {
        black_box(clock.delta_as_nanos(started, clock.raw()) / 1_000);
    }
    0
}
