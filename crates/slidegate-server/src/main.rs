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
mod policy_description;
mod policy_diff;
mod policy_file;
mod policy_input;
mod ratelimit_config;
mod reload;
mod rendering;
mod replay;
mod request_handler;
mod rls;
mod service;
mod settings;
mod store;
mod telemetry;
mod tls;

use std::process::ExitCode;

use mimalloc::MiMalloc;

/// The allocator of musl takes a lock for each call, and the allocator of glibc takes twice as many instructions.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

fn main() -> ExitCode {
    match command::run(command::Args::parse_or_exit().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
