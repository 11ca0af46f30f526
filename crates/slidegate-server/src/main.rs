//! The `slidegate` program: a rate limiter that decides for every request of an API whether it is allowed now.
//!
//! `slidegate serve` responds to checks over HTTP with JSON, to reverse proxies as forward authentication, and to
//! Envoy over gRPC. The limits are in a policy file. The counters are in memory, in Redis, or in a cluster of servers.
//! Other commands validate, explain, try and convert policies, and write the Redis scripts for other languages.
//!
//! Use it for services in any language, and for limits in front of a service that does not change. A Rust service can
//! use the crates `slidegate` and `slidegate-tower` without a server.
//!
//! Write a policy, start the server, and check each request before it is served:
//!
//! ```text
//! slidegate serve --policy policy.yaml
//! curl localhost:8080/v1/check -d '{"attributes":{"client":"alice"}}'
//! ```
//!
//! A request passes through these modules: `connections` and `http` or `grpc` (listeners), `request_handler` (one decision,
//! its metrics and log), the gate of the crate `slidegate`, `store` (the selected store), and `rendering` (the response).
//! `service` starts all of them from the `settings`, which `args` reads, and `reload` replaces the policy.

mod allocator;
mod args;
mod background;
mod body_budget;
mod bounds;
mod client_text;
mod command;
mod connections;
mod durations;
mod explain;
mod grpc;
mod health;
mod http;
mod listen;
mod log;
mod names;
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

fn main() -> ExitCode {
    allocator::return_freed_memory();
    command::run(command::Args::parse_or_exit().command).unwrap_or_else(|error| {
        command::print_to_stderr(&format!("{error}\n"));
        ExitCode::FAILURE
    })
}
