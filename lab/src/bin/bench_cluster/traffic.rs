//! Measures the replication cost of many active keys: three nodes in this process, connected over loopback, charge each
//! key about once a second.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use lab::keys::Keys;
use lab::program::BenchRun;
use lab::server::cpu_seconds;
use slidegate::clock::DriftCorrectedClock;
use slidegate::store::{Hit, Key, Scope as KeyScope};
use slidegate::{Limit, Store};
use slidegate_cluster::{ClusterSettings, ClusterStore};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// The number of active keys.
const KEY_COUNT: usize = 100_000;

/// The time between two steps of the load. Each step charges [`KEYS_PER_CHARGE_INTERVAL`] keys.
const CHARGE_INTERVAL: Duration = Duration::from_millis(10);

/// The number of keys that are charged in each step. All keys are charged within a second.
const KEYS_PER_CHARGE_INTERVAL: usize = KEY_COUNT / 100;

type ClusterNode = ClusterStore<Arc<DriftCorrectedClock>>;

/// Measures the replication cost of three nodes.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    tokio::runtime::Runtime::new()?.block_on(measure_replication_cost(run))
}

async fn measure_replication_cost(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let mut nodes = vec![start_cluster_node(&[]).await?];
    let seed = wait_for_node_address(&nodes[0]).await;
    for _ in 0..2 {
        nodes.push(start_cluster_node(std::slice::from_ref(&seed)).await?);
    }
    while !nodes.iter().all(|node| node.status().is_some_and(|status| status.members.len() == 2)) {
        sleep(CHARGE_INTERVAL).await;
    }
    let keys = Keys::new(KEY_COUNT);
    let limit: Limit = "1000000/h".parse()?;
    // All nodes know all keys afterwards, so the measurement covers changes of existing counters.
    charge_keys_continuously(&nodes, &keys, &limit, Duration::from_secs(3)).await;
    let (cpu, sent) = (cpu_seconds("self")?, sum_sent_bytes(&nodes));
    let start = Instant::now();
    let duration = run.effort.full_or_quick(Duration::from_secs(20), Duration::from_secs(4));
    let charged = charge_keys_continuously(&nodes, &keys, &limit, duration).await;
    sleep(Duration::from_secs(1)).await;
    let seconds = start.elapsed().as_secs_f64();
    let (cpu, sent) = (cpu_seconds("self")? - cpu, (sum_sent_bytes(&nodes) - sent) as f64);
    for (row, value) in [
        ("changed keys per second", charged as f64 / seconds),
        ("bytes per changed key and receiving node", sent / charged as f64 / 2.0),
        ("MB per second, sent by all three nodes", sent / seconds / 1e6),
        ("CPU of all three nodes and of the load, % of a core", 100.0 * cpu / seconds),
    ] {
        run.record(["cluster-traffic", row, "value"], value);
    }
    Ok(())
}

async fn start_cluster_node(seeds: &[String]) -> Result<ClusterNode, Box<dyn Error>> {
    let settings = ClusterSettings {
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        seeds: seeds.to_vec(),
        name: None,
        credentials: None,
        secret: None,
        sync_interval: Duration::from_millis(250),
        sync_wait: Duration::from_millis(20),
        max_clock_skew: Duration::from_secs(2),
        max_keys: 10_000_000,
        max_memory: 1 << 30,
    };
    Ok(ClusterStore::start(settings).await?)
}

async fn wait_for_node_address(node: &ClusterNode) -> String {
    loop {
        if let Some(address) = node.status().and_then(|status| status.address.clone()) {
            return address;
        }
        sleep(CHARGE_INTERVAL).await;
    }
}

/// Charges each key once a second for the given duration, on the nodes in turn. Returns the number of charges.
async fn charge_keys_continuously(
    nodes: &[ClusterNode],
    keys: &Keys,
    limit: &Limit,
    duration: Duration,
) -> usize {
    let scope = KeyScope::new("api", "per-tenant", "1h", &["tenant"]);
    let mut steps = interval(CHARGE_INTERVAL);
    steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (start, mut charged) = (Instant::now(), 0);
    while start.elapsed() < duration {
        steps.tick().await;
        for _ in 0..KEYS_PER_CHARGE_INTERVAL {
            let value = [keys.get(charged % KEY_COUNT).into()];
            let key = Key::new(&scope, &value);
            let hit = Hit::new(key, limit, 1);
            let taken = nodes[charged % nodes.len()].charge_async(&[hit]).await;
            assert!(taken.is_ok_and(|taken| taken.allowed), "the limit is never reached");
            charged += 1;
        }
    }
    charged
}

fn sum_sent_bytes(nodes: &[ClusterNode]) -> u64 {
    nodes.iter().filter_map(|node| Some(node.status()?.sent_bytes)).sum()
}
