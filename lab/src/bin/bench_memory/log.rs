//! The exact log of 100 charges, every key full.

use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};

use lab::logs::{self, KEYS, Log, MAX, Packed, Queues, STEP_US};
use lab::measure::{Plan, Turn, interleaved};
use lab::rss;
use lab::table::Table;

use crate::Scope;
use lab::targets::{Bound, Targets};

/// The argument that makes this program a child which fills one log.
pub const CHILD: &str = "log-child";

const DECISIONS: usize = 2_000_000;

/// Measures time in this process, memory in children.
pub fn run(scope: &Scope, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    let logs: [&(dyn Log + Sync); 2] = [&Packed::new()?, &Queues::default()];
    let turns = logs.map(|log| {
        eprintln!("filling {}", log.name());
        let now_us = AtomicU64::new(logs::fill(log));
        move |seed| decide(log, &now_us, seed)
    });
    eprintln!("deciding over full logs");
    let plan = Plan { rounds: scope.rounds, threads: 1, decisions: DECISIONS };
    let turns = turns.each_ref().map(|turn| turn as &Turn<'_>);
    let timings = interleaved(plan, &turns);
    println!("## Exact logs of {MAX}, {KEYS} full keys, 1 thread\n");
    let mut table = Table::new(["", "ns", "times slidegate's", "denied", "bytes per entry"]);
    let mut bytes = Vec::new();
    for (log, timing) in logs.iter().zip(&timings) {
        let entries = (KEYS * MAX) as f64;
        let bytes_per_entry = rss::ask_child(&[CHILD, log.name()])? as f64 / entries;
        bytes.push(bytes_per_entry);
        table.row([
            log.name().to_owned(),
            format!("{:.0}", timing.ns),
            format!("{:.2}", timing.ns / timings[0].ns),
            format!("{:.2}", timing.denied),
            format!("{bytes_per_entry:.1}"),
        ]);
    }
    println!("{table}");
    targets.hold("sliding_log of 100, full keys, bytes per entry", Bound::AtMost(8.0), bytes[0]);
    targets.hold(
        "sliding_log of 100, full keys, times as fast as Mutex<VecDeque>",
        Bound::AtLeast(2.0),
        timings[1].ns / timings[0].ns,
    );
    Ok(())
}

/// Asks for uniformly drawn keys, one per step of time; how many were denied.
fn decide(log: &dyn Log, now_us: &AtomicU64, seed: u64) -> usize {
    let mut rng = fastrand::Rng::with_seed(seed);
    let start_us = now_us.fetch_add(DECISIONS as u64 * STEP_US, Ordering::Relaxed);
    let denied = (1..=DECISIONS as u64)
        .filter(|nth| !log.take(rng.u64(0..KEYS as u64), start_us + nth * STEP_US));
    denied.count()
}

/// Prints by how many bytes this process grows while a log is filled.
pub fn child(name: &str) -> Result<(), Box<dyn Error>> {
    let grown = rss::growth(|| {
        let packed = Packed::new()?;
        let log: Box<dyn Log> = match name == packed.name() {
            true => Box::new(packed),
            false => Box::new(Queues::default()),
        };
        logs::fill(&*log);
        Ok(log)
    })?;
    println!("{grown}");
    Ok(())
}
