//! Measures the latency of each server at the same request rate, a share of slidegate's maximum rate.

use std::error::Error;
use std::time::Duration;

use hdrhistogram::Histogram;
use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};
use tokio::runtime::Builder;

use crate::connection::BenchConnection;
use crate::open_loop::{Poisson, WallLoadClock, measure_delays};
use crate::request::{BenchRequest, Protocol};
use crate::rounds::{TurnResult, median, run_interleaved};
use crate::{contenders, h2load};

const MAX_HTTP_P99_RELATIVE_TO_AXUM: BenchTarget = BenchTarget {
    text: "HTTP `/v1/check` at 40 % load, p99 relative to the better bare axum",
    bound: TargetBound::AtMost(1.1),
    limited_by: "the median differs by 1 to 5 µs, and the p99 depends on interruptions of the cores, which a trace of the \
        scheduler shows: with 31 short rounds, slidegate had a p99 of 140 µs in one run (axum 118 and 131) and of 683 \
        in another (192 and 494). Connections that stay on one thread are not the reason, because the servers have \
        one core. Tried: checks that bypass hyper (with 31 rounds of h2load at 36,000 requests/s, which it sends in \
        bursts: p99 of 2,167 µs, before 2,975; axum 2,236 and 2,701), one runtime for all connections instead of a \
        runtime per thread (216 µs; axum 118 and 195), fewer instructions per request, and short rounds instead of \
        long ones, in which interruptions of up to 8 ms led to a ratio of 3.8.",
};

const MAX_GRPC_P99_RELATIVE_TO_TONIC: BenchTarget = BenchTarget {
    text: "gRPC at half load, p99 relative to the better bare tonic",
    bound: TargetBound::AtMost(1.1),
    limited_by: "the load generator is near its limit, and the p99 varies: with tasks for calls, slidegate had 1,119 and \
        857 µs, and the tonic servers 434 and 389, and 809 and 514. On one thread, all connections with calls then read \
        them before the first task responded, and all tasks responded before the first connection sent. Since then, a \
        connection reads, decides and sends in one turn. With one runtime for all connections, slidegate had 616 beside \
        599 and 624. Long rounds gave ratios from 0.86 to 2.1 for the same servers.",
};

const SECTION_INTRODUCTION: &str = "
### Latency

The request rate is the same for all servers: 40 % (`/v1/check`) or half (`ShouldRateLimit`, 3 descriptors) of the rate \
of slidegate in a closed loop just before. Requests are due at predetermined random times (Poisson), and each is sent \
on one of 50 connections without a request in flight. A delay is the time from the due time of a request to its \
response, so requests that wait for a late response are late, too. It includes the time that the load generator takes. \
The values are medians of 151 rounds of 100 ms. Kernel threads interrupt a core several times a second for \
1 to 8 ms, and each interruption delays 1 % of the requests of several hundred milliseconds. In long rounds, the \
number of interruptions determines the p99 of every server, and in most short rounds there is none.";

/// The duration of one round. Rounds are short, so that an interruption of a core by the system changes the percentiles
/// of one round, and not the median of all rounds.
const ROUND_TIME: Duration = Duration::from_millis(100);

/// The requests of one latency measurement, and the target for it.
struct LatencyLoad {
    name: &'static str,
    protocol: Protocol,
    request: fn() -> BenchRequest,
    /// The request rate, relative to the rate of slidegate in a closed loop.
    load: f64,
    target: BenchTarget,
}

const LATENCY_LOADS: [LatencyLoad; 2] = [
    LatencyLoad {
        name: "`/v1/check`",
        protocol: Protocol::Http,
        request: BenchRequest::check,
        load: 0.4,
        target: MAX_HTTP_P99_RELATIVE_TO_AXUM,
    },
    LatencyLoad {
        name: "`ShouldRateLimit`",
        protocol: Protocol::Grpc,
        request: || BenchRequest::should_rate_limit(3),
        load: 0.5,
        target: MAX_GRPC_P99_RELATIVE_TO_TONIC,
    },
];

/// A compared server, and the request that is sent to it.
struct LatencyContender {
    name: String,
    server: ServerProcess,
    request: BenchRequest,
}

