//! Measures the memory and the decision time of `sliding_window` by the number of its entries, compared with
//! `sliding_counter`.

use std::error::Error;
use std::time::Duration;

use lab::block_limiters::BoxedLimiters;
use lab::key_blocks::BlockKey;
use lab::part::{Effort, ReportPart};
use lab::peer_comparison::{ComparisonCase, PeerComparison};
use lab::rss;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Algorithm, Clock, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// The first argument of the child process that fills one store.
pub const CHILD_ARGUMENT: &str = "entries-child";

const KEY_COUNT: usize = 1_000_000;

/// The number of keys that are filled in turns, before the next keys are filled.
const KEYS_FILLED_IN_TURNS: usize = 1_000;

/// The limit of the keys whose memory is measured. An entry with several charges has at most 4 units, so each charge of
/// [`UNITS_PER_ENTRY`] has its own entry.
const QUOTA_OF_FILLED_KEYS: &str = "100/w";

const UNITS_PER_ENTRY: u64 = 3;

/// The time between two charges of a key. It is longer than a tick.
const TIME_BETWEEN_CHARGES: Duration = Duration::from_millis(250);

/// The measured numbers of entries per key, each with the target for the bytes per key.
const ENTRY_COUNTS_AND_TARGETS: [(usize, BenchTarget); 3] = [
    (1, bytes_target("sliding_window, bytes per key with 1 entry", 40.0)),
    (8, bytes_target("sliding_window, bytes per key with 8 entries", 160.0)),
    (33, bytes_target("sliding_window, bytes per key with 33 entries", 320.0)),
];

const LIMITED_BY_TABLE: &str = "a slot and its share of free slots take up to 42 bytes, depending on how full the \
    tables are. A key of sliding_counter takes as many bytes as a key of sliding_window with one entry.";

const fn bytes_target(text: &'static str, max: f64) -> BenchTarget {
    BenchTarget { text, bound: TargetBound::AtMost(max), limited_by: LIMITED_BY_TABLE }
}

const MAX_TIME_WITH_ONE_ENTRY: BenchTarget = BenchTarget {
    text: "sliding_window with 1 entry, 1 million keys, time relative to sliding_counter",
    bound: TargetBound::AtMost(1.25),
    limited_by: "",
};

const MAX_TIME_WITH_MANY_ENTRIES: BenchTarget = BenchTarget {
    text: "sliding_window with about 30 entries, 1 million keys, time relative to sliding_counter",
    bound: TargetBound::AtMost(1.6),
    limited_by: "the entries have an allocation of their own, which is not in the cache. By a profile, three quarters \
        of the time of its decision function is the wait for the first load from this allocation.",
};

/// Measures the memory in child processes, and the decision time in this process.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    measure_memory(effort, part)?;
    measure_decision_time(effort, part)
}

fn measure_memory(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let keys = effort.pick(KEY_COUNT, KEY_COUNT / 10);
    part.progress.add_steps(2 * (ENTRY_COUNTS_AND_TARGETS.len() + 1));
    let mut table = MarkdownTable::new(["", "1,000 keys in turns", "all keys in turns"]);
    let window = Algorithm::default().name();
    let rows =
        ENTRY_COUNTS_AND_TARGETS.iter().map(|(entries, target)| (window, entries, Some(target)));
    for (algorithm, entries, target) in rows.chain([(Algorithm::SlidingCounter.name(), &1, None)]) {
        let mut row = vec![format!("{algorithm}, {entries} charges")];
        for keys_in_turns in [KEYS_FILLED_IN_TURNS, keys] {
            part.progress.begin_step(&format!(
                "filling {keys} keys of {algorithm} with {entries} charges, {keys_in_turns} keys in turns"
            ));
            let args = [keys, *entries, keys_in_turns].map(|number| number.to_string());
            let grown = rss::run_child(&[CHILD_ARGUMENT, algorithm, &args[0], &args[1], &args[2]])?;
            let bytes = grown as f64 / keys as f64;
            row.push(format!("{bytes:.1}"));
            if let Some(target) = target
                && keys == KEY_COUNT
            {
                part.record_target(target, bytes);
            }
        }
        table.add_row(row);
    }
    part.add_text(format!(
        "### Memory of sliding_window by the number of entries\n\nBytes per key with {keys} keys, each charge in its \
         own entry: the growth of the resident memory, including tables and unused memory of the allocator. The store \
         is filled with 1,000 keys in turns, then the next 1,000 keys, or with all keys in turns, so that all keys \
         outgrow their allocations at the same time."
    ));
    part.add_table(&table);
    Ok(())
}

