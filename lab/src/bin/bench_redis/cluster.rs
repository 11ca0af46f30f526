//! Measures many concurrent callers with one Redis server, and with a Redis Cluster of three masters.

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use lab::key_distribution::KeyDistribution;
use lab::part::ReportPart;
use lab::table::MarkdownTable;
use slidegate::Algorithm;
use slidegate_redis::{RedisStore, Settings};
use tokio::runtime::Runtime;

use crate::BenchScale;
use crate::caller_load::{CALLERS, CallerBackend, CallerLoad, LoadResult, run_callers, runtime};
use crate::rounds::median;
use crate::scripts::SlidegateScripts;
use crate::server::{RedisServer, free_port};

const IDENTITY_COUNT: usize = 100_000;

const REDIS_MASTER_COUNT: u16 = 3;

const REDIS_HASH_SLOT_COUNT: u16 = 16_384;

/// The maximum time in which the masters must form a cluster.
const CLUSTER_FORMATION_TIMEOUT: Duration = Duration::from_secs(20);

/// The Redis servers of one contender, and the store that its callers use.
struct RedisContender {
    name: &'static str,
    servers: Vec<RedisServer>,
    backend: Arc<CallerBackend>,
}

impl RedisContender {
    fn new(
        name: &'static str,
        servers: Vec<RedisServer>,
        address: &str,
        runtime: &Runtime,
    ) -> Result<Self, Box<dyn Error>> {
        let _runtime_guard = runtime.enter();
        let slidegate = Arc::new(SlidegateScripts::new(&["1000000/d"], Algorithm::SlidingCounter)?);
        let settings = Settings {
            timeout: Duration::from_secs(5),
            deny_cache_ttl: Duration::ZERO,
            ..Settings::default()
        };
        let store = RedisStore::open(address, settings)?;
        Ok(Self { name, servers, backend: Arc::new(CallerBackend::Store { slidegate, store }) })
    }
}

/// Measures the callers with one Redis server and with three masters, and adds a table to the report.
pub fn run(scale: BenchScale, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.progress.add_steps(2);
    part.progress.begin_step("starting a Redis Cluster of three masters");
    let runtime = runtime()?;
    let single = RedisServer::start()?;
    let address = single.address();
    let masters = start_redis_cluster()?;
    let seeds: Vec<String> = masters.iter().map(RedisServer::host_and_port).collect();
    let mut contenders = [
        RedisContender::new("one Redis", vec![single], &address, &runtime)?,
        RedisContender::new(
            "three masters",
            masters,
            &format!("redis+cluster://{}", seeds.join(",")),
            &runtime,
        )?,
    ];
    part.progress.begin_step(&format!("{CALLERS} callers, one Redis and three masters"));
    let mut rounds: [Vec<LoadResult>; 2] = Default::default();
    // The first round loads scripts and opens connections.
    for round in 0..=scale.caller_rounds {
        for nth in 0..contenders.len() {
            let at = (round + nth) % contenders.len();
            let (distribution, requests) =
                (KeyDistribution::Uniform(IDENTITY_COUNT), scale.caller_requests);
            let load = CallerLoad { distribution, requests, interval: None, seed: round as u64 };
            let backend = contenders[at].backend.clone();
            let result = run_callers(&runtime, &mut contenders[at].servers, &backend, &load)?;
            if round > 0 {
                rounds[at].push(result);
            }
        }
    }
    part.add_text(format!(
        "### Redis Cluster\n\n{CALLERS} callers as above, {IDENTITY_COUNT} identities, all allowed: one Redis compared with \
         three masters on the same two cores, so the masters share the CPU time that a single Redis has for itself. \
         The table shows the cost of a decision when requests are spread over three servers: fewer requests share a \
         call. CPU is the time of all servers in microseconds per decision; latencies are in milliseconds."
    ));
    part.add_table(&new_cluster_table(&contenders, &rounds));
    Ok(())
}

fn new_cluster_table(
    contenders: &[RedisContender; 2],
    rounds: &[Vec<LoadResult>; 2],
) -> MarkdownTable {
    let columns = ["", "decisions/s", "CPU, us", "requests per call", "p50, ms", "p99, ms"];
    let mut table = MarkdownTable::new(columns);
    for (contender, results) in contenders.iter().zip(rounds) {
        let median_of = |field: fn(&LoadResult) -> f64| median(results.iter().map(field));
        table.add_row([
            contender.name.to_owned(),
            format!("{:.0}", median_of(|result| result.per_second)),
            format!("{:.1}", median_of(|result| result.cpu_us)),
            format!("{:.0}", median_of(|result| result.requests / result.calls)),
            format!("{:.2}", median_of(|result| result.p50_ms)),
            format!("{:.2}", median_of(|result| result.p99_ms)),
        ]);
    }
    table
}

/// Starts the masters and connects them to a cluster in which each master has a third of all slots.
fn start_redis_cluster() -> Result<Vec<RedisServer>, Box<dyn Error>> {
    let mut masters: Vec<RedisServer> =
        (0..REDIS_MASTER_COUNT).map(|_| start_redis_master()).collect::<Result<_, _>>()?;
    let first = masters[0].host_and_port();
    let (host, port) = first.split_once(':').ok_or("an address without a port")?;
    for (nth, master) in (0..REDIS_MASTER_COUNT).zip(&mut masters) {
        let from =
            u32::from(nth) * u32::from(REDIS_HASH_SLOT_COUNT) / u32::from(REDIS_MASTER_COUNT);
        let to = u32::from(nth + 1) * u32::from(REDIS_HASH_SLOT_COUNT)
            / u32::from(REDIS_MASTER_COUNT)
            - 1;
        let slots = redis::cmd("CLUSTER").arg("ADDSLOTSRANGE").arg(from).arg(to).clone();
        master.query::<String>(&slots)?;
    }
    let bus: String = masters[0]
        .query(redis::cmd("CONFIG").arg("GET").arg("cluster-port"))
        .map(|words: Vec<String>| words.into_iter().next_back().unwrap_or_default())?;
    for master in &mut masters[1..] {
        master.query::<String>(redis::cmd("CLUSTER").arg("MEET").arg(host).arg(port).arg(&bus))?;
    }
    for master in &mut masters {
        wait_until_cluster_ready(master)?;
    }
    Ok(masters)
}

/// Starts one Redis server in cluster mode. Redis writes the cluster configuration to a file in the folder of this
/// program.
fn start_redis_master() -> Result<RedisServer, Box<dyn Error>> {
    let bus = free_port()?.to_string();
    let file = std::env::current_exe()?.with_file_name(format!("bench-redis-nodes-{bus}.conf"));
    let file = file.display().to_string();
    RedisServer::start_with(&[
        "--cluster-enabled",
        "yes",
        "--cluster-port",
        &bus,
        "--cluster-config-file",
        &file,
    ])
}

/// Waits until a master knows all other masters and the owners of all slots.
fn wait_until_cluster_ready(master: &mut RedisServer) -> Result<(), Box<dyn Error>> {
    let start = quanta::Instant::now();
    while start.elapsed() < CLUSTER_FORMATION_TIMEOUT {
        let info: String = master.query(redis::cmd("CLUSTER").arg("INFO"))?;
        let known = format!("cluster_known_nodes:{REDIS_MASTER_COUNT}");
        if info.contains("cluster_state:ok") && info.contains(&known) {
            return Ok(());
        }
        thread::sleep(Duration::from_millis(50));
    }
    Err("the masters did not form a cluster in time".into())
}
