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
//! The modules from top to bottom. Each uses only modules below it, except that `decide` and `telemetry` also use the
//! tokens and metrics of reservations and permits. The test `layers` has the exact list, and checks it.
//!
//! | module | content |
//! |---|---|
//! | [`cli`] | flags, and one file for each subcommand |
//! | [`boot`] | from settings to a running service: listeners, reloads |
//! | [`wire`] | protocols: HTTP, gRPC. Parses a request to a call, and renders the decision |
//! | [`render`] | status, headers and JSON of a response |
//! | [`reservations`], [`permits`], [`explain`] | one feature each: decision, token, bodies, metrics |
//! | [`decide`] | the service: decides about a call. Knows no protocol |
//! | [`telemetry`] | metrics, top keys, traces, log |
//! | [`policy`] | policies in files, their description and differences |
//! | [`connections`], [`tls`], [`json`] | client connections, certificates, fields of JSON bodies |
//! | [`background`], [`bounds`], [`client_text`], [`durations`] | shared by all others |

mod background;
mod boot;
mod bounds;
mod cli;
mod client_text;
mod connections;
mod decide;
mod durations;
mod explain;
mod json;
mod permits;
mod policy;
mod render;
mod reservations;
mod telemetry;
mod tls;
mod wire;

use std::process::ExitCode;

fn main() -> ExitCode {
    boot::allocator::return_freed_memory();
    cli::run(cli::Args::parse_or_exit().command).unwrap_or_else(|error| {
        cli::print_to_stderr(&format!("{error}\n"));
        ExitCode::FAILURE
    })
}
