//! Many active keys: three nodes in this process, on loopback, that charge each key about once a second.

use std::error::Error;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use lab::keys::Keys;
use lab::part::{Effort, Part};
use lab::table::Table;
use slidegate::{DriftCorrectedClock, Hit, Key, Limit, Scope as KeyScope, Store};
use slidegate_cluster::{ClusterStore, Settings};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

/// Keys that are active.
const KEYS: usize = 100_000;

/// How often some of them are charged.
const STEP: Duration = Duration::from_millis(10);

/// Keys that are charged in a step: all of them within a second.
const AT_ONCE: usize = KEYS / 100;

type Node = ClusterStore<Arc<DriftCorrectedClock>>;

/// Runs three nodes.
pub fn run(effort: Effort, part: &mut Part) -> Result<(), Box<dyn Error>> {
    part.progress.expect(1);
    part.progress.step(&format!("{KEYS} active keys on three nodes"));
    let span = effort.pick(Duration::from_secs(20), Duration::from_secs(4));
    let table = tokio::runtime::Runtime::new()?.block_on(measure(span))?;
    part.say(format!("### {KEYS} active keys on three nodes, told every 250 ms"));
    part.table(&table);
    Ok(())
}

async fn measure(span: Duration) -> Result<Table, Box<dyn Error>> {
    let mut nodes = vec![start(&[]).await?];
    let seed = address(&nodes[0]).await;
    for _ in 0..2 {
        nodes.push(start(std::slice::from_ref(&seed)).await?);
    }
    while !nodes.iter().all(|node| node.status().is_some_and(|status| status.members.len() == 2)) {
        sleep(STEP).await;
    }
    let keys = Keys::new(KEYS);
    let limit: Limit = "1000000/h".parse()?;
    // Once all are known everywhere, what follows are changes.
    charge(&nodes, &keys, &limit, Duration::from_secs(3)).await;
    let (cpu, sent) = (cpu_s()?, sent_bytes(&nodes));
    let begun = Instant::now();
    let charged = charge(&nodes, &keys, &limit, span).await;
    sleep(Duration::from_secs(1)).await;
    let seconds = begun.elapsed().as_secs_f64();
    let (cpu, sent) = (cpu_s()? - cpu, (sent_bytes(&nodes) - sent) as f64);
    let mut table = Table::new(["", ""]);
    table.row(["keys changed in a second", &format!("{:.0}", charged as f64 / seconds)]);
    table.row([
        "bytes for a changed key, to each of the two others",
        &format!("{:.1}", sent / charged as f64 / 2.0),
    ]);
    table.row(["sent by all three, in a second", &format!("{:.2} MB", sent / seconds / 1e6)]);
    table.row([
        "CPU of all three and the charging",
        &format!("{:.0} % of a core", 100.0 * cpu / seconds),
    ]);
    Ok(table)
}

async fn start(seeds: &[String]) -> Result<Node, Box<dyn Error>> {
    let settings = Settings {
        listen: ([127, 0, 0, 1], 0).into(),
        advertise: None,
        seeds: seeds.to_vec(),
        name: None,
        key: None,
        sync_interval: Duration::from_millis(250),
        sync_wait: Duration::from_millis(20),
        max_clock_skew: Duration::from_secs(2),
        max_keys: 10_000_000,
        max_memory: 1 << 30,
    };
    Ok(ClusterStore::start(settings).await?)
}

async fn address(node: &Node) -> String {
    loop {
        if let Some(address) = node.status().and_then(|status| status.address.clone()) {
            return address;
        }
        sleep(STEP).await;
    }
}

/// Charges each key once a second, on one node after the other. Says how often it charged.
async fn charge(nodes: &[Node], keys: &Keys, limit: &Limit, span: Duration) -> usize {
    let scope = KeyScope::new("api", "per-tenant", "1h", &["tenant"]);
    let mut steps = interval(STEP);
    steps.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let (begun, mut charged) = (Instant::now(), 0);
    while begun.elapsed() < span {
        steps.tick().await;
        for _ in 0..AT_ONCE {
            let value = [keys.get(charged % KEYS).into()];
            let key = Key::new(&scope, &value);
            let hit = Hit::new(key, limit, 1);
            let taken = nodes[charged % nodes.len()].take(&[hit]).await;
            assert!(taken.is_ok_and(|taken| taken.allowed), "the limit is far");
            charged += 1;
        }
    }
    charged
}

fn sent_bytes(nodes: &[Node]) -> u64 {
    nodes.iter().filter_map(|node| Some(node.status()?.sent_bytes)).sum()
}

/// CPU time of this process, in seconds.
fn cpu_s() -> Result<f64, Box<dyn Error>> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let (_, fields) = stat.rsplit_once(')').ok_or("/proc has another form")?;
    let ticks = fields.split_whitespace().skip(11).take(2).map(str::parse::<f64>);
    Ok(ticks.sum::<Result<f64, _>>()? / 100.0)
}
