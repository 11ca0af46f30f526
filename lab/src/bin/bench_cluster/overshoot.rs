//! Measures the overshoot of a cluster: the requests that three servers allow beyond one shared limit while clients
//! send more requests than the limit allows.

use std::error::Error;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use lab::chart::{Bar, bar_chart_with_marks};
use lab::h2load::read_log;
use lab::program::BenchRun;
use lab::server::{ServerProcess, TempFile, free_address, load_command};
use slidegate::{Algorithm, Limit, Quota};
use slidegate_cluster::bound::{default_max_unsynced, max_units_in_window};

/// The number of servers, each of which is a node of the cluster.
const NODE_COUNT: usize = 3;

/// The number of requests per second to each server.
const REQUESTS_PER_SECOND: u64 = 1_000;

/// The number of connections to each server.
const CONNECTIONS: u64 = 8;

/// The length of a run, in windows.
const WINDOWS: u32 = 2;

/// The time between the start of the servers and the first requests, in which the nodes find each other.
const START_DELAY: Duration = Duration::from_secs(7);

const SLIDING_BUCKETS: Algorithm = Algorithm::SlidingBuckets { precision: None };

pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let window = Duration::from_secs(run.effort.full_or_quick(10, 2));
    let quota = Quota::new(600 * window.as_secs(), window)?;
    let (mut bars, mut bounds) = (Vec::new(), Vec::new());
    for (algorithm, interval) in [
        (Algorithm::default(), "250ms"),
        (SLIDING_BUCKETS, "50ms"),
        (SLIDING_BUCKETS, "250ms"),
        (SLIDING_BUCKETS, "1s"),
        (Algorithm::SlidingCounter, "250ms"),
    ]
    .into_iter()
    .take(run.effort.full_or_quick(5, 1))
    {
        let limit = Limit::new(quota, algorithm)?;
        let allowed = measure_fullest_window(&limit, interval)? as f64;
        let nodes = NODE_COUNT as u64;
        let bound =
            max_units_in_window(&limit, nodes, default_max_unsynced(&limit, nodes), 1) as f64;
        let row = format!("{algorithm}, replicated every {interval}");
        let table = "cluster-overshoot";
        run.record([table, &row, "allowed in the fullest window"], allowed);
        run.record([table, &row, "beyond max, %"], 100.0 * (allowed / quota.max() as f64 - 1.0));
        run.record([table, &row, "bound"], bound);
        bars.push(Bar { name: row, value: allowed, label: allowed.to_string() });
        bounds.push(bound);
    }
    let title = format!("Allowed in the fullest window by three servers; max is {}", quota.max());
    run.write_chart("cluster-slipped", &bar_chart_with_marks(&title, &bars, &bounds, "bound")?)
}

/// Starts three servers and sends requests to all of them. Returns the largest number of requests that they allow in any
/// window.
fn measure_fullest_window(limit: &Limit, interval: &str) -> Result<usize, Box<dyn Error>> {
    let window = limit.quota().window();
    let policy = format!(
        "rules: [{{ name: all, limits: [{{ max: {}, window: {}ms }}], algorithm: {} }}]",
        limit.quota().max(),
        window.as_millis(),
        limit.algorithm()
    );
    let seed = free_address()?.to_string();
    let mut servers = Vec::new();
    for nth in 0..NODE_COUNT {
        let listen = if nth == 0 { seed.clone() } else { free_address()?.to_string() };
        let flags =
            ["--grpc", "none", "--admin", "none", "--log-denials", "0", "--store", "cluster://"];
        let cluster = [
            "--cluster-listen",
            &listen,
            "--cluster-seeds",
            &seed,
            "--cluster-sync-interval",
            interval,
        ];
        let flags = [&flags[..], &cluster].concat();
        servers.push(ServerProcess::start_slidegate(&policy, "listening on http://", &flags)?);
    }
    thread::sleep(START_DELAY);
    let mut allowed_us = send_requests(&servers, window * WINDOWS)?;
    allowed_us.sort_unstable();
    Ok(max_in_window(&allowed_us, window.as_micros() as u64))
}

/// Sends requests to all servers with h2load at a constant rate. Returns the times of the allowed ones in microseconds.
fn send_requests(
    servers: &[ServerProcess],
    duration: Duration,
) -> Result<Vec<u64>, Box<dyn Error>> {
    let body = TempFile::new(b"{\"attributes\":{}}")?;
    let mut loads = Vec::new();
    for server in servers {
        let log = TempFile::new(b"")?;
        let mut command = load_command("h2load");
        command.args([
            "--h1",
            "-t",
            "1",
            "-c",
            &CONNECTIONS.to_string(),
            "-H",
            "content-type: application/json",
        ]);
        command.args(["--rps", &(REQUESTS_PER_SECOND / CONNECTIONS).to_string()]);
        command.args(["-D", &duration.as_secs().to_string(), "-d"]).arg(body.path());
        command.arg("--log-file").arg(log.path());
        command.arg(format!("http://{}/v1/check", server.address())).stdout(Stdio::null());
        loads.push((command.spawn()?, log));
    }
    let mut allowed_us = Vec::new();
    for (mut load, log) in loads {
        if !load.wait()?.success() {
            return Err("h2load failed".into());
        }
        let responses = read_log(log.path())?;
        let allowed = responses.iter().filter(|response| response.status == 200);
        allowed_us.extend(allowed.map(|response| response.start_us + response.elapsed_us));
    }
    Ok(allowed_us)
}

/// Returns the maximum number of requests in any window. `sorted_us` has the times of the requests in ascending order.
fn max_in_window(sorted_us: &[u64], window_us: u64) -> usize {
    let mut first = 0;
    let counts = sorted_us.iter().enumerate().map(|(nth, at_us)| {
        while sorted_us[first] + window_us <= *at_us {
            first += 1;
        }
        nth + 1 - first
    });
    counts.max().unwrap_or(0)
}
