//! Compares limiters with a peer. The bytes of a key are in the cache when its decision begins, only decisions are
//! measured, and each case has only allowed or only denied requests.

use std::error::Error;
use std::hint::spin_loop;
use std::time::Duration;

use quanta::Instant;
use slidegate::MIN_WINDOW;

use crate::block_limiters::{BlockLimiter, BoxedLimiters};
use crate::key_blocks::{BlockKey, KeyPasses, MAX_KEYS_PER_BLOCK};
use crate::measure::{MeasurePlan, TimedTurnFn, Timing, run_timed_turns_interleaved};
use crate::part::{Effort, ReportPart};
use crate::table::{MarkdownTable, format_with_thousands_separators};
use crate::targets::BenchTarget;

/// The maximum number of decisions per thread and turn. The turns are short, because the speed of the machine changes
/// within a second.
const DECISIONS: usize = 400_000;

/// The number of rounds.
const ROUNDS: usize = 15;

/// The maximum number of pauses in a turn.
const MAX_PAUSES_PER_TURN: usize = 20;

/// The numbers of threads with which each case is measured.
const THREAD_COUNTS: [usize; 2] = [1, 2];

/// The window with which keys stay full: so long that no unit becomes available again during a benchmark.
const WINDOW_OF_FULL_KEYS: Duration = Duration::from_secs(7 * 86_400);

/// The max with which keys never become full: more than the number of requests in a benchmark.
const MAX_OF_NEVER_FULL_KEYS: u32 = 100_000_000;

/// The window per key with which 100 units are never used up: even fast limiters need more than a hundredth of it for a
/// pass over all keys.
const WINDOW_PER_KEY: Duration = Duration::from_nanos(400);

/// The window per key of a limit of one unit. Many keys are in the store, and the pauses are short.
const WINDOW_PER_KEY_WITH_ONE_UNIT: Duration = Duration::from_nanos(50);

/// The largest error of a limiter's clock: a `CoarseClock` is late by up to one tick of the kernel, at most 10 ms.
const MAX_CLOCK_ERROR: Duration = Duration::from_millis(11);

/// The largest share of decisions that may differ from the expected decision. Decisions of threads that were
/// interrupted may differ.
const MAX_UNEXPECTED_SHARE: f64 = 0.001;

/// The keys and the limit of a measurement, with which all requests are allowed or all are denied.
#[derive(Clone, Copy, Debug)]
pub struct ComparisonCase {
    /// The number of keys.
    pub key_count: u32,
    /// The maximum number of units per key and window.
    pub max: u32,
    /// The length of the window.
    pub window: Duration,
    /// Whether all requests are allowed. If not, all are denied.
    is_allowed: bool,
    /// Whether a thread pauses after `max` passes over its keys, until all charges have left the window.
    has_pauses: bool,
    /// The number of charges of each key before the measurement, and the units of each of them.
    initial_charges: (u32, u32),
}

impl ComparisonCase {
    /// Creates a case whose requests are denied: every key is full, and stays full because the window is a week.
    pub fn new_denied(key_count: u32, max: u32) -> Self {
        let (window, initial_charges) = (WINDOW_OF_FULL_KEYS, (1, max));
        Self { key_count, max, window, is_allowed: false, has_pauses: false, initial_charges }
    }

    /// Creates a case whose requests are allowed: the window is so short that units become available again in time. For
    /// a limit of one unit, and for a window of the minimum length, the threads pause until this has happened.
    pub fn new_allowed(key_count: u32, max: u32) -> Self {
        let per_key = if max == 1 { WINDOW_PER_KEY_WITH_ONE_UNIT } else { WINDOW_PER_KEY };
        let window = (per_key * key_count).max(MIN_WINDOW);
        Self {
            window,
            is_allowed: true,
            has_pauses: max == 1 || window == MIN_WINDOW,
            initial_charges: (1, 1),
            ..Self::new_denied(key_count, max)
        }
    }

    /// Creates a case whose requests are allowed because max is never reached. All charges stay in the window, which is
    /// a week.
    pub fn new_never_full(key_count: u32) -> Self {
        let denied = Self::new_denied(key_count, MAX_OF_NEVER_FULL_KEYS);
        Self { is_allowed: true, initial_charges: (1, 1), ..denied }
    }