/// Percentiles of the delays of requests, in microseconds.
struct RequestDelayPercentiles {
    p50: f64,
    p99: f64,
    p999: f64,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(2 * LATENCY_LOADS.len());
    let mut table =
        MarkdownTable::new(["endpoint", "requests/s", "server", "p50, µs", "p99, µs", "p99.9, µs"]);
    for load in &LATENCY_LOADS {
        let contenders = load.start_contenders()?;
        part.progress.begin_step(&format!("{}, closed loop", load.name));
        let rate = load.load * measure_closed_loop_rate(effort, &contenders[0])?;
        part.progress.begin_step(&format!("{}, {rate:.0} a second", load.name));
        let mut turn = 0;
        let rounds = run_interleaved(effort.pick(151, 31), contenders.len(), |index| {
            turn += 1;
            let seed = turn / contenders.len() as u64;
            contenders[index].measure_delays(rate, ROUND_TIME, seed)
        })?;
        let p99s: Vec<f64> =
            rounds.iter().map(|rounds| median(rounds, |round| round.p99)).collect();
        for ((contender, rounds), p99) in contenders.iter().zip(&rounds).zip(&p99s) {
            table.add_row([
                load.name.to_owned(),
                format!("{rate:.0}"),
                contender.name.clone(),
                format!("{:.0}", median(rounds, |round| round.p50)),
                format!("{p99:.0}"),
                format!("{:.0}", median(rounds, |round| round.p999)),
            ]);
        }
        part.record_target(&load.target, p99s[0] / p99s[1].min(p99s[2]));
    }
    part.add_table(&table);
    Ok(())
}

impl LatencyLoad {
    /// Starts all compared servers and returns them: slidegate, the bare server on one thread, the bare server with a
    /// worker per core, and throttlecrab.
    fn start_contenders(&self) -> Result<[LatencyContender; 4], Box<dyn Error>> {
        let (request, protocol) = ((self.request)(), self.protocol);
        let slidegate = contenders::slidegate(protocol)?;
        let response = contenders::record_response(&slidegate, &request, 1)?;
        let [one_thread, workers] =
            contenders::bare_on_one_thread_and_workers(protocol, &response)?;
        let throttle = match protocol {
            Protocol::Http => BenchRequest::throttle(),
            Protocol::Grpc => BenchRequest::throttle_call(),
        };
        let [one_thread_name, workers_name] = contenders::bare_names(protocol)?;
        Ok([
            LatencyContender {
                name: "slidegate".into(),
                server: slidegate,
                request: request.clone(),
            },
            LatencyContender {
                name: one_thread_name,
                server: one_thread,
                request: request.clone(),
            },
            LatencyContender { name: workers_name, server: workers, request },
            LatencyContender {
                name: "throttlecrab".into(),
                server: contenders::throttlecrab(protocol)?,
                request: throttle,
            },
        ])
    }
}

fn measure_closed_loop_rate(
    effort: Effort,
    contender: &LatencyContender,
) -> Result<f64, Box<dyn Error>> {
    let LatencyContender { server, request, .. } = contender;
    let rounds = run_interleaved(effort.pick(5, 2), 1, |_| {
        h2load::run(server, request, 1, effort.pick(40_000, 15_000))
    })?;
    Ok(TurnResult::median(&rounds[0]).per_second)
}

impl LatencyContender {
    /// Sends `rate` requests per second in total, on several connections, for the duration `time`. Returns the
    /// percentiles of the delays.
    fn measure_delays(
        &self,
        rate: f64,
        time: Duration,
        seed: u64,
    ) -> Result<RequestDelayPercentiles, Box<dyn Error>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let delays = runtime.block_on(async {
            let mut connections = Vec::new();
            for _ in 0..h2load::CONNECTIONS {
                let mut connection =
                    BenchConnection::connect(self.server.address(), &self.request).await?;
                // The first request of a connection is not measured.
                connection.send_and_drop_response().await?;
                connections.push(connection);
            }
            let due = Poisson::new(rate, time, seed);
            let send = BenchConnection::send_and_drop_response;
            measure_delays(due, &WallLoadClock::start(), &mut connections, send).await
        })?;
        Ok(RequestDelayPercentiles::from_histogram(&delays))
    }
}

impl RequestDelayPercentiles {
    fn from_histogram(all: &Histogram<u64>) -> Self {
        let us = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: us(0.50), p99: us(0.99), p999: us(0.999) }
    }
}
