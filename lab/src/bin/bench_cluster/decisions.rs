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
use lab::measure::{Plan, Turn, interleaved};
use lab::table::Table;
use lab::targets::{Bound, Targets};
use slidegate::{
    Admission, Clock, FollowingClock, Hit, Key, Limit, MemoryStore, Scope as KeyScope, Store,
    Timestamp,
};
use slidegate_cluster::ClusterStore;
use slidegate_cluster::counters::{CounterSettings, Counters};
use slidegate_cluster::counts::{Incarnation, Told};
use slidegate_cluster::ledger::Ledger;
use slidegate_cluster::progress::{Member, Progress};
use slidegate_cluster::store::Sync;

use crate::Scope;

/// Decisions of a thread in a round.
const DECISIONS: usize = 1_000_000;

/// How often nodes tell each other.
const INTERVAL: Duration = Duration::from_millis(250);

/// What is decided by: half of the draws find a key that is full.
const LIMIT: &str = "100000/d";

/// A node of a cluster in this process.
struct Node {
    store: ClusterStore<Arc<FollowingClock>>,
}

impl Node {
    fn new(me: u64, max_keys: usize) -> Self {
        let clock = Arc::new(FollowingClock::new());
        let settings = CounterSettings {
            me: Incarnation(me),
            secret: [7; 16].into(),
            clocks_differ_us: 2_000_000,
            sync_interval: INTERVAL,
            max_keys,
        };
        let counters = Arc::new(Counters::new(settings, clock.now()));
        Self { store: ClusterStore::new(clock, counters, Sync::default(), Duration::ZERO) }
    }

    fn counters(&self) -> &Counters {
        self.store.counters()
    }

    /// Two others have acknowledged all up to a flush.
    fn acknowledge(&self, flush: u64) {
        let member =
            |of| Member { incarnation: Incarnation(of), acknowledged: flush, silent_since: None };
        let members = vec![member(101), member(102)];
        self.counters().progress().store(Arc::new(Progress {
            members,
            nodes: 3,
            majority_since: Some(Timestamp::default()),
            ..Progress::default()
        }));
    }
}

/// Fills the stores with so many keys and measures them.
pub fn run(scope: &Scope, key_count: usize, targets: &mut Targets) -> Result<(), Box<dyn Error>> {
    let limit: Limit = LIMIT.parse()?;
    let keys = Keys::new(key_count);
    let memory = MemoryStore::new();
    let (one, of_three) = (Node::new(1, 10_000_000), Node::new(1, 10_000_000));
    of_three.acknowledge(0);
    eprintln!("filling with {key_count} keys");
    fill(&memory, &keys, &limit);
    fill(&one.store, &keys, &limit);
    fill(&of_three.store, &keys, &limit);
    let turns: [&Turn<'_>; 3] = [
        &|seed| decide(&memory, &keys, &limit, seed),
        &|seed| decide(&one.store, &keys, &limit, seed),
        &|seed| with_telling(&of_three, || decide(&of_three.store, &keys, &limit, seed)),
    ];
    let plan = Plan { rounds: scope.rounds, threads: 1, decisions: DECISIONS };
    eprintln!("deciding");
    let timings = interleaved(plan, &turns);
    println!("## sliding_window, {key_count} keys of {KEY_LEN} bytes\n");
    let mut table = Table::new(["", "ns", "times memory", "denied"]);
    let names = ["memory store", "cluster of one", "one of three, telling every 250 ms beside it"];
    for (name, timing) in names.iter().zip(&timings) {
        let times = timing.ns / timings[0].ns;
        table.row([
            (*name).to_owned(),
            format!("{:.0}", timing.ns),
            format!("{times:.2}x"),
            format!("{:.2}", timing.denied),
        ]);
    }
    println!("{table}");
    targets.hold(
        "a decision of a cluster of one, times that of the memory store",
        Bound::AtMost(1.2),
        timings[1].ns / timings[0].ns,
    );
    targets.hold(
        "a decision of one node of three, times that of the memory store",
        Bound::AtMost(1.2),
        timings[2].ns / timings[0].ns,
    );
    Ok(())
}

/// Brings every key into a store: one in two full, the others far from it.
fn fill(store: &impl Store, keys: &Keys, limit: &Limit) {
    let scope = KeyScope::new("api", "per-tenant", "1d", &["tenant"]);
    for (nth, key) in keys.range(0..keys.count()) {
        let cost = if nth % 2 == 0 { limit.quota().max() } else { 1 };
        let value = [key.into()];
        let hit = Hit { key: Key::new(&scope, &value), limit, cost, admission: Admission::Enforce };
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
        let hit =
            Hit { key: Key::new(&scope, &value), limit, cost: 1, admission: Admission::Enforce };
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
                node.counters().take_changed(flush, usize::MAX, &mut told);
                told.iter_mut().for_each(|told: &mut Told| told.incarnation = Incarnation(101));
                node.counters().merge(&told, FollowingClock::new().now());
                node.acknowledge(flush);
            }
        });
        let denied = decide();
        done.store(true, Ordering::Relaxed);
        denied
    })
}
