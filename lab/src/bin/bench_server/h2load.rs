//! Sends load with the program h2load. It repeats one request on each connection as soon as the previous response has
//! arrived (a closed loop).

use std::error::Error;
use std::process::Command;

use lab::server::{ServerProcess, TempFile};

use crate::request::{BenchRequest, Protocol};
use crate::rounds::TurnResult;

/// The number of connections that h2load opens, unless a measurement varies it.
pub const CONNECTIONS: usize = 50;

/// Runs h2load on [`CONNECTIONS`] connections, which sends `requests` requests with at most `depth` concurrent requests
/// per connection. Returns the request rate and the CPU time of the server.
pub fn run(
    server: &ServerProcess,
    request: &BenchRequest,
    depth: usize,
    requests: usize,
) -> Result<TurnResult, Box<dyn Error>> {
    run_on_connections(CONNECTIONS, server, request, depth, requests)
}

/// Runs h2load like [`run`], on `connections` connections.
pub fn run_on_connections(
    connections: usize,
    server: &ServerProcess,
    request: &BenchRequest,
    depth: usize,
    requests: usize,
) -> Result<TurnResult, Box<dyn Error>> {
    let body = TempFile::new(&request.body)?;
    let mut command = Command::new("h2load");
    command.args(["-t", "1", "-c", &connections.to_string()]);
    command.args(["-n", &requests.to_string(), "-m", &depth.to_string()]);
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
    let before = server.cpu_seconds()?;
    let output = command.output().map_err(|error| format!("h2load: {error}; install it first"))?;
    let cpu_us = (server.cpu_seconds()? - before) * 1e6 / requests as f64;
    let output = String::from_utf8_lossy(&output.stdout).into_owned();
    let per_second = parse_requests_per_second(&output, requests).ok_or(output)?;
    Ok(TurnResult { per_second, cpu_us, denied: 0.0 })
}

/// Parses the requests per second in the output of h2load. Returns `None` if not all of the `requests` responses have a
/// 2xx status.
fn parse_requests_per_second(output: &str, requests: usize) -> Option<f64> {
    let all = [format!("{requests} succeeded, 0 failed"), format!("{requests} 2xx")];
    all.iter().all(|all| output.contains(all)).then_some(())?;
    let finished = output.lines().find_map(|line| line.strip_prefix("finished in "))?;
    finished.split(", ").nth(1)?.strip_suffix(" req/s")?.parse().ok()
}
