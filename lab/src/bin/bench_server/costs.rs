//! Measures the CPU time of a decision in each mode, and its price.

use std::error::Error;
use std::process::Command;

use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use quanta::Instant;
use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request, SystemClock};

use crate::request::{BenchRequest, Protocol};
use crate::rounds::{median, run_interleaved};
use crate::{contenders, h2load};

/// The price of one core for an hour, in US dollars.
const DOLLARS_PER_CORE_HOUR: f64 = 0.04;

const SECTION_INTRODUCTION: &str = "
### Cost of a billion decisions

The CPU time of a decision with three limits, all allowed, and the price of a billion decisions at 0.04 US dollars per \
core hour. The CPU time includes the operating system's part for the server, and with Redis the time of redis-server. \
It does not include the callers, the network between machines, or idle cores. The server is busy, and the requests \
have no idempotency keys.";

/// The maximum number of keys of the store in this process.
const MAX_KEYS: usize = 100_000;

/// A way to get decisions, with the processes that take CPU time for it.
struct CostMode {
    name: &'static str,
    request: BenchRequest,
    /// The number of concurrent requests per connection.
    depth: usize,
    server: ServerProcess,
    redis: Option<ServerProcess>,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(1);
    part.progress.begin_step("cost of a billion decisions");
    let modes = start_modes()?;
    let requests = effort.pick(60_000, 20_000);
    let rounds = run_interleaved(effort.rounds(), modes.len() + 1, |index| match index {
        0 => measure_library_us(effort),
        _ => modes[index - 1].measure_cpu_us(requests),
    })?;
    let mut table =
        MarkdownTable::new(["decisions", "CPU µs per decision", "US dollars per billion"]);
    let names = ["library, in the process of the caller"];
    for (name, rounds) in names.into_iter().chain(modes.iter().map(|mode| mode.name)).zip(&rounds) {
        let cpu_us = median(rounds, |cpu_us| *cpu_us);
        // A billion decisions take a thousand times as many seconds as one takes microseconds.
        let dollars = cpu_us * 1e3 / 3600.0 * DOLLARS_PER_CORE_HOUR;
        table.add_row([name.to_owned(), format!("{cpu_us:.2}"), format!("{dollars:.3}")]);
    }
    part.add_table(&table);
    Ok(())
}

fn start_modes() -> Result<Vec<CostMode>, Box<dyn Error>> {
    let mode = |name, protocol, request, depth| -> Result<_, Box<dyn Error>> {
        let server = contenders::slidegate(protocol)?;
        Ok(CostMode { name, request, depth, server, redis: None })
    };
    let redis = ServerProcess::start_on_free_port(|address| {
        let mut command = Command::new("redis-server");
        command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--appendonly", "no"]);
        command
    })?;
    let store = format!("redis://{}", redis.address());
    let flags = ["--store", store.as_str()];
    let on_redis =
        contenders::slidegate_with(Protocol::Http, contenders::ALLOW_ALL_POLICY, &flags)?;
    Ok(vec![
        mode("HTTP `/v1/check`", Protocol::Http, BenchRequest::check(), 1)?,
        mode("HTTP `/v1/check`, 16 concurrent", Protocol::Http, BenchRequest::check(), 16)?,
        mode("HTTP `/v1/auth`", Protocol::Http, BenchRequest::auth(), 1)?,
        mode("gRPC", Protocol::Grpc, BenchRequest::should_rate_limit(3), 1)?,
        mode("gRPC, 10 concurrent", Protocol::Grpc, BenchRequest::should_rate_limit(3), 10)?,
        CostMode {
            name: "HTTP `/v1/check`, counters in Redis",
            request: BenchRequest::check(),
            depth: 1,
            server: on_redis,
            redis: Some(redis),
        },
    ])
}

impl CostMode {
    fn measure_cpu_us(&self, requests: usize) -> Result<f64, Box<dyn Error>> {
        let redis_seconds = || self.redis.as_ref().map_or(Ok(0.0), ServerProcess::cpu_seconds);
        let before = redis_seconds()?;
        let result = h2load::run(&self.server, &self.request, self.depth, requests)?;
        Ok(result.cpu_us + (redis_seconds()? - before) * 1e6 / requests as f64)
    }
}

/// Returns the time of a decision with three limits in this process, in microseconds.
fn measure_library_us(effort: Effort) -> Result<f64, Box<dyn Error>> {
    let policy = Policy::from_yaml(contenders::ALLOW_ALL_POLICY)?;
    let gate = Gate::new(policy, MemoryStore::with_clock(SystemClock::new(), MAX_KEYS));
    let attributes = [("tenant", "tenant-0042"), ("method", "POST"), ("route", "/v1/orders")];
    let decisions = effort.pick(500_000, 100_000);
    let started = Instant::now();
    for _ in 0..decisions {
        let decision = gate.check(&Request::new("default", Descriptor::new(attributes)));
        if !decision.is_allowed() || decision.limits().count() != 3 {
            return Err("expected a request allowed by three limits".into());
        }
    }
    Ok(started.elapsed().as_secs_f64() * 1e6 / f64::from(decisions))
}