    /// Returns the allowed and the denied case for each of these limits.
    pub fn all_for_limits(key_count: u32, limits: &[u32]) -> Vec<Self> {
        let cases =
            |max: &u32| [Self::new_allowed(key_count, *max), Self::new_denied(key_count, *max)];
        limits.iter().flat_map(cases).collect()
    }

    /// Returns the case with keys that are filled by one charge for each unit, for limiters that keep every charge.
    #[must_use]
    pub fn filled_by_single_units(self) -> Self {
        Self { initial_charges: (self.max, 1), ..self }
    }

    /// Returns the case with keys that are filled by `charges` charges of `units` units each.
    #[must_use]
    pub fn filled_by_charges(self, charges: u32, units: u32) -> Self {
        Self { initial_charges: (charges, units), ..self }
    }

    /// Charges the keys of a limiter before the measurement.
    fn charge_all_keys<K: BlockKey>(&self, limiter: &dyn BlockLimiter<K>) -> Result<(), String> {
        let (charges, units) = self.initial_charges;
        let mut keys = KeyPasses::<K>::new(0..self.key_count, 0);
        for _ in 0..charges {
            loop {
                let block = keys.next_block(MAX_KEYS_PER_BLOCK);
                if block.is_empty() {
                    break;
                }
                if !block.iter().all(|key| limiter.charge_units(key, units)) {
                    return Err(format!("{self:?}: a key that is not full denied a charge"));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of decisions per thread and turn. Turns with many pauses are shorter.
    fn decisions_per_turn(&self, effort: Effort, threads: usize) -> usize {
        let decisions = effort.pick(DECISIONS, DECISIONS / 4);
        let between_pauses = self.key_count as usize / threads * self.max as usize;
        if self.has_pauses {
            decisions.min(MAX_PAUSES_PER_TURN * between_pauses)
        } else {
            decisions
        }
    }

    /// Makes decisions about the keys of one of several threads. Each thread has its own part of the keys, so that the
    /// number of charges of each key is known. Returns the median time of the blocks, because a block that is
    /// interrupted by another program takes a hundred times as long as the others.
    fn run_turn<K: BlockKey>(
        &self,
        limiter: &dyn BlockLimiter<K>,
        plan: MeasurePlan,
        round: u64,
        thread: usize,
    ) -> Timing {
        let keys_per_thread = self.key_count / plan.threads as u32;
        let first_key = thread as u32 * keys_per_thread;
        let mut keys = KeyPasses::<K>::new(first_key..first_key + keys_per_thread, round);
        let (mut decisions_left, mut passes, mut denied) = (plan.decisions, 0, 0);
        let mut ns_of_blocks = Vec::new();
        self.pause_until_charges_expire();
        while decisions_left > 0 {
            let block = keys.next_block(decisions_left);
            if block.is_empty() {
                passes += 1;
                if passes % self.max == 0 {
                    self.pause_until_charges_expire();
                }
                continue;
            }
            let started = Instant::now();
            denied += limiter.count_denied(block);
            let elapsed = started.elapsed();
            ns_of_blocks.push(elapsed.as_nanos() as f64 / block.len() as f64);
            decisions_left -= block.len();
        }
        ns_of_blocks.sort_unstable_by(f64::total_cmp);
        Timing {
            ns: ns_of_blocks[ns_of_blocks.len() / 2],
            denied: denied as f64 / plan.decisions as f64,
        }
    }

    /// Waits for two windows if the case has pauses. `sliding_counter` counts a charge until the end of the next window.
    /// Does not sleep, because other programs would replace the content of the caches.
    fn pause_until_charges_expire(&self) {
        if self.has_pauses {
            let started = Instant::now();
            while started.elapsed() < 2 * self.window + MAX_CLOCK_ERROR {
                spin_loop();
            }
        }
    }

    /// Measures the limiters with this number of threads. All their keys must have been charged.
    fn measure<K: BlockKey>(
        &self,
        effort: Effort,
        threads: usize,
        limiters: &[Box<dyn BlockLimiter<K>>],
    ) -> Result<Vec<Timing>, String> {
        let decisions = self.decisions_per_turn(effort, threads);
        let plan = MeasurePlan { rounds: effort.pick(ROUNDS, ROUNDS / 5), threads, decisions };
        let run_turn = |limiter| move |round, thread| self.run_turn(limiter, plan, round, thread);
        let turns: Vec<_> = limiters.iter().map(|limiter| run_turn(&**limiter)).collect();
        let turns: Vec<_> = turns.iter().map(|turn| turn as &TimedTurnFn<'_>).collect();
        let timings = run_timed_turns_interleaved(plan, &turns);
        let expected_denied = if self.is_allowed { 0.0 } else { 1.0 };
        match timings
            .iter()
            .find(|timing| (timing.denied - expected_denied).abs() > MAX_UNEXPECTED_SHARE)
        {
            Some(timing) => Err(format!("{self:?}: the share of denials is {}", timing.denied)),
            None => Ok(timings),
        }
    }
}

/// A table of the decision times of limiters, which are compared with their peer.
pub struct PeerComparison<K> {
    /// The names of the limiters. The first one is the peer.
    names: Vec<&'static str>,
    /// A function that creates the limiters for a case, in the order of `names`.
    new_limiters: NewLimitersFn<K>,
    table: MarkdownTable,
}

/// A function that creates limiters without charges.
pub type NewLimitersFn<K> = fn(&ComparisonCase) -> Result<BoxedLimiters<K>, Box<dyn Error>>;

impl<K: BlockKey> PeerComparison<K> {
    /// Creates an empty table. `names` are the names of the limiters that `new_limiters` creates; the first limiter is
    /// the peer, and each later limiter may have a target in each case.
    pub fn new(names: &[&'static str], new_limiters: NewLimitersFn<K>) -> Self {
        let mut columns = ["keys", "max", "requests", "threads"].map(str::to_owned).to_vec();
        for (nth, name) in names.iter().enumerate() {
            columns.push(format!("{name}, ns"));
            if nth > 0 {
                columns.push("ratio".to_owned());
            }
        }
        columns.push("target".to_owned());
        Self { names: names.to_vec(), new_limiters, table: MarkdownTable::new(columns) }
    }

    /// Measures a case with each number of threads, records the results for the targets, and adds them to the table. The
    /// first target is for the second limiter, and so on.
    ///
    /// # Errors
    /// If a limiter cannot be created, or a decision is not as expected.
    pub fn measure(
        &mut self,
        effort: Effort,
        case: &ComparisonCase,
        targets: &[&BenchTarget],
        part: &mut ReportPart,
    ) -> Result<(), Box<dyn Error>> {
        let keys = format_with_thousands_separators(case.key_count as usize);
        let requests = if case.is_allowed { "allowed" } else { "denied" };
        part.progress.begin_step(&format!(
            "{}, {keys} {}, max {}, {requests}",
            self.names.join(" and "),
            K::NAME,
            case.max
        ));
        let limiters = (self.new_limiters)(case)?;
        for limiter in &limiters {
            case.charge_all_keys(&**limiter)?;
        }
        for threads in THREAD_COUNTS {
            let timings = case.measure(effort, threads, &limiters)?;
            let mut row = vec![
                keys.clone(),
                case.max.to_string(),
                requests.to_owned(),
                threads.to_string(),
                format!("{:.1}", timings[0].ns),
            ];
            for (nth, timing) in timings.iter().enumerate().skip(1) {
                let ratio = timing.ns / timings[0].ns;
                row.push(format!("{:.1}", timing.ns));
                match targets.get(nth - 1) {
                    Some(target) if !target.bound.is_met_by(ratio) => {
                        row.push(format!("**{ratio:.2}**"));
                    }
                    _ => row.push(format!("{ratio:.2}")),
                }
                if let Some(target) = targets.get(nth - 1) {
                    part.record_target(target, ratio);
                }
            }
            let bounds: Vec<String> =
                targets.iter().map(|target| target.bound.to_string()).collect();
            row.push(bounds.join(", "));
            self.table.add_row(row);
        }
        Ok(())
    }

    /// Returns the table with all measured cases.
    pub fn into_table(self) -> MarkdownTable {
        self.table
    }
}
