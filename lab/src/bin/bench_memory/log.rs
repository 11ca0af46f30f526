//! Measures the time and the memory of exact logs, which keep the time of every charge. Each key has a limit of 100
//! charges.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use lab::block_limiters::{BoxedLimiters, QueueLimiter};
use lab::key_blocks::BlockKey;
use lab::logs::{self, LogContender, MAX, QueueLog, STEP_US, SlidegateLog};
use lab::measure::{MeasurePlan, Timing, TurnFn, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::peer_comparison::{ComparisonCase, PeerComparison};
use lab::rss;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Limit, Limiter, Quota};

/// The first argument of the child process that fills one log.
pub const CHILD_ARGUMENT: &str = "log-child";

/// The numbers of keys whose requests are all allowed or all denied.
const KEY_COUNTS: [u32; 2] = [1_000, 100_000];

const DECISIONS_PER_ROUND: usize = 1_000_000;

/// The number of keys in the measurements that have targets, and in the measurement of the memory.
const KEY_COUNT_FOR_TARGET: usize = 100_000;

const MAX_BYTES_PER_LOG_ENTRY: BenchTarget = BenchTarget {
    text: "sliding_log of 100, 100,000 full keys, bytes per entry",
    bound: TargetBound::AtMost(8.0),
    limited_by: "",
};

const MAX_TIME_RELATIVE_TO_QUEUE: BenchTarget = BenchTarget {
    text: "sliding_log of 100, 1,000 and 100,000 keys, time relative to a Mutex of VecDeque",
    bound: TargetBound::AtMost(1.0),
    limited_by: "by callgrind a denied decision takes 405 instructions and an allowed one 557 (lab/instructions.txt, \
        text keys), about 200 of them for the hash, the lookup and the clock, as with every algorithm; the rest is \
        spread evenly. In addition to the work of the queue it packs entries into half the bytes, returns the exact \
        retry delay and a receipt, and evicts expired states. Successful changes: the oldest and the newest entry in \
        the slot, a short path for the wait of one unit, and decisions in place (allowed 612 to 557 instructions, \
        denied 459 to 405).",
};

type ComparedSlidingLogs = [Box<dyn LogContender + Sync>; 2];

/// Measures the decision times of the logs in this process, and their memory in child processes.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    measure_allowed_and_denied(effort, part)?;
    measure_half_denied(effort, part)
}

/// Measures requests that are all allowed or all denied, with one thread and with two threads.
fn measure_allowed_and_denied(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let names = ["Mutex of VecDeque in a DashMap, foldhash", "slidegate sliding_log"];
    let mut comparison = PeerComparison::new(&names, new_limiters);
    part.progress.add_steps(2 * KEY_COUNTS.len());
    for keys in KEY_COUNTS {
        for case in ComparisonCase::all_for_limits(keys, &[MAX as u32]) {
            let case = case.filled_by_single_units();
            comparison.measure(effort, &case, &[&MAX_TIME_RELATIVE_TO_QUEUE], part)?;
        }
    }
    part.add_text(format!(
        "### Exact logs of {MAX}, allowed or denied, {}\n\nEach decision reads the clock.",
        u64::NAME
    ));
    part.add_table(&comparison.into_table());
    Ok(())
}

fn new_limiters(case: &ComparisonCase) -> Result<BoxedLimiters<u64>, Box<dyn Error>> {
    let limit = Limit::new(Quota::new(case.max.into(), case.window)?, Algorithm::SlidingLog)?;
    Ok(vec![Box::new(QueueLimiter::new(case.window)), Box::new(Limiter::new([limit])?)])
}

/// Measures full keys at twice the rate of their limit, with a manual clock, and the memory of the logs.
fn measure_half_denied(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] =
        effort.pick(&[1_000, 10_000, KEY_COUNT_FOR_TARGET], &[KEY_COUNT_FOR_TARGET]);
    part.progress.add_steps(key_counts.len() + 2);
    let mut columns = vec![String::new()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for &keys in key_counts {
        let logs: ComparedSlidingLogs =
            [Box::new(SlidegateLog::new(keys)?), Box::new(QueueLog::new(keys))];
        rows.resize_with(logs.len(), Vec::new);
        part.progress.begin_step(&format!("exact logs of {MAX}, {keys} full keys"));
        let timings = measure_sliding_logs(effort, keys, &logs);
        columns.push(format!("{keys} keys"));
        for ((row, log), timing) in rows.iter_mut().zip(&logs).zip(&timings) {
            if row.is_empty() {
                row.push(log.name().to_owned());
            }
            row.push(format!("{:.0} ns ({:.2}x)", timing.ns, timing.ns / timings[0].ns));
        }
        if keys == KEY_COUNT_FOR_TARGET {
            part.record_target(&MAX_TIME_RELATIVE_TO_QUEUE, timings[0].ns / timings[1].ns);
        }
    }
    columns.push("bytes per entry".to_owned());
    for (nth, row) in rows.iter_mut().enumerate() {
        part.progress.begin_step(&format!("memory of {}", row[0]));
        let bytes = rss::run_child(&[CHILD_ARGUMENT, &row[0]])? as f64
            / (KEY_COUNT_FOR_TARGET * MAX) as f64;
        row.push(format!("{bytes:.1}"));
        if nth == 0 {
            part.record_target(&MAX_BYTES_PER_LOG_ENTRY, bytes);
        }
    }
    let mut table = MarkdownTable::new(columns);
    rows.into_iter().for_each(|row| table.add_row(row));
    part.add_text(format!(
        "### Exact logs of {MAX}, all keys full, 1 thread\n\nEach key receives twice as many requests as its limit \
         allows, so about half of the requests are denied. The clock is manual."
    ));
    part.add_table(&table);
    Ok(())
}

fn measure_sliding_logs(effort: Effort, keys: usize, logs: &ComparedSlidingLogs) -> Vec<Timing> {
    let turns = logs.each_ref().map(|log| {
        let now_us = AtomicU64::new(logs::fill_all_keys(&**log, keys));
        move |seed| count_denied_requests(&**log, keys, &now_us, seed)
    });
    let plan = MeasurePlan { rounds: effort.rounds(), threads: 1, decisions: DECISIONS_PER_ROUND };
    run_interleaved(plan, &turns.each_ref().map(|turn| turn as &TurnFn<'_>))
}

/// Requests one unit in each time step. The key is sampled uniformly for each request. Returns the number of denied
/// requests.
fn count_denied_requests(
    log: &dyn LogContender,
    keys: usize,
    now_us: &AtomicU64,
    seed: u64,
) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start_us = now_us.fetch_add(DECISIONS_PER_ROUND as u64 * STEP_US, Ordering::Relaxed);
    let denied = (1..=DECISIONS_PER_ROUND as u64)
        .filter(|nth| !log.try_charge(rng.u64(0..keys as u64), start_us + nth * STEP_US));
    denied.count()
}

/// Fills the log with this name, and prints the number of bytes by which the memory of this process grows. Runs in the
/// child process.
pub fn run_child(name: &str) -> Result<(), Box<dyn Error>> {
    let grown = rss::measure_growth(|| {
        let slidegate = SlidegateLog::new(KEY_COUNT_FOR_TARGET)?;
        let log: Box<dyn LogContender> = match name == slidegate.name() {
            true => Box::new(slidegate),
            false => Box::new(QueueLog::new(KEY_COUNT_FOR_TARGET)),
        };
        logs::fill_all_keys(&*log, KEY_COUNT_FOR_TARGET);
        Ok(log)
    })?;
    println!("{grown}");
    Ok(())
}
