//! Measures the decision time with different numbers of keys, whose bytes are read from memory. The keys are strings or
//! numbers, and are sampled uniformly or by Zipf's law.

use std::error::Error;
use std::hash::RandomState;
use std::thread;

use lab::chart::{LineChart, Series};
use lab::key_distribution::KeyDistribution;
use lab::keys::{KEY_LEN, KeySequence, Keys};
use lab::limiters::{BareMap, BenchLimiter, GovernorLimiter, KeyKind, MAX, SlidegateLimiter};
use lab::measure::{MeasurePlan, Timing, TurnFn, read_clock, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::table::{MarkdownTable, format_with_thousands_separators};
use lab::targets::{BenchTarget, TargetBound};

/// The number of decisions per thread and round.
pub const DECISIONS: usize = 1_000_000;

/// The number of keys in the sequence that is sampled before the measurement. Each round uses a part of the sequence.
pub const SEQUENCE_LEN: usize = 4 * DECISIONS;

type FoldhashBuildHasher = foldhash::fast::RandomState;

/// The minimum number of keys in a measurement that is compared with a target. With this number of keys, most keys
/// are not in the caches of the processor.
const MIN_KEYS_FOR_TARGETS: usize = 1_000_000;

const REASON_FOR_SPEED_RELATIVE_TO_GOVERNOR: &str = "at a million keys a decision takes 350 to 450 instructions and \
    two cache misses, one for the text of the key and one for the state. It is too long for the processor to overlap \
    these cache misses with those in the next decision (by a profile). Tried: fewer and smaller shards, a single \
    lookup, results built in place, joined fingerprints, rarer sweeps, a branchless search of slots; together they \
    reduced the time from 330 to 200 ns.";

const MIN_SPEED_RELATIVE_TO_GOVERNOR: BenchTarget = BenchTarget {
    text: "sliding_window, 1 and 10 million keys, speed relative to governor keyed",
    bound: TargetBound::AtLeast(3.0),
    limited_by: REASON_FOR_SPEED_RELATIVE_TO_GOVERNOR,
};

const MIN_SPEED_RELATIVE_TO_GOVERNOR_WITH_FOLDHASH: BenchTarget = BenchTarget {
    text: "sliding_window, 1 and 10 million keys, speed relative to governor keyed with foldhash",
    bound: TargetBound::AtLeast(1.8),
    limited_by: "the same.",
};

const MAX_TIME_RELATIVE_TO_MAP_OF_NUMBERS: BenchTarget = BenchTarget {
    text: "sliding_window without the clock read, text keys, time relative to a bare map of numbers",
    bound: TargetBound::AtMost(2.0),
    limited_by: "incrementing a number in a bare map takes one cache miss and is short enough to overlap with \
        several others; with text keys, in the next row, it takes two cache misses, as a decision does.",
};

const MAX_TIME_RELATIVE_TO_MAP_OF_SAME_KEYS: BenchTarget = BenchTarget {
    text: "sliding_window without the clock read, time relative to a bare map of the same keys",
    bound: TargetBound::AtMost(2.0),
    limited_by: "the same as for governor.",
};

/// The settings of a measurement: the type of the keys, their distribution, and the number of threads.
struct KeyBenchSetting {
    kind: KeyKind,
    is_zipf: bool,
    threads: usize,
}

const KEY_BENCH_SETTINGS: [KeyBenchSetting; 5] = [
    KeyBenchSetting { kind: KeyKind::Text, is_zipf: false, threads: 1 },
    KeyBenchSetting { kind: KeyKind::Text, is_zipf: false, threads: 2 },
    KeyBenchSetting { kind: KeyKind::Text, is_zipf: true, threads: 1 },
    KeyBenchSetting { kind: KeyKind::Number, is_zipf: false, threads: 1 },
    KeyBenchSetting { kind: KeyKind::Number, is_zipf: true, threads: 1 },
];

impl KeyBenchSetting {
    fn name(&self) -> String {
        let keys = match self.kind {
            KeyKind::Text => format!("keys of {KEY_LEN} bytes"),
            KeyKind::Number => "u64 keys".to_owned(),
        };
        let sampled = if self.is_zipf { "by Zipf's law" } else { "uniformly" };
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads" };
        format!("{keys}, sampled {sampled}, {threads}")
    }
}

/// The results of one setting, for each number of keys.
#[derive(Default)]
struct KeyBenchTimings {
    /// The names of the compared limiters. The last name is the clock read, which is also measured.
    names: Vec<&'static str>,
    /// The results for each number of keys. Each result has a timing for each of the `names`.
    timings: Vec<Vec<Timing>>,
}

/// Measures all settings with all numbers of keys, and adds the tables and a chart to the report.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] =
        effort.pick(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000], &[1_000, 100_000, 1_000_000]);
    part.progress.add_steps(key_counts.len() * KEY_BENCH_SETTINGS.len());
    let mut results = KEY_BENCH_SETTINGS.map(|_| KeyBenchTimings::default());
    for &count in key_counts {
        let keys = Keys::new(count);
        for kind in [KeyKind::Text, KeyKind::Number] {
            let limiters = new_filled_limiters(kind, &keys)?;
            for (setting, result) in KEY_BENCH_SETTINGS.iter().zip(&mut results) {
                if setting.kind == kind {
                    part.progress.begin_step(&format!("{count} {}", setting.name()));
                    let names = limiters.iter().map(|limiter| limiter.name());
                    result.names = names.chain(["one clock read"]).collect();
                    result.timings.push(measure_limiters(effort, setting, &keys, &limiters));
                }
            }
        }
    }
    part.add_text(
        "### Decision time with keys that are read from memory\n\nThe keys are in one long buffer and are requested in \
            another order, so with many keys each request also waits for the bytes of its key. The time of a \
            `sliding_window` decision in its thread in nanoseconds, and relative to slidegate in parentheses. Every \
            other key is full, so about half of the requests are denied. \"bare map\" is the minimum work of an \
            in-memory limiter: 64 locked maps, and an incremented count. The text keys of governor are `String`s, \
            looked up with one reused `String`.",
    );
    for (setting, result) in KEY_BENCH_SETTINGS.iter().zip(&results) {
        part.add_text(format!("#### {}", capitalize_first_letter(&setting.name())));
        part.add_table(&new_timing_table(key_counts, result));
        compare_with_targets(setting, key_counts, result, part);
    }
    let svg = draw_timing_chart(key_counts, &results[0])?;
    part.add_chart(
        "memory-keys",
        "time of a decision by the number of keys: slidegate, governor and a bare map",
        svg,
    );
    Ok(())
}

