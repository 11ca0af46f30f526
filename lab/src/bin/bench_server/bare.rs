//! Bare servers, which always send the same response. Slidegate is compared with them. Each is written as the guide of
//! its framework shows, and runs in a child process.

mod axum;
mod tonic;

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

use crate::http::HttpConnection;
use crate::requests::{BenchRequest, Protocol};

/// The first argument of the child process.
pub const CHILD_ARGUMENT: &str = "bare";

/// The argument with which the child process starts an HTTP server.
pub const HTTP: &str = "http";

/// The argument with which the child process starts a gRPC server.
pub const GRPC: &str = "grpc";

/// The text before the listen address in the log of a bare server.
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

/// Sends a request to slidegate and returns the response in the form in which a bare server reads it.
///
/// # Errors
/// If the request fails, or the response is not a success.
pub fn record_response(
    slidegate: SocketAddr,
    request: &BenchRequest,
) -> Result<Vec<u8>, Box<dyn Error>> {
    match request.protocol {
        Protocol::Http => Ok(serde_json::to_vec(&HttpConnection::open(slidegate)?.send(request)?)?),
        Protocol::Grpc => new_runtime(0)?.block_on(tonic::record_response(slidegate, request)),
    }
}
