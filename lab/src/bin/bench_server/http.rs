//! Measures the HTTP throughput of slidegate, compared with axum services that always send the same response, and with
//! throttlecrab.

use std::error::Error;

use lab::chart::{Bar, bar_chart};
use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

use crate::request::{BenchRequest, Protocol};
use crate::rounds::{TurnResult, run_interleaved};
use crate::{contenders, h2load};

const MIN_THROUGHPUT_RELATIVE_TO_AXUM: BenchTarget = BenchTarget {
    text: "HTTP `/v1/check`, requests/s relative to the faster bare axum",
    bound: TargetBound::AtLeast(0.95),
    limited_by: "since hyper serves all requests and serde_json writes the responses, a check takes 13.4 µs of CPU, and axum \
        without a decision 9.9. Not examined yet: a timer and a box per request.",
};

const MIN_REQUESTS_PER_CPU_SECOND_RELATIVE_TO_THROTTLECRAB: BenchTarget = BenchTarget {
    text: "HTTP `/v1/check`, one limit each, requests per CPU second relative to throttlecrab-server",
    bound: TargetBound::AtLeast(1.5),
    limited_by: "receiving and sending take 6 µs of CPU per request, nearly all in the kernel: a Tokio task that only receives \
        and sends, without HTTP, takes 6.5 µs. Since hyper serves all requests, a check with one limit takes 12.9 µs, \
        as much as throttlecrab; a design in which simple checks bypassed hyper took 9.6 µs.",
};

const SECTION_INTRODUCTION: &str = "
### HTTP

Each server is a separate process on one half of the cores, and h2load sends requests on 50 persistent connections \
from the other half. \
`/v1/check` and forward-auth (`/v1/auth`) are decided by three rules in memory, with the default telemetry. For \
comparison there are an axum service that sends the same bytes and headers for every request (`axum::serve`, with \
the body read as bytes; once on one thread, once with a worker per core), and throttlecrab-server, which has one limit per \
request and sends smaller responses. All requests have the same body, so there is one key per rule, which all \
threads update. All requests are allowed. limitador's server is not published as a package, so it is not included.";

/// The HTTP requests of one measurement.
struct HttpLoad {
    name: &'static str,
    request: fn() -> BenchRequest,
    /// The number of concurrent requests per connection.
    depth: usize,
    policy: &'static str,
    /// The number of limits that the policy applies to the request.
    limits: usize,
    /// Whether throttlecrab supports requests of this kind, and is measured with them.
    has_throttlecrab: bool,
    /// The function that compares the results with targets.
    compare_with_targets: fn(&mut ReportPart, &[TurnResult]),
}

const HTTP_LOADS: [HttpLoad; 4] = [
    HttpLoad {
        name: "`/v1/check`",
        request: BenchRequest::check,
        depth: 1,
        policy: contenders::ALLOW_ALL_POLICY,
        limits: 3,
        has_throttlecrab: true,
        compare_with_targets: compare_with_axum,
    },
    HttpLoad {
        name: "`/v1/check`, one limit",
        request: BenchRequest::check,
        depth: 1,
        policy: contenders::ONE_LIMIT_POLICY,
        limits: 1,
        has_throttlecrab: true,
        compare_with_targets: compare_with_throttlecrab,
    },
    HttpLoad {
        name: "`/v1/check`, 16 concurrent",
        request: BenchRequest::check,
        depth: 16,
        policy: contenders::ALLOW_ALL_POLICY,
        limits: 3,
        has_throttlecrab: true,
        compare_with_targets: |_, _| {},
    },
    HttpLoad {
        name: "forward-auth",
        request: BenchRequest::auth,
        depth: 1,
        policy: contenders::ALLOW_ALL_POLICY,
        limits: 3,
        has_throttlecrab: false,
        compare_with_targets: |_, _| {},
    },
];

/// A compared server, and the request that is sent to it.
struct HttpContender {
    name: String,
    server: ServerProcess,
    request: BenchRequest,
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(HTTP_LOADS.len());
    let mut table = MarkdownTable::new([
        "endpoint",
        "server",
        "requests/s",
        "slidegate relative to it",
        "CPU s per 1 M",
        "requests per CPU second, slidegate relative to it",
    ]);
    for load in &HTTP_LOADS {
        part.progress.begin_step(load.name);
        let contenders = load.start_contenders()?;
        let results = load.measure_contenders(effort, &contenders)?;
        for (contender, result) in contenders.iter().zip(&results) {
            table.add_row(format_result_row(load, contender, result, &results[0]));
        }
        (load.compare_with_targets)(part, &results);
        if load.depth == 1 && load.has_throttlecrab && load.limits == 3 {
            draw_throughput_charts(part, &contenders, &results)?;
        }
    }
    part.add_table(&table);
    Ok(())
}