/// Fills a store with keys, and prints the number of bytes by which the memory of this process grows. Runs in the child
/// process. The arguments are the algorithm, the number of keys, the number of charges of a key, and the number of keys
/// that are filled in turns.
pub fn run_child(
    [algorithm, keys, charges, keys_in_turns]: [&str; 4],
) -> Result<(), Box<dyn Error>> {
    let (keys, charges): (usize, u32) = (keys.parse()?, charges.parse()?);
    let keys_in_turns: usize = keys_in_turns.parse()?;
    let algorithm = Algorithm::by_name(algorithm).ok_or("unknown algorithm")?;
    let limit = Limit::new(QUOTA_OF_FILLED_KEYS.parse()?, algorithm)?;
    let grown = rss::measure_growth(|| {
        let clock = ManualClock::at(Timestamp::from_secs(1_700_000_000));
        let limiter =
            Limiter::with_store([limit], MemoryStore::with_clock(clock.clone(), 2 * keys))?;
        for first in (0..keys).step_by(keys_in_turns) {
            for _ in 0..charges {
                clock.set(clock.now().after(TIME_BETWEEN_CHARGES));
                for key in first..keys.min(first + keys_in_turns) {
                    let decision = limiter.check_cost(&(key as u64), UNITS_PER_ENTRY);
                    assert!(decision.is_allowed(), "a key that is not full accepts a charge");
                }
            }
        }
        Ok(limiter)
    })?;
    println!("{grown}");
    Ok(())
}

fn measure_decision_time(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let keys = effort.pick(KEY_COUNT, KEY_COUNT / 10) as u32;
    let one = [ComparisonCase::new_never_full(keys), ComparisonCase::new_denied(keys, 100)];
    let never_full = ComparisonCase::new_never_full(keys);
    let many = [
        // More than a thirty-second of max, so that each charge has its own entry.
        never_full.filled_by_charges(30, never_full.max / 32 + 1),
        ComparisonCase::new_denied(keys, 90).filled_by_charges(30, 3),
    ];
    let names = ["sliding_counter", "sliding_window"];
    for (title, cases, target) in [
        ("1 entry", one, &MAX_TIME_WITH_ONE_ENTRY),
        ("about 30 entries", many, &MAX_TIME_WITH_MANY_ENTRIES),
    ] {
        let mut comparison = PeerComparison::new(&names, new_limiters);
        part.progress.add_steps(cases.len());
        for case in &cases {
            comparison.measure(effort, case, &[target], part)?;
        }
        part.add_text(format!(
            "### Decision time of sliding_window with {title}, {}\n\nEach decision reads the clock.",
            u64::NAME
        ));
        part.add_table(&comparison.into_table());
    }
    Ok(())
}

fn new_limiters(case: &ComparisonCase) -> Result<BoxedLimiters<u64>, Box<dyn Error>> {
    let quota = Quota::new(case.max.into(), case.window)?;
    let [counter, window] = [Algorithm::SlidingCounter, Algorithm::default()]
        .map(|algorithm| Limit::new(quota, algorithm));
    Ok(vec![Box::new(Limiter::new([counter?])?), Box::new(Limiter::new([window?])?)])
}
