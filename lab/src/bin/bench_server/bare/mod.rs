//! Servers that always send the same response, each written as in the guide of its framework.

mod axum;
mod tonic;

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

/// The argument of the child process that runs such a server.
pub const CHILD_ARGUMENT: &str = "bare";

/// The protocol argument of the HTTP server.
pub const HTTP: &str = "http";

/// The protocol argument of the gRPC server.
pub const GRPC: &str = "grpc";

/// The log text before the address.
pub const ADDRESS_PREFIX: &str = "bare server listening on ";

/// Serves the response in the file `response`, with this number of worker threads, or on the current thread if it is 0.
pub fn serve(protocol: &str, threads: &str, response: &str) -> Result<(), Box<dyn Error>> {
    let (runtime, response) = (runtime(threads.parse()?)?, fs::read(response)?);
    match protocol {
        HTTP => runtime.block_on(axum::serve(&response)),
        GRPC => runtime.block_on(tonic::serve(&response)),
        _ => Err(format!("unknown protocol {protocol}").into()),
    }
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        0 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

fn log_address(address: SocketAddr) {
    eprintln!("{ADDRESS_PREFIX}{address}");
}
