//! Measures the latency of each server at the same request rate: half of the maximum rate of the slowest server.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use hdrhistogram::Histogram;
use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use quanta::Instant;

use crate::connection::BenchConnection;
use crate::open_loop::{Poisson, WallLoadClock, empty_histogram, measure_delays};
use crate::request::{BenchRequest, Protocol};
use crate::rounds::{TurnResult, median, run_interleaved};
use crate::{contenders, h2load};

const SECTION_INTRODUCTION: &str = "
### Latency at half load

The request rate is the same for all servers: half of the rate of the slowest server of the table in a closed loop \
just before. Requests are due at predetermined random times (Poisson), on 50 connections with one thread each. A \
delay is the time from the due time of a request to its response, so requests that wait for a late response are \
late, too. The first row sends no requests: it is the delay of the threads themselves on these two cores, which is \
part of all other rows. The values are medians of the rounds.";

/// The time between opening the connections and the start of the measurement.
const MEASUREMENT_START_DELAY: Duration = Duration::from_millis(50);

/// A compared server, and the request that is sent to it.
struct LatencyContender {
    name: &'static str,
    /// The server, and the request that is sent to it. `None`: no requests are sent, to measure the delay of the load
    /// threads alone.
    target: Option<(ServerProcess, BenchRequest)>,
}

/// Percentiles of the delays of requests, in microseconds.
struct RequestDelayPercentiles {
    p50: f64,
    p99: f64,
    p999: f64,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(4);
    let mut table =
        MarkdownTable::new(["endpoint", "requests/s", "server", "p50, µs", "p99, µs", "p99.9, µs"]);
    for (name, contenders) in
        [("`/v1/check`", start_http_contenders()?), ("`ShouldRateLimit`", start_grpc_contenders()?)]
    {
        part.progress.begin_step(&format!("{name}, closed loop"));
        let rate = measure_half_of_slowest_rate(effort, &contenders)?;
        part.progress.begin_step(&format!("{name}, {rate:.0} a second"));
        let time = Duration::from_millis(effort.pick(2_000, 500));
        let mut round = 0;
        let rounds = run_interleaved(effort.rounds(), contenders.len(), |index| {
            round += 1;
            let seed = round / contenders.len() as u64;
            contenders[index].measure_delays(rate, time, seed)
        })?;
        for (contender, rounds) in contenders.iter().zip(&rounds) {
            table.add_row([
                name.to_owned(),
                format!("{rate:.0}"),
                contender.name.to_owned(),
                format!("{:.0}", median(rounds, |round| round.p50)),
                format!("{:.0}", median(rounds, |round| round.p99)),
                format!("{:.0}", median(rounds, |round| round.p999)),
            ]);
        }
    }
    part.add_table(&table);
    Ok(())
}

const CONTENDER_WITHOUT_SERVER: LatencyContender = LatencyContender { name: "none", target: None };

fn start_http_contenders() -> Result<Vec<LatencyContender>, Box<dyn Error>> {
    let request = BenchRequest::check();
    let slidegate = contenders::slidegate(Protocol::Http)?;
    let response = contenders::record_response(&slidegate, &request)?;
    let bare = |threads| contenders::bare(Protocol::Http, threads, &response);
    Ok(vec![
        CONTENDER_WITHOUT_SERVER,
        LatencyContender::new("slidegate", slidegate, request.clone()),
        LatencyContender::new("axum, one thread", bare(0)?, request.clone()),
        LatencyContender::new("axum, two workers", bare(2)?, request),
        LatencyContender::new(
            "throttlecrab",
            contenders::throttlecrab(Protocol::Http)?,
            BenchRequest::throttle(),
        ),
    ])
}