impl HttpLoad {
    /// Starts all compared servers and returns them. The first one is slidegate.
    fn start_contenders(&self) -> Result<Vec<HttpContender>, Box<dyn Error>> {
        let request = (self.request)();
        let slidegate = contenders::slidegate_with(Protocol::Http, self.policy, &[])?;
        let response = contenders::record_response(&slidegate, &request, self.limits)?;
        let names = contenders::bare_names(Protocol::Http)?;
        let bare = contenders::bare_on_one_thread_and_workers(Protocol::Http, &response)?;
        let mut all = vec![HttpContender {
            name: "slidegate".into(),
            server: slidegate,
            request: request.clone(),
        }];
        all.extend(names.into_iter().zip(bare).map(|(name, server)| HttpContender {
            name,
            server,
            request: request.clone(),
        }));
        if self.has_throttlecrab {
            let server = contenders::throttlecrab(Protocol::Http)?;
            all.push(HttpContender {
                name: "throttlecrab".into(),
                server,
                request: BenchRequest::throttle(),
            });
        }
        Ok(all)
    }

    fn measure_contenders(
        &self,
        effort: Effort,
        contenders: &[HttpContender],
    ) -> Result<Vec<TurnResult>, Box<dyn Error>> {
        let requests = effort.pick(60_000, 20_000);
        let rounds = run_interleaved(effort.rounds(), contenders.len(), |index| {
            let HttpContender { server, request, .. } = &contenders[index];
            h2load::run(server, request, self.depth, requests)
        })?;
        Ok(rounds.iter().map(|rounds| TurnResult::median(rounds)).collect())
    }
}

fn format_result_row(
    load: &HttpLoad,
    contender: &HttpContender,
    result: &TurnResult,
    own: &TurnResult,
) -> [String; 6] {
    [
        load.name.to_owned(),
        contender.name.clone(),
        format!("{:.0}", result.per_second),
        format!("{:.2}", own.per_second / result.per_second),
        format!("{:.1}", result.cpu_us),
        format!("{:.2}", result.cpu_us / own.cpu_us),
    ]
}

fn compare_with_axum(part: &mut ReportPart, results: &[TurnResult]) {
    if let [own, one_thread, workers, ..] = results {
        let faster = one_thread.per_second.max(workers.per_second);
        part.record_target(&MIN_THROUGHPUT_RELATIVE_TO_AXUM, own.per_second / faster);
    }
}

fn compare_with_throttlecrab(part: &mut ReportPart, results: &[TurnResult]) {
    if let [own, _, _, throttlecrab] = results {
        part.record_target(
            &MIN_REQUESTS_PER_CPU_SECOND_RELATIVE_TO_THROTTLECRAB,
            throttlecrab.cpu_us / own.cpu_us,
        );
    }
}

fn draw_throughput_charts(
    part: &mut ReportPart,
    contenders: &[HttpContender],
    results: &[TurnResult],
) -> Result<(), Box<dyn Error>> {
    let all = || contenders.iter().zip(results);
    let bar = |name: &str, value: f64, label| Bar {
        name: name.to_owned(),
        value,
        label,
        is_highlighted: name == "slidegate",
    };
    let fast: Vec<Bar> = all()
        .map(|(contender, result)| {
            bar(&contender.name, result.per_second, format!("{:.0}", result.per_second))
        })
        .collect();
    let svg = bar_chart("HTTP, one request at a time on 50 connections: requests/s", &fast)?;
    part.add_chart("server-http", "Requests per second over HTTP", svg);
    let cheap: Vec<Bar> = all()
        .map(|(contender, result)| {
            bar(&contender.name, result.cpu_us, format!("{:.1} s", result.cpu_us))
        })
        .collect();
    let svg = bar_chart("HTTP: CPU seconds of the server for a million requests", &cheap)?;
    part.add_chart("server-http-cpu", "CPU seconds per million HTTP requests", svg);
    Ok(())
}
