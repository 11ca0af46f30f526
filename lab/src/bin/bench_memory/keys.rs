//! A decision as a function of the number of keys: text and numbers, drawn uniformly and by Zipf's law.

use std::error::Error;
use std::hash::RandomState;
use std::thread;

use lab::chart::{Line, Lines};
use lab::draw::Draw;
use lab::keys::{Course, KEY_LEN, Keys};
use lab::measure::{Plan, Timing, Turn, interleaved, read_clock};
use lab::part::{Effort, Part};
use lab::peers::{BareMap, Governor, KeyKind, MAX, Peer, Slidegate};
use lab::table::Table;
use lab::targets::{Aim, Bound};

/// Decisions of a thread in a round.
pub const DECISIONS: usize = 1_000_000;

/// Draws from which a round takes its part.
pub const DRAWN: usize = 4 * DECISIONS;

type Foldhash = foldhash::fast::RandomState;

/// From how many keys on the caches hold few of them: where the aims are.
const MANY_KEYS: usize = 1_000_000;

const TWICE: &str = "at a million keys a decision of some 350 to 450 instructions waits once for the key's text and once \
    for the state, and is too long for the processor to begin the next decision's waits meanwhile (by a profile). Tried: \
    fewer and smaller shards, one look-up, results built in place, joined fingerprints, rarer sweeps, a branchless \
    search of slots; together 330 to 200 ns.";

const GOVERNOR: Aim = Aim {
    text: "sliding_window, 1 and 10 million keys, times as fast as governor keyed",
    bound: Bound::AtLeast(3.0),
    limited_by: TWICE,
};

const GOVERNOR_FOLDHASH: Aim = Aim {
    text: "sliding_window, 1 and 10 million keys, times as fast as governor keyed with foldhash",
    bound: Bound::AtLeast(1.8),
    limited_by: "the same.",
};

const BARE_NUMBERS: Aim = Aim {
    text: "sliding_window less one clock read, keys as text, in times of a bare map of numbers",
    bound: Bound::AtMost(2.0),
    limited_by: "a bare map's increment of a number waits for one cache line and is short enough to overlap with \
        several others; that of text, in the row below, waits for the two that a decision waits for.",
};

const BARE_TEXT: Aim = Aim {
    text: "sliding_window less one clock read, in times of a bare map of the same keys",
    bound: Bound::AtMost(2.0),
    limited_by: "the same as beside governor.",
};

/// How keys look and are drawn.
struct Setting {
    kind: KeyKind,
    is_zipf: bool,
    threads: usize,
}

const SETTINGS: [Setting; 5] = [
    Setting { kind: KeyKind::Text, is_zipf: false, threads: 1 },
    Setting { kind: KeyKind::Text, is_zipf: false, threads: 2 },
    Setting { kind: KeyKind::Text, is_zipf: true, threads: 1 },
    Setting { kind: KeyKind::Number, is_zipf: false, threads: 1 },
    Setting { kind: KeyKind::Number, is_zipf: true, threads: 1 },
];

impl Setting {
    fn name(&self) -> String {
        let keys = match self.kind {
            KeyKind::Text => format!("keys of {KEY_LEN} bytes"),
            KeyKind::Number => "keys that are u64s".to_owned(),
        };
        let drawn = if self.is_zipf { "by Zipf's law" } else { "uniformly" };
        let threads = if self.threads == 1 { "1 thread" } else { "2 threads at once" };
        format!("{keys}, drawn {drawn}, {threads}")
    }
}

/// What was measured in one setting.
#[derive(Default)]
struct Measured {
    /// The contenders, and after them a reading of the clock.
    names: Vec<&'static str>,
    /// For each number of keys the timings of each.
    timings: Vec<Vec<Timing>>,
}

/// Measures all settings over all numbers of keys.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] =
        effort.pick(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000], &[1_000, 100_000, 1_000_000]);
    part.progress.expect(key_counts.len() * SETTINGS.len());
    let mut measured = SETTINGS.map(|_| Measured::default());
    for &count in key_counts {
        let keys = Keys::new(count);
        for kind in [KeyKind::Text, KeyKind::Number] {
            let peers = filled(kind, &keys)?;
            for (setting, measured) in SETTINGS.iter().zip(&mut measured) {
                if setting.kind == kind {
                    part.progress.step(&format!("{count} {}", setting.name()));
                    let names = peers.iter().map(|peer| peer.name());
                    measured.names = names.chain(["one reading of the clock"]).collect();
                    measured.timings.push(measure(effort, setting, &keys, &peers));
                }
            }
        }
    }
    part.say(
        "### A decision by the number of keys\n\nNanoseconds of a decision of `sliding_window` in its thread, and in \
         brackets times slidegate's. One key in two is full, so about half is denied. \"bare map\" is the least that a \
         limiter in memory can do: 64 locked maps, and a count that goes up by one. governor's text keys are `String`s, \
         asked for by one that is used again.",
    );
    for (setting, measured) in SETTINGS.iter().zip(&measured) {
        part.say(format!("#### {}", capital(&setting.name())));
        part.table(&table(key_counts, measured));
        judge(setting, key_counts, measured, part);
    }
    let svg = draw(key_counts, &measured[0])?;
    part.chart(
        "memory-keys",
        "a decision's time by the number of keys, beside governor and a bare map",
        svg,
    );
    Ok(())
}

