//! Compares slidegate's server with services that send the same bytes, and with throttlecrab: throughput, CPU time
//! per call, latency, start and memory, the cost of telemetry, and the growth of the cost.
//!
//! h2load and wrk send the requests. `make bench-server` installs them.
#![allow(clippy::disallowed_methods, reason = "a benchmark measures real time")]

mod bare;
mod costs;
mod growth;
mod http;
mod latency;
mod load;
mod requests;
mod servers;
mod startup;
mod throughput;

use std::env;
use std::error::Error;

/// The generated messages of Envoy's rate limit service, and the service code of tonic.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // This process is a child process, and runs a bare server, with which slidegate is compared.
        [bare::CHILD_ARGUMENT, protocol, threads, response] => {
            bare::serve(protocol, threads, response)
        }
        _ => lab::program::main(
            "bench_server",
            &[
                ("http", throughput::measure_http),
                ("grpc", throughput::measure_grpc),
                ("latency", latency::run),
                ("telemetry", costs::measure_telemetry),
                ("growth", growth::run),
                ("costs", costs::measure_costs),
                ("startup", startup::run),
            ],
        ),
    }
}
