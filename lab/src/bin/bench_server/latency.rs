//! Measures the latency of each server at the same request rate, a share of slidegate's maximum rate.

use std::error::Error;

use lab::policies::THREE_LIMITS_POLICY;
use lab::program::BenchRun;
use lab::results::median;

use crate::load::{ClosedLoopLoad, measure_latencies, take_turns};
use crate::requests::BenchRequest;
use crate::servers::start_contenders;

/// Measures `/v1/check` at 40 % load, and gRPC at half load.
pub fn run(run: &mut BenchRun) -> Result<(), Box<dyn Error>> {
    for (name, request, throttle, share) in [
        ("`/v1/check`", BenchRequest::check(), BenchRequest::throttle(), 0.4),
        (
            "gRPC, 3 descriptors",
            BenchRequest::should_rate_limit(3),
            BenchRequest::throttle_call(),
            0.5,
        ),
    ] {
        let contenders = start_contenders(&request, THREE_LIMITS_POLICY, Some(throttle))?;
        let load = ClosedLoopLoad::new(1, run.effort.full_or_quick(60_000, 20_000));
        let closed_loop = take_turns(3, 1, |_| load.run(&contenders[0].server, &request))?;
        let rate = share * median(closed_loop[0].iter().map(|result| result.per_second));
        run.record(["server-latency", &format!("{name}: requests/s"), "slidegate"], rate);
        let seconds = run.effort.full_or_quick(3, 1);
        let rounds = take_turns(run.effort.full_or_quick(9, 3), contenders.len(), |index| {
            measure_latencies(&contenders[index].server, &contenders[index].request, rate, seconds)
        })?;
        for (contender, rounds) in contenders.iter().zip(rounds) {
            let p50_us = median(rounds.iter().map(|round| round.p50_us));
            let p99_us = median(rounds.iter().map(|round| round.p99_us));
            // The bare servers of HTTP (axum) and of gRPC (tonic) share their columns.
            let column = contender.name.replace("axum", "bare").replace("tonic", "bare");
            run.record(["server-latency", &format!("{name}: p50, µs"), &column], p50_us);
            run.record(["server-latency", &format!("{name}: p99, µs"), &column], p99_us);
        }
    }
    Ok(())
}
