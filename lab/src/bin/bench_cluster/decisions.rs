//! Measures the decision times of three stores: the memory store, a cluster with a single node, and one node of a
//! three-node cluster during replication.

use std::error::Error;
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use lab::block_limiters::{charge_in_store, new_tenant_scope};
use lab::keys::{KEY_LEN, Keys};
use lab::measure::{MeasurePlan, Timing, TurnFn, run_interleaved};
use lab::part::{Effort, ReportPart};
use lab::simulated_node::{REPLICATION_INTERVAL, SimulatedNode};
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use slidegate::{Clock, DriftCorrectedClock, Hit, Key, Limit, MemoryStore, Store};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

/// The number of decisions per round with up to 100,000 keys, and with more. One thread makes all of them. A round contains
/// several replications, which change the states of the keys.
const DECISIONS_PER_ROUND: [usize; 2] = [8_000_000, 3_000_000];

/// The limit of each key. Before the measurement, every other key is charged up to this limit.
const LIMIT_PER_KEY: &str = "100000/d";

const MAX_THREE_NODE_TIME_RELATIVE_TO_MEMORY_STORE: BenchTarget = BenchTarget {
    text: "decision of one node of three, time relative to the memory store",
    bound: TargetBound::AtMost(2.0),
    limited_by: "four times a second another core changes the slots of all keys: it drains their charges, and adds the \
        units of another node: the maximum replication load of a node.",
};

/// Measures the decision times of the three stores with different numbers of keys.
pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    let key_counts: &[usize] = effort.pick(&[1_000, 100_000, 1_000_000], &[1_000, 100_000]);
    part.progress.add_steps(key_counts.len());
    part.add_text(format!(
        "### Decisions of the cluster store\n\n`sliding_window`, keys of {KEY_LEN} bytes, through `Store::take`: in \
         a cluster of one node, and on one of three nodes while all its charges are replicated and acknowledged \
         every 250 ms and another node sends as many updates."
    ));
    let names = ["memory store", "cluster of one", "one of three, replicating every 250 ms"];
    let mut rows = names.map(|name| vec![name.to_owned()]);
    for &keys in key_counts {
        part.progress.begin_step(&format!("decisions of a cluster's store, {keys} keys"));
        let timings = measure_decision_times(effort, keys)?;
        for (row, timing) in rows.iter_mut().zip(&timings) {
            row.push(format!("{:.0} ({:.2}x)", timing.ns, timing.ns / timings[0].ns));
        }
        part.record_target(
            &MAX_THREE_NODE_TIME_RELATIVE_TO_MEMORY_STORE,
            timings[2].ns / timings[0].ns,
        );
    }
    let columns = key_counts.iter().map(|keys| format!("{keys} keys"));
    let mut table = MarkdownTable::new(
        ["ns, and relative to the memory store".to_owned()].into_iter().chain(columns),
    );
    rows.into_iter().for_each(|row| table.add_row(row));
    part.add_table(&table);
    Ok(())
}

/// Charges `key_count` keys in each store, and then measures the decision times. Returns the results of the memory
/// store, of the cluster with a single node, and of one node of a three-node cluster, in this order.
fn measure_decision_times(effort: Effort, key_count: usize) -> Result<Vec<Timing>, Box<dyn Error>> {
    let limit: Limit = LIMIT_PER_KEY.parse()?;
    let keys = Keys::new(key_count);
    let memory = MemoryStore::new();
    let (single_node, one_of_three) =
        (SimulatedNode::new(1, 10_000_000), SimulatedNode::new(1, 10_000_000));
    one_of_three.acknowledge_updates_up_to(0);
    charge_all_keys(&memory, &keys, &limit);
    charge_all_keys(single_node.store(), &keys, &limit);
    charge_all_keys(one_of_three.store(), &keys, &limit);
    let decisions = DECISIONS_PER_ROUND[usize::from(key_count > 100_000)];
    let count = |seed| (seed, decisions);
    let flushes = AtomicU64::new(0);
    let turns: [&TurnFn<'_>; 3] = [
        &|seed| charge_random_keys_and_count_denied(&memory, &keys, &limit, count(seed)),
        &|seed| {
            charge_random_keys_and_count_denied(single_node.store(), &keys, &limit, count(seed))
        },
        &|seed| {
            run_decisions_during_replication(&one_of_three, &flushes, || {
                let store = one_of_three.store();
                charge_random_keys_and_count_denied(store, &keys, &limit, count(seed))
            })
        },
    ];
    let plan = MeasurePlan { rounds: effort.rounds(), threads: 1, decisions };
    Ok(run_interleaved(plan, &turns))
}

/// Charges every key of a store once. Keys with an even number are charged up to the limit, and the other keys one
/// unit.
fn charge_all_keys(store: &impl Store, keys: &Keys, limit: &Limit) {
    let scope = new_tenant_scope();
    for (nth, key) in keys.range(0..keys.count()) {
        let cost = if nth % 2 == 0 { limit.quota().max() } else { 1 };
        let value = [key.into()];
        let hit = Hit::new(Key::new(&scope, &value), limit, cost);
        black_box(charge_in_store(store, &[hit]));
    }
}

fn charge_random_keys_and_count_denied(
    store: &impl Store,
    keys: &Keys,
    limit: &Limit,
    (seed, decisions): (u64, usize),
) -> usize {
    let scope = new_tenant_scope();
    let mut denied = 0;
    for (_, key) in keys.sample_uniform(seed, decisions) {
        let value = [key.into()];
        let hit = Hit::new(Key::new(&scope, &value), limit, 1);
        denied += usize::from(!charge_in_store(store, &[hit]));
    }
    denied
}

/// Runs `decide` while a second thread simulates replication. In each interval, the thread drains the changed counters
/// of the node, acknowledges them, and merges the same number of updates from a simulated node. `flushes` is the number of
/// replications so far.
fn run_decisions_during_replication(
    node: &SimulatedNode,
    flushes: &AtomicU64,
    decide: impl FnOnce() -> usize,
) -> usize {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let replication = scope.spawn(|| {
            loop {
                thread::park_timeout(REPLICATION_INTERVAL);
                if done.load(Ordering::Relaxed) {
                    break;
                }
                let flush = flushes.fetch_add(1, Ordering::Relaxed) + 1;
                let mut updates = Vec::new();
                node.counters().drain_changed(flush, usize::MAX, &mut updates);
                updates
                    .iter_mut()
                    .for_each(|update: &mut CounterUpdate| update.incarnation = Incarnation(101));
                node.counters().merge(&updates, DriftCorrectedClock::new().now());
                node.acknowledge_updates_up_to(flush);
            }
        });
        let denied = decide();
        done.store(true, Ordering::Relaxed);
        // Otherwise the time of the decisions would include the rest of the interval.
        replication.thread().unpark();
        denied
    })
}
