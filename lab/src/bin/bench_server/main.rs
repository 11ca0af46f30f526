//! The server: HTTP and gRPC beside services that answer the same bytes and beside a peer, how late answers are at
//! half load, and what it costs to be watched.
//!
//! `make bench-server` builds or installs what it asks and measures with: the slidegate binary, h2load, and throttlecrab-server.

mod bare;
mod caller;
mod callers;
mod contenders;
mod grpc;
mod h2load;
mod http;
mod latency;
mod open_loop;
mod question;
mod rounds;
mod watched;

use std::env;
use std::error::Error;

/// The messages of Envoy's rate limit service, and tonic's code for it.
#[allow(missing_docs, clippy::all, reason = "generated")]
mod messages {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        // The other process: a server beside slidegate.
        [bare::ARGUMENT, face, threads, answer] => bare::serve(face, threads, answer),
        _ => lab::part::main(&[
            ("http", http::run),
            ("grpc", grpc::run),
            ("latency", latency::run),
            ("watched", watched::run),
        ]),
    }
}
