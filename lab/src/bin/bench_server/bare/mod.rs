//! Servers that answer everything with one answer, each as the guide of its framework makes one.

mod axum;
mod tonic;

use std::error::Error;
use std::fs;
use std::net::SocketAddr;

use tokio::runtime::{Builder, Runtime};

/// By which this program is such a server.
pub const ARGUMENT: &str = "bare";

/// The faces that there are.
pub const HTTP: &str = "http";
pub const GRPC: &str = "grpc";

/// What is logged before the address.
pub const SAID: &str = "bare, asked at ";

/// Serves on so many threads beside, or on this one alone if there are none. `answer` is a file.
pub fn serve(face: &str, threads: &str, answer: &str) -> Result<(), Box<dyn Error>> {
    let (runtime, answer) = (runtime(threads.parse()?)?, fs::read(answer)?);
    match face {
        HTTP => runtime.block_on(axum::serve(&answer)),
        GRPC => runtime.block_on(tonic::serve(&answer)),
        _ => Err(format!("there is no face {face}").into()),
    }
}

fn runtime(threads: usize) -> std::io::Result<Runtime> {
    match threads {
        0 => Builder::new_current_thread().enable_all().build(),
        threads => Builder::new_multi_thread().worker_threads(threads).enable_all().build(),
    }
}

fn listens(address: SocketAddr) {
    eprintln!("{SAID}{address}");
}
