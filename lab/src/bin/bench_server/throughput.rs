//! Measures the throughput and the CPU time per call over HTTP and gRPC.

use std::error::Error;

use lab::policies::THREE_LIMITS_POLICY;
use lab::program::BenchRun;
use lab::results::median;

use crate::load::{ClosedLoopLoad, median_cpu_us, take_turns};
use crate::requests::BenchRequest;
use crate::servers::{ONE_LIMIT_POLICY, start_contenders};

/// Measures `/v1/check` and forward authentication.
pub fn measure_http(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    let (check, throttle) = (BenchRequest::check, Some(BenchRequest::throttle()));
    for (row, request, depth, policy, throttle) in [
        ("`/v1/check`", check(), 1, THREE_LIMITS_POLICY, throttle.clone()),
        ("`/v1/check`, one limit", check(), 1, ONE_LIMIT_POLICY, throttle.clone()),
        ("`/v1/check`, 16 concurrent", check(), 16, THREE_LIMITS_POLICY, throttle),
        ("`/v1/auth`", BenchRequest::auth(), 1, THREE_LIMITS_POLICY, None),
    ] {
        let load = ClosedLoopLoad::new(depth, run.effort.full_or_quick(60_000, 20_000));
        measure_throughput(
            run,
            ["server-http-rate", "server-http-cpu"],
            row,
            load,
            &request,
            policy,
            throttle,
        )?;
    }
    Ok(())
}

/// Measures `ShouldRateLimit` of Envoy's rate limit service.
pub fn measure_grpc(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    for (descriptors, depth) in [(1, 1), (1, 10), (3, 1), (3, 10)] {
        let row = format!("{descriptors} descriptors, {depth} concurrent");
        let request = BenchRequest::should_rate_limit(descriptors);
        let load = ClosedLoopLoad::new(depth, run.effort.full_or_quick(80_000, 25_000));
        let throttle = Some(BenchRequest::throttle_call());
        let tables = ["server-grpc-rate", "server-grpc-cpu"];
        measure_throughput(run, tables, &row, load, &request, THREE_LIMITS_POLICY, throttle)?;
    }
    Ok(())
}

fn measure_throughput(
    run: &mut BenchRun,
    [rate_table, cpu_table]: [&str; 2],
    row: &str,
    load: ClosedLoopLoad,
    request: &BenchRequest,
    policy: &str,
    throttlecrab: Option<BenchRequest>,
) -> Result<(), Box<dyn Error>> {
    let contenders = start_contenders(request, policy, throttlecrab)?;
    let results = take_turns(run.effort.full_or_quick(7, 3), contenders.len(), |index| {
        load.run(&contenders[index].server, &contenders[index].request)
    })?;
    for (contender, results) in contenders.iter().zip(results) {
        let per_second = median(results.iter().map(|result| result.per_second));
        run.record([rate_table, row, &contender.name], per_second);
        run.record([cpu_table, row, &contender.name], median_cpu_us(&results));
    }
    Ok(())
}
