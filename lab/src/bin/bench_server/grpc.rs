//! Measures the gRPC throughput of slidegate, compared with tonic services that always respond with OK and the same
//! bytes, and with throttlecrab.

use std::error::Error;
use std::io;

use lab::chart::{Bar, bar_chart};
use lab::part::{Effort, ReportPart};
use lab::server::ServerProcess;
use lab::table::MarkdownTable;
use lab::targets::{BenchTarget, TargetBound};

use crate::request::{BenchRequest, Protocol};
use crate::rounds::{TurnResult, run_interleaved};
use crate::{contenders, h2load};

const MIN_THROUGHPUT_RELATIVE_TO_TONIC: BenchTarget = BenchTarget {
    text: "gRPC, calls/s relative to the faster bare tonic",
    bound: TargetBound::AtLeast(1.0),
    limited_by: "by callgrind a call with three descriptors takes 62,100 instructions outside the kernel, of which \
        hyper and h2 take about 36,000 by an estimate; decoding, decision, response and telemetry take the rest. Before, it \
        took 73,700. Successful changes: the calls of a connection run in its task instead of tasks of their own, and the \
        message is read and written without tonic's streams (-6,100); names and values share the buffer of the message \
        (-5,600). Earlier: no server of tonic, one thread per connection, no Redis future inside the future of an \
        in-memory decision. Another allocator gave nothing measurable and takes 9 MB.",
};

const SECTION_INTRODUCTION: &str = "
### gRPC

`ShouldRateLimit` of Envoy's rate limit service, in memory; each descriptor matches a different rule. For comparison \
there are tonic services that decode the message and respond with OK and the same bytes, once on one thread, once \
with a worker per core, and the gRPC API of throttlecrab with one limit. h2load is used as above.";

/// The gRPC requests of one measurement.
struct GrpcLoad {
    /// The number of descriptors per request.
    descriptors: usize,
    /// The number of concurrent calls per connection.
    depth: usize,
}

const GRPC_LOADS: [GrpcLoad; 4] = [
    GrpcLoad { descriptors: 1, depth: 1 },
    GrpcLoad { descriptors: 1, depth: 10 },
    GrpcLoad { descriptors: 3, depth: 1 },
    GrpcLoad { descriptors: 3, depth: 10 },
];

/// Returns the names of the compared servers.
fn grpc_server_names() -> io::Result<[String; 4]> {
    let [one_thread, workers] = contenders::bare_names(Protocol::Grpc)?;
    Ok(["slidegate".into(), one_thread, workers, "throttlecrab".into()])
}

pub fn run(effort: Effort, part: &mut ReportPart) -> Result<(), Box<dyn Error>> {
    part.add_text(SECTION_INTRODUCTION);
    part.progress.add_steps(GRPC_LOADS.len());
    let mut table = MarkdownTable::new([
        "descriptors",
        "concurrent calls per connection",
        "server",
        "calls/s",
        "slidegate relative to it",
        "CPU s per 1 M",
    ]);
    let names = grpc_server_names()?;
    for load in &GRPC_LOADS {
        part.progress
            .begin_step(&format!("{} descriptors, {} concurrent", load.descriptors, load.depth));
        let results = load.measure_grpc_servers(effort)?;
        let own = results[0];
        for (name, result) in names.iter().zip(&results) {
            table.add_row([
                load.descriptors.to_string(),
                load.depth.to_string(),
                name.clone(),
                format!("{:.0}", result.per_second),
                format!("{:.2}", own.per_second / result.per_second),
                format!("{:.1}", result.cpu_us),
            ]);
        }
        part.record_target(
            &MIN_THROUGHPUT_RELATIVE_TO_TONIC,
            own.per_second / results[1].per_second.max(results[2].per_second),
        );
        if (load.descriptors, load.depth) == (1, 1) {
            draw_throughput_chart(part, &names, &results)?;
        }
    }
    part.add_table(&table);
    Ok(())
}

impl GrpcLoad {
    /// Measures the throughput of all servers. Returns the results in the order of [`grpc_server_names`].
    fn measure_grpc_servers(&self, effort: Effort) -> Result<[TurnResult; 4], Box<dyn Error>> {
        let request = BenchRequest::should_rate_limit(self.descriptors);
        let slidegate = contenders::slidegate(Protocol::Grpc)?;
        let response = contenders::record_response(&slidegate, &request, 1)?;
        let [one_thread, workers] =
            contenders::bare_on_one_thread_and_workers(Protocol::Grpc, &response)?;
        let contenders: [(ServerProcess, BenchRequest); 4] = [
            (slidegate, request.clone()),
            (one_thread, request.clone()),
            (workers, request),
            (contenders::throttlecrab(Protocol::Grpc)?, BenchRequest::throttle_call()),
        ];
        let calls = effort.pick(80_000, 25_000);
        let rounds = run_interleaved(effort.rounds(), contenders.len(), |index| {
            let (server, request) = &contenders[index];
            h2load::run(server, request, self.depth, calls)
        })?;
        let mut results = [TurnResult::default(); 4];
        for (median, rounds) in results.iter_mut().zip(&rounds) {
            *median = TurnResult::median(rounds);
        }
        Ok(results)
    }
}

fn draw_throughput_chart(
    part: &mut ReportPart,
    names: &[String; 4],
    results: &[TurnResult; 4],
) -> Result<(), Box<dyn Error>> {
    let bar = |(name, result): (&String, &TurnResult)| Bar {
        name: name.clone(),
        value: result.per_second,
        label: format!("{:.0}", result.per_second),
        is_highlighted: name == "slidegate",
    };
    let all: Vec<Bar> = names.iter().zip(results).map(bar).collect();
    let svg = bar_chart("gRPC, one call at a time on 50 connections: calls/s", &all)?;
    part.add_chart("server-grpc", "Calls per second over gRPC", svg);
    Ok(())
}
