//! Bare servers, which always send the same response. Slidegate is compared with them. Each is written as the guide of
//! its framework shows.

mod axum;
mod tonic;

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

/// The first argument of the child process that runs a bare server, which always sends the same response.
pub const CHILD_ARGUMENT: &str = "bare";

/// The command line argument with which the child process starts an HTTP server.
pub const HTTP: &str = "http";

/// The command line argument with which the child process starts a gRPC server.
pub const GRPC: &str = "grpc";

/// The start of the log line of a bare server that shows its listen address. The address follows this text.
pub const ADDRESS_PREFIX: &str = "bare server listening on ";

/// Runs a bare server, which sends the response in the file `response` to every request. `threads` is the number of
/// worker threads; with 0, the server runs on the current thread.
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