fn start_grpc_contenders() -> Result<Vec<LatencyContender>, Box<dyn Error>> {
    let request = BenchRequest::should_rate_limit(3);
    let slidegate = contenders::slidegate(Protocol::Grpc)?;
    let response = contenders::record_response(&slidegate, &request)?;
    let bare = |threads| contenders::bare(Protocol::Grpc, threads, &response);
    let throttle = BenchRequest::throttle_call();
    Ok(vec![
        CONTENDER_WITHOUT_SERVER,
        LatencyContender::new("slidegate", slidegate, request.clone()),
        LatencyContender::new("tonic, one thread", bare(0)?, request.clone()),
        LatencyContender::new("tonic, two workers", bare(2)?, request),
        LatencyContender::new("throttlecrab", contenders::throttlecrab(Protocol::Grpc)?, throttle),
    ])
}

fn measure_half_of_slowest_rate(
    effort: Effort,
    contenders: &[LatencyContender],
) -> Result<f64, Box<dyn Error>> {
    let targets: Vec<_> =
        contenders.iter().filter_map(|contender| contender.target.as_ref()).collect();
    let rounds = run_interleaved(effort.pick(5, 1), targets.len(), |index| {
        let (server, request) = targets[index];
        h2load::run(server, request, 1, effort.pick(40_000, 15_000))
    })?;
    let rates = rounds.iter().map(|rounds| TurnResult::median(rounds).per_second);
    Ok(rates.fold(f64::INFINITY, f64::min) / 2.0)
}

impl LatencyContender {
    fn new(name: &'static str, server: ServerProcess, request: BenchRequest) -> Self {
        Self { name, target: Some((server, request)) }
    }

    /// Sends `rate` requests per second in total, on several connections, for the duration `time`. Returns the
    /// percentiles of the delays.
    fn measure_delays(
        &self,
        rate: f64,
        time: Duration,
        seed: u64,
    ) -> Result<RequestDelayPercentiles, Box<dyn Error>> {
        let connect = |_| -> Result<_, Box<dyn Error>> {
            let target = self.target.as_ref();
            target
                .map(|(server, request)| connect_and_warm_up(server.address(), request))
                .transpose()
        };
        let connections: Vec<_> =
            (0..h2load::CONNECTIONS).map(connect).collect::<Result<_, _>>()?;
        let start = Instant::now() + MEASUREMENT_START_DELAY;
        let rate = rate / connections.len() as f64;
        let all = thread::scope(|scope| {
            let threads: Vec<_> = (connections.into_iter().zip(0..))
                .map(|(connection, nth)| {
                    let due = Poisson::new(rate, time, (seed << 8) | nth);
                    scope.spawn(move || measure_connection_delays(connection, due, start))
                })
                .collect();
            let ended = threads.into_iter().map(|thread| {
                thread.join().map_err(|_| "a connection thread panicked".to_owned()).flatten()
            });
            ended.collect::<Result<Vec<_>, _>>()
        })?;
        let mut delays = empty_histogram()?;
        for histogram in &all {
            delays.add(histogram)?;
        }
        Ok(RequestDelayPercentiles::from_histogram(&delays))
    }
}

/// Opens a connection and sends one request, so that the first request of the connection is not measured.
fn connect_and_warm_up(
    server: SocketAddr,
    request: &BenchRequest,
) -> Result<BenchConnection, Box<dyn Error>> {
    let mut connection = BenchConnection::connect(server, request)?;
    connection.send()?;
    Ok(connection)
}

/// Sends requests on one connection at their due times. Returns the delays, or the text of an error. The error is a
/// text because it must be sent to another thread.
fn measure_connection_delays(
    mut connection: Option<BenchConnection>,
    due: Poisson,
    start: Instant,
) -> Result<Histogram<u64>, String> {
    let send = || connection.as_mut().map_or(Ok(()), |connection| connection.send().map(drop));
    measure_delays(due, &WallLoadClock::new(start), send).map_err(|error| error.to_string())
}

impl RequestDelayPercentiles {
    fn from_histogram(all: &Histogram<u64>) -> Self {
        let us = |quantile| all.value_at_quantile(quantile) as f64 / 1e3;
        Self { p50: us(0.50), p99: us(0.99), p999: us(0.999) }
    }
}
