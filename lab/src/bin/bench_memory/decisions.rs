//! One decision after the other, beside governor and a bare map.

use std::error::Error;
use std::hash::RandomState;
use std::thread;

use lab::keys::{KEY_LEN, Keys};
use lab::measure::{Plan, Timing, Turn, interleaved, read_clock};
use lab::peers::{BareMap, Governor, MAX, Peer, Slidegate};
use lab::table::Table;

use crate::Scope;
use crate::batches;
use lab::targets::{Bound, Targets};

/// Decisions of a thread in a round.
pub const DECISIONS: usize = 2_000_000;

/// Threads that decide at once.
const THREADS: [usize; 2] = [1, 2];

/// Fills all contenders with so many keys and measures them.
pub fn run(scope: &Scope, key_count: usize, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    let keys = Keys::new(key_count);
    let slidegate = Slidegate::new()?;
    let peers: [&dyn Peer; 5] = [
        &slidegate,
        &Governor::<RandomState>::new("governor keyed, String")?,
        &Governor::<foldhash::fast::RandomState>::new("governor keyed, String, foldhash")?,
        &BareMap::<u64>::new("bare 64 x Mutex<map> += 1, u64"),
        &BareMap::<Box<str>>::new("bare 64 x Mutex<map> += 1, Box<str>"),
    ];
    for peer in peers {
        eprintln!("filling {} with {key_count} keys", peer.name());
        fill(peer, &keys);
    }
    let timings = THREADS.map(|threads| {
        eprintln!("deciding in {threads} threads");
        measure(scope, threads, &keys, &peers)
    });
    print(&peers, &keys, &timings);
    for timings in &timings {
        judge(timings, targets);
    }
    batches::run(scope, &keys, &slidegate, targets);
    Ok(())
}

/// Brings every key into the peer: one in two full, the others far from it.
fn fill(peer: &dyn Peer, keys: &Keys) {
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
fn measure(scope: &Scope, threads: usize, keys: &Keys, peers: &[&dyn Peer]) -> Vec<Timing> {
    let plan = Plan { rounds: scope.rounds, threads, decisions: DECISIONS };
    let turns: Vec<_> =
        peers.iter().map(|peer| |seed| peer.decide(keys.draw(seed, DECISIONS))).collect();
    let clock = quanta::Clock::new();
    let read_clock = |_| read_clock(&clock, DECISIONS);
    let mut turns: Vec<&Turn<'_>> = turns.iter().map(|turn| turn as &Turn<'_>).collect();
    turns.push(&read_clock);
    interleaved(plan, &turns)
}

fn print(peers: &[&dyn Peer], keys: &Keys, timings: &[Vec<Timing>; 2]) {
    println!("## sliding_window, {} keys\n", keys.count());
    println!(
        "Keys of {KEY_LEN} bytes, drawn uniformly; ns of a decision in its thread, and times slidegate's. \
         governor's keys are `String`s, asked for by one that is used again.\n"
    );
    let mut table = Table::new(["", "1 thread", "", "2 threads", "", "denied"]);
    let names = peers.iter().map(|peer| peer.name()).chain(["one reading of the clock"]);
    for (nth, name) in names.enumerate() {
        let [one, two] = [&timings[0], &timings[1]];
        table.row([
            name.to_owned(),
            format!("{:.0} ns", one[nth].ns),
            format!("{:.2}x", one[nth].ns / one[0].ns),
            format!("{:.0} ns", two[nth].ns),
            format!("{:.2}x", two[nth].ns / two[0].ns),
            format!("{:.2}", one[nth].denied),
        ]);
    }
    println!("{table}");
}

/// Holds the timings, as [`measure`] orders them, against the targets.
fn judge(timings: &[Timing], targets: &mut Targets) {
    let [slidegate, default, foldhash, bare_u64, bare_str, clock] = timings else {
        return;
    };
    let mut hold = |text, bound, measured| targets.hold(text, bound, measured);
    hold(
        "sliding_window, times as fast as governor keyed",
        Bound::AtLeast(3.0),
        default.ns / slidegate.ns,
    );
    hold(
        "sliding_window, times as fast as governor keyed with foldhash",
        Bound::AtLeast(1.8),
        foldhash.ns / slidegate.ns,
    );
    let beyond_clock = slidegate.ns - clock.ns;
    hold(
        "sliding_window less one clock read, in times of a bare map of u64 keys",
        Bound::AtMost(2.0),
        beyond_clock / bare_u64.ns,
    );
    hold(
        "sliding_window less one clock read, in times of a bare map of string keys",
        Bound::AtMost(2.0),
        beyond_clock / bare_str.ns,
    );
}
