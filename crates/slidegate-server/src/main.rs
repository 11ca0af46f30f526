//! `slidegate`: asks a policy, for every request of an API, whether it may pass now.

mod args;
mod command;
mod connections;
mod durations;
mod explain;
mod grpc;
mod health;
mod http;
mod log;
mod policy_diff;
mod policy_file;
mod ratelimit_config;
mod reload;
mod replay;
mod request_handler;
mod rls;
mod service;
mod settings;
mod telemetry;
mod tls;
mod wire;
mod words;

use std::process::ExitCode;

fn main() -> ExitCode {
    match command::run(args::Args::read().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
