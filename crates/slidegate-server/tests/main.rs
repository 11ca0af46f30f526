//! The integration tests of the server, which start it as a process. They are one program: each program would compile the
//! shared modules again, and be linked on its own. `cargo test --all-features -p slidegate-server http::` runs the tests of one module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod admin;
mod cluster;
mod common;
mod convert;
mod deploy;
mod differential;
mod docs;
mod generated;
mod grpc;
mod http;
mod layers;
#[cfg(feature = "otlp")]
mod observability;
mod proxies;
mod redis;
#[path = "../../slidegate-redis/tests/server/mod.rs"]
mod redis_server;
mod reload;
mod replay;
mod validate;
