//! Measures the time until a started server has sent its first response, and its resident memory.

use std::error::Error;

use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use quanta::Instant;
use tokio::runtime::Builder;

use crate::connection::BenchConnection;
use crate::contenders;
use crate::request::{BenchRequest, Protocol};
use crate::rounds::{median, run_interleaved};

const MAX_START_MS: BenchTarget = BenchTarget {
    text: "start of `slidegate serve` to the first response, ms",
    bound: TargetBound::AtMost(50.0),
    limited_by: "",
};

const MAX_IDLE_MB: BenchTarget = BenchTarget {
    text: "resident memory of an idle server, MB",
    bound: TargetBound::AtMost(20.0),
    limited_by: "",
};

const MAX_CONNECTIONS_MB: BenchTarget = BenchTarget {
    text: "resident memory with 1,000 idle connections, MB",
    bound: TargetBound::AtMost(60.0),
    limited_by: "",
};

/// The number of idle connections. Each has sent one request.
const IDLE_CONNECTIONS: usize = 1_000;

const SECTION_INTRODUCTION: &str = "
### Start and memory

The time from the start of the process to the end of the first response to a check over HTTP, and the resident memory \
(RSS) after this response, and with 1,000 connections that have each sent one request. slidegate has three rules and all \
its listeners, throttlecrab only the one for HTTP. The values are medians of the rounds.";

/// The measurements of one start.
struct StartResult {
    start_ms: f64,
    idle_mb: f64,
    connections_mb: f64,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(1);
    part.progress.begin_step("start and memory");
    let names = ["slidegate", "throttlecrab"];
    let rounds = run_interleaved(effort.rounds(), names.len(), |index| match index {
        0 => measure_start(|| contenders::slidegate(Protocol::Http), &BenchRequest::check()),
        _ => measure_start(|| contenders::throttlecrab(Protocol::Http), &BenchRequest::throttle()),
    })?;
    let mut table =
        MarkdownTable::new(["server", "start, ms", "idle, MB", "1,000 connections, MB"]);
    for (name, rounds) in names.iter().zip(&rounds) {
        let [start_ms, idle_mb, connections_mb] = [
            median(rounds, |round: &StartResult| round.start_ms),
            median(rounds, |round: &StartResult| round.idle_mb),
            median(rounds, |round: &StartResult| round.connections_mb),
        ];
        table.add_row([
            (*name).to_owned(),
            format!("{start_ms:.1}"),
            format!("{idle_mb:.1}"),
            format!("{connections_mb:.1}"),
        ]);
        if *name == "slidegate" {
            part.record_target(&MAX_START_MS, start_ms);
            part.record_target(&MAX_IDLE_MB, idle_mb);
            part.record_target(&MAX_CONNECTIONS_MB, connections_mb);
        }
    }
    part.add_table(&table);
    Ok(())
}

fn measure_start(
    start_server: impl FnOnce() -> Result<ServerProcess, Box<dyn Error>>,
    request: &BenchRequest,
) -> Result<StartResult, Box<dyn Error>> {
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let started = Instant::now();
    let server = start_server()?;
    runtime.block_on(async {
        let connect = || BenchConnection::connect(server.address(), request);
        let mut connections = vec![connect().await?];
        connections[0].send_and_drop_response().await?;
        let start_ms = started.elapsed().as_secs_f64() * 1e3;
        let idle_mb = server.resident_bytes()? as f64 / 1e6;
        while connections.len() < IDLE_CONNECTIONS {
            let mut connection = connect().await?;
            connection.send_and_drop_response().await?;
            connections.push(connection);
        }
        let connections_mb = server.resident_bytes()? as f64 / 1e6;
        Ok(StartResult { start_ms, idle_mb, connections_mb })
    })
}
