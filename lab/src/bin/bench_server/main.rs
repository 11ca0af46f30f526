//! Measures slidegate's server: the HTTP and gRPC throughput compared with services that send the same bytes and with
//! another rate limiter, the latency, the cost of telemetry, the start and the
//! memory, the growth of the CPU time, and the cost of a billion decisions.
//!
//! `make bench-server` builds or installs the required programs: the slidegate binary, h2load, and throttlecrab-server.

mod bare;
mod closed_loop;
mod connection;
mod contenders;
mod costs;
mod growth;
mod grpc;
mod h2load;
mod http;
mod latency;
mod open_loop;
mod request;
mod rounds;
mod startup;
mod telemetry;

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
        // The child process: a server to compare slidegate with.
        [bare::CHILD_ARGUMENT, protocol, threads, response] => {
            bare::serve(protocol, threads, response)
        }
        _ => {
            lab::cores::separate_load_from_servers()?;
            lab::part::main(&[
                ("http", http::run),
                ("grpc", grpc::run),
                ("latency", latency::run),
                ("watched", telemetry::run),
                ("startup", startup::run),
                ("growth", growth::run),
                ("costs", costs::run),
            ])
        }
    }
}
