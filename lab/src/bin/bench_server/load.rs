//! Sends load with the programs h2load and wrk.

use std::error::Error;
use std::process::Command;

use hdrhistogram::Histogram;
use lab::h2load::read_log;
use lab::results::median;
use lab::server::{ServerProcess, TempFile, load_command};

use crate::requests::{BenchRequest, CHECK_PATH, Protocol};

/// The number of connections of a load, unless a measurement varies it.
pub const CONNECTIONS: usize = 50;

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
pub struct ClosedLoopLoad {
    pub connections: usize,
    /// The number of concurrent requests per connection: pipelined over HTTP/1.1, streams over HTTP/2.
    pub depth: usize,
    pub requests: usize,
    /// The class of the status of all responses, such as `2xx`.
    pub status: &'static str,
}

impl ClosedLoopLoad {
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
        let mut command = new_h2load(server, request, &body, self.connections);
        command.args(["-n", &self.requests.to_string(), "-m", &self.depth.to_string()]);
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

/// Creates the command of h2load without the number and the rate of the requests.
fn new_h2load(
    server: &ServerProcess,
    request: &BenchRequest,
    body: &TempFile,
    connections: usize,
) -> Command {
    let mut command = load_command("h2load");
    command.args(["-t", "1", "-c", &connections.to_string()]);
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
    command
}

/// The latencies of a load at a constant rate, in microseconds.
pub struct Latencies {
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Sends requests at a constant rate for `seconds` seconds with h2load on [`CONNECTIONS`] connections, one at a time on
/// each. A latency is the time from sending a request to the end of its response.
pub fn measure_latencies(
    server: &ServerProcess,
    request: &BenchRequest,
    per_second: f64,
    seconds: u32,
) -> Result<Latencies, Box<dyn Error>> {
    let (body, log) = (TempFile::new(&request.body)?, TempFile::new(b"")?);
    let mut command = new_h2load(server, request, &body, CONNECTIONS);
    let per_connection = per_second / CONNECTIONS as f64;
    command.args(["--rps", &format!("{per_connection:.0}"), "-D", &seconds.to_string()]);
    command.arg("--log-file").arg(log.path());
    run_and_measure_cpu(server, command)?;
    let mut latencies_us = Histogram::<u64>::new(3)?;
    for response in read_log(log.path())? {
        if response.status != 200 {
            return Err(format!("unexpected status {}", response.status).into());
        }
        latencies_us.record(response.elapsed_us)?;
    }
    let percentile = |quantile| latencies_us.value_at_quantile(quantile) as f64;
    Ok(Latencies { p50_us: percentile(0.50), p99_us: percentile(0.99) })
}

/// Sends check requests of `tenants` tenants with wrk for `seconds` seconds on [`CONNECTIONS`] connections. Returns the
/// CPU time of the server per request in microseconds.
pub fn measure_tenants(
    server: &ServerProcess,
    tenants: usize,
    seconds: u32,
) -> Result<f64, Box<dyn Error>> {
    let script = TempFile::new(format!(include_str!("tenants.lua"), tenants = tenants).as_bytes())?;
    let mut command = load_command("wrk");
    command.args(["-t", "1", "-c", &CONNECTIONS.to_string(), "-d", &format!("{seconds}s"), "-s"]);
    command.arg(script.path()).arg(format!("http://{}{CHECK_PATH}", server.address()));
    let (output, cpu_seconds) = run_and_measure_cpu(server, command)?;
    let requests =
        output.lines().find_map(|line| line.split_once(" requests in ")?.0.trim().parse().ok());
    match requests {
        Some::<f64>(requests) if !output.contains("Non-2xx") => Ok(cpu_seconds * 1e6 / requests),
        _ => Err(output.into()),
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
