//! Sends load with the programs h2load and oha.

use std::error::Error;
use std::process::Command;

use lab::results::median;
use lab::server::{ServerProcess, TempFile, load_command};
use serde_json::Value;

use crate::requests::{BenchRequest, Protocol};

/// The number of connections of a load, unless a measurement varies it.
pub const CONNECTIONS: usize = 50;

/// The folder in which the Makefile installs oha and throttlecrab-server.
pub const PEERS_FOLDER: &str = "target/peers/bin";

/// The result of a load in a closed loop.
#[derive(Clone, Copy)]
pub struct LoadResult {
    /// The number of requests per second.
    pub per_second: f64,
    /// The CPU time of the server per request in microseconds.
    pub cpu_us: f64,
}

/// A load in a closed loop: each connection sends a request as soon as a response has arrived.
#[derive(Clone, Copy)]
pub struct ClosedLoop {
    pub connections: usize,
    /// The number of concurrent requests per connection: pipelined over HTTP/1.1, streams over HTTP/2.
    pub depth: usize,
    pub requests: usize,
    /// The class of the status of all responses, such as `2xx`.
    pub status: &'static str,
}

impl ClosedLoop {
    /// Creates a load of `requests` requests, which are all allowed.
    pub fn new(depth: usize, requests: usize) -> Self {
        Self { connections: CONNECTIONS, depth, requests, status: "2xx" }
    }

    /// Sends the load with h2load.
    ///
    /// # Errors
    /// If h2load fails, or if not all responses have the expected status.
    pub fn run(
        &self,
        server: &ServerProcess,
        request: &BenchRequest,
    ) -> Result<LoadResult, Box<dyn Error>> {
        let body = TempFile::new(&request.body)?;
        let mut command = load_command("h2load");
        command.args(["-t", "1", "-c", &self.connections.to_string()]);
        command.args(["-n", &self.requests.to_string(), "-m", &self.depth.to_string()]);
        if request.protocol == Protocol::Http {
            command.arg("--h1");
        }
        for (name, value) in &request.headers {
            command.args(["-H", &format!("{name}: {value}")]);
        }
        if !request.body.is_empty() {
            command.arg("-d").arg(body.path());
        }
        command.arg(format!("http://{}{}", server.address(), request.path));
        let (output, cpu_seconds) = run_and_measure_cpu(server, command)?;
        let has_status = output.contains(&format!("{} {}", self.requests, self.status));
        let finished = output.lines().find_map(|line| line.strip_prefix("finished in "));
        let rate = finished.and_then(|line| line.split(", ").nth(1)?.strip_suffix(" req/s"));
        match rate.filter(|_| has_status).map(str::parse) {
            Some(Ok(per_second)) => {
                Ok(LoadResult { per_second, cpu_us: cpu_seconds * 1e6 / self.requests as f64 })
            }
            _ => Err(output.into()),
        }
    }
}

/// Sends `requests` requests with oha on [`CONNECTIONS`] connections. Each is sampled from `bodies`. Returns the CPU time
/// of the server per request in microseconds.
pub fn run_with_bodies(
    server: &ServerProcess,
    request: &BenchRequest,
    bodies: &TempFile,
    requests: usize,
) -> Result<f64, Box<dyn Error>> {
    let mut command = new_oha(request);
    command.args(["-n", &requests.to_string(), "-Z"]).arg(bodies.path());
    command.arg(format!("http://{}{}", server.address(), request.path));
    let (output, cpu_seconds) = run_and_measure_cpu(server, command)?;
    check_success(&serde_json::from_str(&output)?)?;
    Ok(cpu_seconds * 1e6 / requests as f64)
}

/// The latencies of a load at a constant rate, in microseconds.
pub struct Latencies {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Sends requests at a constant rate for `seconds` seconds with oha on [`CONNECTIONS`] connections. A request that waits
/// for a late response is late, too.
pub fn measure_latencies(
    server: &ServerProcess,
    request: &BenchRequest,
    per_second: f64,
    seconds: u32,
) -> Result<Latencies, Box<dyn Error>> {
    let body = TempFile::new(&request.body)?;
    let mut command = new_oha(request);
    command.args(["-q", &format!("{per_second:.0}"), "-z", &format!("{seconds}s")]);
    command.args(["--latency-correction", "--wait-ongoing-requests-after-deadline", "-D"]);
    command.arg(body.path()).arg(format!("http://{}{}", server.address(), request.path));
    let (output, _) = run_and_measure_cpu(server, command)?;
    let report: Value = serde_json::from_str(&output)?;
    check_success(&report)?;
    let percentile = |name| report["latencyPercentiles"][name].as_f64().ok_or("no percentile");
    Ok(Latencies { p50_us: percentile("p50")? * 1e6, p99_us: percentile("p99")? * 1e6 })
}

fn new_oha(request: &BenchRequest) -> Command {
    let mut command = load_command(format!("{PEERS_FOLDER}/oha"));
    command.args(["--no-tui", "--output-format", "json", "-m", "POST", "--worker-threads", "1"]);
    command.args(["-c", &CONNECTIONS.to_string()]);
    if request.protocol == Protocol::Grpc {
        command.arg("--http2");
    }
    for (name, value) in &request.headers {
        command.args(["-H", &format!("{name}: {value}")]);
    }
    command
}

/// Fails if not all responses have the status 200.
fn check_success(report: &Value) -> Result<(), Box<dyn Error>> {
    let statuses = report["statusCodeDistribution"].as_object().ok_or("no statuses")?;
    let has_errors =
        report["errorDistribution"].as_object().is_some_and(|errors| !errors.is_empty());
    match statuses.keys().all(|status| status == "200") && !has_errors {
        true => Ok(()),
        false => Err(format!("{statuses:?} {}", report["errorDistribution"]).into()),
    }
}

/// Runs a load generator. Returns its standard output, and the CPU time of the server in seconds.
fn run_and_measure_cpu(
    server: &ServerProcess,
    mut command: Command,
) -> Result<(String, f64), Box<dyn Error>> {
    let before = server.cpu_seconds()?;
    let output = command.output()?;
    let cpu_seconds = server.cpu_seconds()? - before;
    if !output.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), cpu_seconds))
}

/// Measures contenders in turns, so that noise affects all of them. Returns the results of each contender. An additional
/// first round fills tables and caches, and is dropped.
pub fn take_turns<T>(
    rounds: usize,
    contenders: usize,
    mut measure: impl FnMut(usize) -> Result<T, Box<dyn Error>>,
) -> Result<Vec<Vec<T>>, Box<dyn Error>> {
    let mut all: Vec<Vec<T>> = (0..contenders).map(|_| Vec::new()).collect();
    for round in 0..=rounds {
        for (contender, results) in all.iter_mut().enumerate() {
            let measured = measure(contender)?;
            if round > 0 {
                results.push(measured);
            }
        }
    }
    Ok(all)
}

/// Returns the median CPU time of several results, in microseconds.
pub fn median_cpu_us(results: &[LoadResult]) -> f64 {
    median(results.iter().map(|result| result.cpu_us))
}
