//! Measures the time until a started server has sent its first response, and its resident memory.

use std::error::Error;
use std::time::Instant;

use lab::program::BenchRun;
use lab::results::median;
use lab::server::ServerProcess;

use crate::http::HttpConnection;
use crate::load::take_turns;
use crate::requests::{BenchRequest, Protocol};
use crate::servers::{start_default_slidegate, start_throttlecrab};

/// The number of idle connections. Each has sent one request.
const IDLE_CONNECTIONS: usize = 1_000;

const COLUMNS: [&str; 3] = ["start, ms", "idle, MB", "1,000 connections, MB"];

pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let rounds = take_turns(run.effort.full_or_quick(7, 3), 2, |index| match index {
        0 => measure_start(start_default_slidegate, &BenchRequest::check()),
        _ => measure_start(start_throttlecrab, &BenchRequest::throttle()),
    })?;
    for (name, rounds) in ["slidegate", "throttlecrab"].into_iter().zip(rounds) {
        for (nth, column) in COLUMNS.into_iter().enumerate() {
            run.record(
                ["server-startup", name, column],
                median(rounds.iter().map(|round| round[nth])),
            );
        }
    }
    Ok(())
}

/// Returns the values of [`COLUMNS`].
fn measure_start(
    start_server: fn(Protocol) -> Result<ServerProcess, Box<dyn Error>>,
    request: &BenchRequest,
) -> Result<[f64; 3], Box<dyn Error>> {
    let started = Instant::now();
    let server = start_server(Protocol::Http)?;
    let mut connections = vec![HttpConnection::open(server.address())?];
    connections[0].send(request)?;
    let start_ms = started.elapsed().as_secs_f64() * 1e3;
    let idle_mb = server.resident_bytes()? as f64 / 1e6;
    while connections.len() < IDLE_CONNECTIONS {
        let mut connection = HttpConnection::open(server.address())?;
        connection.send(request)?;
        connections.push(connection);
    }
    Ok([start_ms, idle_mb, server.resident_bytes()? as f64 / 1e6])
}
