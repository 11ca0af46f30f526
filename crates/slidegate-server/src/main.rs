//! The `slidegate` program: a rate limiter that decides for every request of an API whether it is allowed now.

mod args;
mod bounds;
mod command;
mod connections;
mod durations;
mod explain;
mod grpc;
mod health;
mod http;
mod json_reader;
mod listen;
mod log;
mod permit_token;
mod policy_description;
mod policy_diff;
mod policy_file;
mod policy_input;
mod ratelimit_config;
mod reload;
mod rendering;
mod replay;
mod request_handler;
mod reservation_token;
mod rls;
mod service;
mod settings;
mod store;
mod telemetry;
mod tls;

use std::process::ExitCode;

/// musl's own allocator takes a lock for each call. With glibc, mimalloc did not reduce the CPU time of requests
/// measurably, and took 9 MB more memory.
#[cfg(target_env = "musl")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match command::run(command::Args::parse_or_exit().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