fn capitalize_first_letter(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// Creates the compared limiters and charges all keys in each. They are slidegate, governor with two hashers, and a
/// bare map, which only counts. For string keys there is also a bare map with number keys.
fn new_filled_limiters(
    kind: KeyKind,
    keys: &Keys,
) -> Result<Vec<Box<dyn BenchLimiter>>, Box<dyn Error>> {
    let slidegate = SlidegateLimiter::new(kind)?;
    let (default, foldhash) = ("governor keyed", "governor keyed, foldhash");
    let limiters: Vec<Box<dyn BenchLimiter>> = match kind {
        KeyKind::Text => vec![
            Box::new(slidegate),
            Box::new(GovernorLimiter::<String, RandomState>::new(default)?),
            Box::new(GovernorLimiter::<String, FoldhashBuildHasher>::new(foldhash)?),
            Box::new(BareMap::<Box<str>>::new("bare map")),
            Box::new(BareMap::<u64>::new("bare map of numbers")),
        ],
        KeyKind::Number => vec![
            Box::new(slidegate),
            Box::new(GovernorLimiter::<u64, RandomState>::new(default)?),
            Box::new(GovernorLimiter::<u64, FoldhashBuildHasher>::new(foldhash)?),
            Box::new(BareMap::<u64>::new("bare map")),
        ],
    };
    limiters.iter().for_each(|limiter| fill_keys(&**limiter, keys));
    Ok(limiters)
}

/// Charges every key of a limiter once. Keys with an even number are charged up to the limit, and the other keys one
/// unit.
pub fn fill_keys(limiter: &dyn BenchLimiter, keys: &Keys) {
    let half = keys.count() / 2;
    thread::scope(|scope| {
        for range in [0..half, half..keys.count()] {
            scope.spawn(move || {
                for (nth, key) in keys.range(range) {
                    let units = if nth % 2 == 0 { MAX } else { 1 };
                    assert!(limiter.charge_units(nth, key, units), "a new key accepts a charge");
                }
            });
        }
    });
}

/// Measures the decision time of each limiter, and the time of a clock read.
fn measure_limiters(
    effort: Effort,
    setting: &KeyBenchSetting,
    keys: &Keys,
    limiters: &[Box<dyn BenchLimiter>],
) -> Vec<Timing> {
    let distribution = if setting.is_zipf {
        KeyDistribution::zipf(keys.count())
    } else {
        KeyDistribution::Uniform(keys.count())
    };
    let sequence = KeySequence::new(keys, &distribution, SEQUENCE_LEN);
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    let plan = MeasurePlan { rounds: effort.rounds(), threads: setting.threads, decisions };
    let turns: Vec<_> = limiters
        .iter()
        .map(|limiter| |seed| limiter.charge_keys_and_count_denied(sequence.iter(seed, decisions)))
        .collect();
    let clock = quanta::Clock::new();
    let read_clock = |_| read_clock(&clock, decisions);
    let mut turns: Vec<&TurnFn<'_>> = turns.iter().map(|turn| turn as &TurnFn<'_>).collect();
    turns.push(&read_clock);
    run_interleaved(plan, &turns)
}

