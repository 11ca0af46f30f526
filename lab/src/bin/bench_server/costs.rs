//! Measures the cost of telemetry, and the CPU time of a decision in each way to use the server.

use std::error::Error;

use lab::policies::THREE_LIMITS_POLICY;
use lab::program::BenchRun;
use lab::results::median;
use lab::server::ServerProcess;

use crate::load::{ClosedLoopLoad, median_cpu_us, take_turns};
use crate::requests::{BenchRequest, Protocol};
use crate::servers::{start_default_slidegate, start_slidegate};

/// A policy with as many limits as [`THREE_LIMITS_POLICY`], which denies nearly all requests of the benchmark.
const DENYING_POLICY: &str = "
rules:
  - { name: tenant, per: [tenant], limits: [3/d] }
  - { name: writes, when: { method: POST }, per: [tenant], limits: [100000000/s] }
  - { name: everybody, limits: [100000000/s] }
";

/// Compares a server with the default telemetry (metrics, top keys, and the sampled log of denials) with a server
/// without telemetry.
pub fn measure_telemetry(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    for (row, policy, status, depth) in [
        ("all allowed", THREE_LIMITS_POLICY, "2xx", 1),
        ("all allowed, 16 concurrent", THREE_LIMITS_POLICY, "2xx", 16),
        ("nearly all denied", DENYING_POLICY, "4xx", 1),
        ("nearly all denied, 16 concurrent", DENYING_POLICY, "4xx", 16),
    ] {
        let servers = [
            start_slidegate(Protocol::Http, policy, &[])?,
            start_slidegate(Protocol::Http, policy, &["--admin", "none", "--log-denials", "0"])?,
        ];
        // The denying policy allows the first three requests, which are sent before the measurement.
        let first = ClosedLoopLoad { connections: 1, ..ClosedLoopLoad::new(1, 3) };
        for server in &servers {
            first.run(server, &BenchRequest::check())?;
        }
        let load = ClosedLoopLoad {
            status,
            ..ClosedLoopLoad::new(depth, run.effort.full_or_quick(80_000, 20_000))
        };
        let results = take_turns(run.effort.full_or_quick(7, 3), 2, |index| {
            load.run(&servers[index], &BenchRequest::check())
        })?;
        for (column, results) in ["with telemetry", "without"].into_iter().zip(&results) {
            run.record(["server-telemetry", row, column], median_cpu_us(results));
        }
    }
    Ok(())
}

/// A way to use the server, with the processes that take CPU time for it.
struct Mode {
    name: &'static str,
    request: BenchRequest,
    depth: usize,
    server: ServerProcess,
    redis: Option<ServerProcess>,
}

/// Measures the CPU time of a decision with three limits. With Redis, it includes the time of redis-server.
pub fn measure_costs(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let new_mode = |name, protocol, request, depth| -> Result<Mode, Box<dyn Error>> {
        Ok(Mode { name, request, depth, server: start_default_slidegate(protocol)?, redis: None })
    };
    let (check, call) = (BenchRequest::check, BenchRequest::should_rate_limit(3));
    let redis = ServerProcess::start_redis()?;
    let store = format!("redis://{}", redis.address());
    let modes = [
        new_mode("HTTP `/v1/check`", Protocol::Http, check(), 1)?,
        new_mode("HTTP `/v1/check`, 16 concurrent", Protocol::Http, check(), 16)?,
        new_mode("HTTP `/v1/auth`", Protocol::Http, BenchRequest::auth(), 1)?,
        new_mode("gRPC, 3 descriptors", Protocol::Grpc, call.clone(), 1)?,
        new_mode("gRPC, 3 descriptors, 10 concurrent", Protocol::Grpc, call, 10)?,
        Mode {
            name: "HTTP `/v1/check`, counters in Redis",
            request: check(),
            depth: 1,
            server: start_slidegate(Protocol::Http, THREE_LIMITS_POLICY, &["--store", &store])?,
            redis: Some(redis),
        },
    ];
    let requests = run.effort.full_or_quick(60_000, 20_000);
    let results = take_turns(run.effort.full_or_quick(7, 3), modes.len(), |index| {
        let Mode { request, depth, server, redis, .. } = &modes[index];
        let redis_seconds = || redis.as_ref().map_or(Ok(0.0), ServerProcess::cpu_seconds);
        let before = redis_seconds()?;
        let result = ClosedLoopLoad::new(*depth, requests).run(server, request)?;
        Ok(result.cpu_us + (redis_seconds()? - before) * 1e6 / requests as f64)
    })?;
    for (mode, cpu_us) in modes.iter().zip(results) {
        run.record(["server-costs", mode.name, "CPU, µs per decision"], median(cpu_us));
    }
    Ok(())
}
