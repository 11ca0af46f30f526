//! Bare servers, which always send the same response, to compare slidegate with. Each is written as the guide of its
//! framework shows.

mod axum;
mod tonic;

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

/// The first argument of the child process that runs a bare server, which always sends the same response.
pub const CHILD_ARGUMENT: &str = "bare";

/// The protocol argument of the child process for an HTTP server.
pub const HTTP: &str = "http";

/// The protocol argument of the child process for a gRPC server.
pub const GRPC: &str = "grpc";

/// The text in the log of a bare server before the address on which it listens.
pub const ADDRESS_PREFIX: &str = "bare server listening on ";

/// Runs a bare server that always sends the response in the file `response`. `threads` is the number of worker threads;
/// 0 serves on the current thread.
pub fn serve(protocol: &str, threads: &str, response: &str) -> Result<(), Box<dyn Error>> {
    let (runtime, response) = (new_runtime(threads.parse()?)?, fs::read(response)?);
    match protocol {
        HTTP => runtime.block_on(axum::serve(&response)),
        GRPC => runtime.block_on(tonic::serve(&response)),
        _ => Err(format!("unknown protocol {protocol}").into()),
    }
}

fn new_runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        0 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

fn print_listen_address(address: SocketAddr) {
    eprintln!("{ADDRESS_PREFIX}{address}");
}