fn new_timing_table(key_counts: &[usize], result: &KeyBenchTimings) -> MarkdownTable {
    let columns =
        key_counts.iter().map(|count| format!("{} keys", format_with_thousands_separators(*count)));
    let mut table = MarkdownTable::new([String::new()].into_iter().chain(columns));
    for (nth, name) in result.names.iter().enumerate() {
        let cells = result
            .timings
            .iter()
            .map(|all| format!("{:.0} ({:.2}x)", all[nth].ns, all[nth].ns / all[0].ns));
        table.add_row([(*name).to_owned()].into_iter().chain(cells));
    }
    table
}

/// Compares results with the targets. Only results for uniformly sampled string keys are compared, and only with at
/// least [`MIN_KEYS_FOR_TARGETS`] keys.
fn compare_with_targets(
    setting: &KeyBenchSetting,
    key_counts: &[usize],
    result: &KeyBenchTimings,
    part: &mut ReportPart,
) {
    if setting.kind != KeyKind::Text || setting.is_zipf {
        return;
    }
    let many =
        key_counts.iter().zip(&result.timings).filter(|(count, _)| **count >= MIN_KEYS_FOR_TARGETS);
    for (_, timings) in many {
        let [slidegate, default, foldhash, text, numbers, clock] = &timings[..] else { continue };
        part.record_target(&MIN_SPEED_RELATIVE_TO_GOVERNOR, default.ns / slidegate.ns);
        part.record_target(
            &MIN_SPEED_RELATIVE_TO_GOVERNOR_WITH_FOLDHASH,
            foldhash.ns / slidegate.ns,
        );
        let beyond_clock = slidegate.ns - clock.ns;
        part.record_target(&MAX_TIME_RELATIVE_TO_MAP_OF_NUMBERS, beyond_clock / numbers.ns);
        part.record_target(&MAX_TIME_RELATIVE_TO_MAP_OF_SAME_KEYS, beyond_clock / text.ns);
    }
}

fn draw_timing_chart(
    key_counts: &[usize],
    result: &KeyBenchTimings,
) -> Result<String, Box<dyn Error>> {
    let lines: Vec<Series> = result
        .names
        .iter()
        .take(4)
        .enumerate()
        .map(|(nth, name)| Series {
            name: (*name).to_owned(),
            points: key_counts
                .iter()
                .zip(&result.timings)
                .map(|(count, all)| (*count as f64, all[nth].ns))
                .collect(),
        })
        .collect();
    LineChart {
        title: &format!("Decision time, {}", KEY_BENCH_SETTINGS[0].name()),
        x_label: "keys in the store",
        y_label: "ns",
        is_log_x: true,
        lines: &lines,
    }
    .draw()
}