fn capital(text: &str) -> String {
    let (first, rest) = text.split_at(1);
    first.to_uppercase() + rest
}

/// The contenders, each holding all keys: slidegate, governor twice, and a bare map; for text a bare map of numbers as
/// well.
fn filled(kind: KeyKind, keys: &Keys) -> Result<Vec<Box<dyn Peer>>, Box<dyn Error>> {
    let slidegate = Slidegate::new(kind)?;
    let (default, foldhash) = ("governor keyed", "governor keyed, foldhash");
    let peers: Vec<Box<dyn Peer>> = match kind {
        KeyKind::Text => vec![
            Box::new(slidegate),
            Box::new(Governor::<String, RandomState>::new(default)?),
            Box::new(Governor::<String, Foldhash>::new(foldhash)?),
            Box::new(BareMap::<Box<str>>::new("bare map")),
            Box::new(BareMap::<u64>::new("bare map of numbers")),
        ],
        KeyKind::Number => vec![
            Box::new(slidegate),
            Box::new(Governor::<u64, RandomState>::new(default)?),
            Box::new(Governor::<u64, Foldhash>::new(foldhash)?),
            Box::new(BareMap::<u64>::new("bare map")),
        ],
    };
    peers.iter().for_each(|peer| fill(&**peer, keys));
    Ok(peers)
}

/// Brings every key into the peer: one in two full, the others far from it.
pub fn fill(peer: &dyn Peer, keys: &Keys) {
    let half = keys.count() / 2;
    thread::scope(|scope| {
        for range in [0..half, half..keys.count()] {
            scope.spawn(move || {
                for (nth, key) in keys.range(range) {
                    let units = if nth % 2 == 0 { MAX } else { 1 };
                    assert!(peer.charge(nth, key, units), "a new key has room");
                }
            });
        }
    });
}

/// Times each peer, and after them a reading of the clock.
fn measure(effort: Effort, setting: &Setting, keys: &Keys, peers: &[Box<dyn Peer>]) -> Vec<Timing> {
    let draw = if setting.is_zipf { Draw::zipf(keys.count()) } else { Draw::Uniform(keys.count()) };
    let course = Course::new(keys, &draw, DRAWN);
    let decisions = effort.pick(DECISIONS, DECISIONS / 5);
    let plan = Plan { rounds: effort.rounds(), threads: setting.threads, decisions };
    let turns: Vec<_> =
        peers.iter().map(|peer| |seed| peer.decide(course.draws(seed, decisions))).collect();
    let clock = quanta::Clock::new();
    let read_clock = |_| read_clock(&clock, decisions);
    let mut turns: Vec<&Turn<'_>> = turns.iter().map(|turn| turn as &Turn<'_>).collect();
    turns.push(&read_clock);
    interleaved(plan, &turns)
}

fn table(key_counts: &[usize], measured: &Measured) -> Table {
    let columns = key_counts.iter().map(|count| format!("{} keys", grouped(*count)));
    let mut table = Table::new([String::new()].into_iter().chain(columns));
    for (nth, name) in measured.names.iter().enumerate() {
        let cells = measured
            .timings
            .iter()
            .map(|all| format!("{:.0} ({:.2}x)", all[nth].ns, all[nth].ns / all[0].ns));
        table.row([(*name).to_owned()].into_iter().chain(cells));
    }
    table
}

/// 10000 is 10,000.
fn grouped(count: usize) -> String {
    match count {
        0..1_000 => count.to_string(),
        _ => format!("{},{:03}", grouped(count / 1_000), count % 1_000),
    }
}

/// Holds uniform text keys against the aims, where there are many.
fn judge(setting: &Setting, key_counts: &[usize], measured: &Measured, part: &mut Part) {
    if setting.kind != KeyKind::Text || setting.is_zipf {
        return;
    }
    let many = key_counts.iter().zip(&measured.timings).filter(|(count, _)| **count >= MANY_KEYS);
    for (_, timings) in many {
        let [slidegate, default, foldhash, text, numbers, clock] = &timings[..] else { continue };
        part.hold(&GOVERNOR, default.ns / slidegate.ns);
        part.hold(&GOVERNOR_FOLDHASH, foldhash.ns / slidegate.ns);
        let beyond_clock = slidegate.ns - clock.ns;
        part.hold(&BARE_NUMBERS, beyond_clock / numbers.ns);
        part.hold(&BARE_TEXT, beyond_clock / text.ns);
    }
}

fn draw(key_counts: &[usize], measured: &Measured) -> Result<String, Box<dyn Error>> {
    let lines: Vec<Line> = measured
        .names
        .iter()
        .take(4)
        .enumerate()
        .map(|(nth, name)| Line {
            name: (*name).to_owned(),
            points: key_counts
                .iter()
                .zip(&measured.timings)
                .map(|(count, all)| (*count as f64, all[nth].ns))
                .collect(),
        })
        .collect();
    Lines {
        title: &format!("A decision, {}", SETTINGS[0].name()),
        x: "keys in the store",
        y: "ns",
        is_log_x: true,
        lines: &lines,
    }
    .draw()
}
