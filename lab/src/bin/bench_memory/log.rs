//! The exact log of 100 charges, every key full.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use lab::logs::{self, Log, MAX, Packed, Queues, STEP_US};
use lab::measure::{Plan, Timing, Turn, interleaved};
use lab::part::{Effort, Part};
use lab::rss;
use lab::table::Table;
use lab::targets::{Aim, Bound};

/// The argument that makes this program a child which fills one log.
pub const CHILD: &str = "log-child";

const DECISIONS: usize = 1_000_000;

/// Keys of the logs that are held against the aims, and whose bytes are counted.
const KEYS: usize = 100_000;

const BYTES: Aim = Aim {
    text: "sliding_log of 100, 100,000 full keys, bytes per entry",
    bound: Bound::AtMost(8.0),
    limited_by: "",
};

const SPEED: Aim = Aim {
    text: "sliding_log of 100, 100,000 full keys, times as fast as Mutex<VecDeque>",
    bound: Bound::AtLeast(2.0),
    limited_by: "by callgrind a decision takes 433 instructions if it is denied and 746 if it is allowed \
        (lab/instructions.txt, text keys). Beside what the queue does it packs entries into half the bytes, tells the \
        exact wait, gives a receipt, and keeps a table that forgets what has left; which of these costs how much is not \
        profiled.",
};

type Logs = [Box<dyn Log + Sync>; 2];

/// Measures time in this process, memory in children.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] = effort.pick(&[1_000, 10_000, KEYS], &[KEYS]);
    part.progress.expect(key_counts.len() + 2);
    let mut columns = vec![String::new()];
    let mut rows: Vec<Vec<String>> = Vec::new();
    for &keys in key_counts {
        let logs: Logs = [Box::new(Packed::new(keys)?), Box::new(Queues::new(keys))];
        rows.resize_with(logs.len(), Vec::new);
        part.progress.step(&format!("exact logs of {MAX}, {keys} full keys"));
        let timings = measure(effort, keys, &logs);
        columns.push(format!("{keys} keys"));
        for ((row, log), timing) in rows.iter_mut().zip(&logs).zip(&timings) {
            if row.is_empty() {
                row.push(log.name().to_owned());
            }
            row.push(format!("{:.0} ns ({:.2}x)", timing.ns, timing.ns / timings[0].ns));
        }
        if keys == KEYS {
            part.hold(&SPEED, timings[1].ns / timings[0].ns);
        }
    }
    columns.push("bytes per entry".to_owned());
    for (nth, row) in rows.iter_mut().enumerate() {
        part.progress.step(&format!("memory of {}", row[0]));
        let bytes = rss::ask_child(&[CHILD, &row[0]])? as f64 / (KEYS * MAX) as f64;
        row.push(format!("{bytes:.1}"));
        if nth == 0 {
            part.hold(&BYTES, bytes);
        }
    }
    let mut table = Table::new(columns);
    rows.into_iter().for_each(|row| table.row(row));
    part.say(format!("### Exact logs of {MAX}, all keys full, 1 thread"));
    part.table(&table);
    Ok(())
}

fn measure(effort: Effort, keys: usize, logs: &Logs) -> Vec<Timing> {
    let turns = logs.each_ref().map(|log| {
        let now_us = AtomicU64::new(logs::fill(&**log, keys));
        move |seed| decide(&**log, keys, &now_us, seed)
    });
    let plan = Plan { rounds: effort.rounds(), threads: 1, decisions: DECISIONS };
    interleaved(plan, &turns.each_ref().map(|turn| turn as &Turn<'_>))
}

/// Asks for uniformly drawn keys, one per step of time; how many were denied.
fn decide(log: &dyn Log, keys: usize, now_us: &AtomicU64, seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start_us = now_us.fetch_add(DECISIONS as u64 * STEP_US, Ordering::Relaxed);
    let denied = (1..=DECISIONS as u64)
        .filter(|nth| !log.take(rng.u64(0..keys as u64), start_us + nth * STEP_US));
    denied.count()
}

/// Prints by how many bytes this process grows while a log is filled.
pub fn child(name: &str) -> Result<(), Box<dyn Error>> {
    let grown = rss::growth(|| {
        let packed = Packed::new(KEYS)?;
        let log: Box<dyn Log> = match name == packed.name() {
            true => Box::new(packed),
            false => Box::new(Queues::new(KEYS)),
        };
        logs::fill(&*log, KEYS);
        Ok(log)
    })?;
    println!("{grown}");
    Ok(())
}
