//! One decision after the other: the memory store, a cluster of one, and a node of three that is told of all that it
//! and the others charge.

use std::error::Error;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use lab::keys::{KEY_LEN, Keys};
use lab::measure::{Plan, Timing, Turn, interleaved};
use lab::part::{Effort, Part};
use lab::table::Table;
use lab::targets::{Aim, Bound};
use slidegate::{
    Clock, DriftCorrectedClock, Hit, Key, Limit, MemoryStore, Scope as KeyScope, Store, Timestamp,
};
use slidegate_cluster::ClusterStore;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::replicated_counters::ReplicatedCounters;
use slidegate_cluster::store::ReplicationHandle;

/// Decisions of a thread in a round.
const DECISIONS: usize = 1_000_000;

/// How often nodes tell each other.
const INTERVAL: Duration = Duration::from_millis(250);

/// What is decided by: half of the draws find a key that is full.
const LIMIT: &str = "100000/d";

/// A node of a cluster in this process.
struct Node {
    store: ClusterStore<Arc<DriftCorrectedClock>>,
}

impl Node {
    fn new(me: u64, max_keys: usize) -> Self {
        let clock = Arc::new(DriftCorrectedClock::new());
        let settings = CounterSettings {
            incarnation: Incarnation(me),
            secret: [7; 16].into(),
            max_clock_skew_us: 2_000_000,
            sync_interval: INTERVAL,
            max_keys,
            max_memory: 1 << 30,
        };
        let counters = Arc::new(Counters::new(settings, clock.now()));
        Self {
            store: ClusterStore::new(clock, counters, ReplicationHandle::default(), Duration::ZERO),
        }
    }

    fn counters(&self) -> &Counters {
        self.store.counters()
    }

    /// Two others have acknowledged all up to a flush.
    fn acknowledge(&self, flush: u64) {
        let member = |of| MemberProgress {
            incarnation: Incarnation(of),
            acknowledged_flush: flush,
            silent_since: None,
        };
        let members = vec![member(101), member(102)];
        self.counters().progress().store(Arc::new(Progress {
            members,
            nodes: 3,
            majority_since: Some(Timestamp::default()),
            ..Progress::default()
        }));
    }
}

const ALONE: Aim = Aim {
    text: "a decision of a cluster of one, times that of the memory store",
    bound: Bound::AtMost(1.2),
    limited_by: "by callgrind it takes 899 instructions where the memory store takes 474, the loop and the draw of the key \
        (about 60) included: the key's hash has to be the same on every node and hard to foresee, so it is SipHash \
        instead of foldhash (about 80 more); the answer of a request that may have to wait is moved twice (about 60); \
        the rest is the search for a book, and whether a bucket leaves the state. Tried: states boxed (5.7x), state and \
        tallies in one entry (2x to 6x).",
};

const OF_THREE: Aim = Aim {
    text: "a decision of one node of three, times that of the memory store",
    bound: Bound::AtMost(1.2),
    limited_by: "all keys are taken out of their tables, told, merged and gathered anew four times a second in the same \
        caches: the extreme of what a node can be told.",
};

/// Measures stores of different sizes.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] = effort.pick(&[1_000, 100_000, 1_000_000], &[1_000, 100_000]);
    part.progress.expect(key_counts.len());
    part.say(format!(
        "### Decisions of a cluster's store\n\n`sliding_window`, keys of {KEY_LEN} bytes, through the same `Store::take`: in \
         a cluster of one, and on one of three nodes while all that is charged is told and acknowledged every 250 ms \
         beside it, and another tells as much."
    ));
    let names = ["memory store", "cluster of one", "one of three, telling every 250 ms beside it"];
    let mut rows = names.map(|name| vec![name.to_owned()]);
    for &keys in key_counts {
        part.progress.step(&format!("decisions of a cluster's store, {keys} keys"));
        let timings = measure(effort, keys)?;
        for (row, timing) in rows.iter_mut().zip(&timings) {
            row.push(format!("{:.0} ({:.2}x)", timing.ns, timing.ns / timings[0].ns));
        }
        part.hold(&ALONE, timings[1].ns / timings[0].ns);
        part.hold(&OF_THREE, timings[2].ns / timings[0].ns);
    }
    let columns = key_counts.iter().map(|keys| format!("{keys} keys"));
    let mut table =
        Table::new(["ns, and times the memory store's".to_owned()].into_iter().chain(columns));
    rows.into_iter().for_each(|row| table.row(row));
    part.table(&table);
    Ok(())
}

/// Fills the stores with so many keys and measures them.
fn measure(effort: Effort, key_count: usize) -> Result<Vec<Timing>, Box<dyn Error>> {
    let limit: Limit = LIMIT.parse()?;
    let keys = Keys::new(key_count);
    let memory = MemoryStore::new();
    let (one, of_three) = (Node::new(1, 10_000_000), Node::new(1, 10_000_000));
    of_three.acknowledge(0);
    fill(&memory, &keys, &limit);
    fill(&one.store, &keys, &limit);
    fill(&of_three.store, &keys, &limit);
    let turns: [&Turn<'_>; 3] = [
        &|seed| decide(&memory, &keys, &limit, seed),
        &|seed| decide(&one.store, &keys, &limit, seed),
        &|seed| with_telling(&of_three, || decide(&of_three.store, &keys, &limit, seed)),
    ];
    let plan = Plan { rounds: effort.rounds(), threads: 1, decisions: DECISIONS };
    Ok(interleaved(plan, &turns))
}

/// Brings every key into a store: one in two full, the others far from it.
fn fill(store: &impl Store, keys: &Keys, limit: &Limit) {
    let scope = KeyScope::new("api", "per-tenant", "1d", &["tenant"]);
    for (nth, key) in keys.range(0..keys.count()) {
        let cost = if nth % 2 == 0 { limit.quota().max() } else { 1 };
        let value = [key.into()];
        let hit = Hit::new(Key::new(&scope, &value), limit, cost);
        black_box(take(store, &[hit]));
    }
}

fn take(store: &impl Store, hits: &[Hit<'_>]) -> bool {
    match pin!(store.take(hits)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(taken)) => taken.allowed,
        _ => false,
    }
}

fn decide(store: &impl Store, keys: &Keys, limit: &Limit, seed: u64) -> usize {
    let scope = KeyScope::new("api", "per-tenant", "1d", &["tenant"]);
    let mut denied = 0;
    for (_, key) in keys.draw(seed, DECISIONS) {
        let value = [key.into()];
        let hit = Hit::new(Key::new(&scope, &value), limit, 1);
        denied += usize::from(!take(store, &[hit]));
    }
    denied
}

/// Takes what has changed every interval, has it acknowledged, and is told as much by another.
fn with_telling(node: &Node, decide: impl FnOnce() -> usize) -> usize {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut flush = 0;
            while !done.load(Ordering::Relaxed) {
                thread::park_timeout(INTERVAL);
                flush += 1;
                let mut told = Vec::new();
                node.counters().drain_changed(flush, usize::MAX, &mut told);
                told.iter_mut()
                    .for_each(|told: &mut CounterUpdate| told.incarnation = Incarnation(101));
                node.counters().merge(&told, DriftCorrectedClock::new().now());
                node.acknowledge(flush);
            }
        });
        let denied = decide();
        done.store(true, Ordering::Relaxed);
        denied
    })
}
