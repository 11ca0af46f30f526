//! The server as those see it who run it: what the admin address tells, real processes, real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/documented.rs"]
mod documented;
mod explain;
#[path = "../grpc/client.rs"]
#[allow(dead_code, unused_imports, reason = "the tests of gRPC use all of it")]
mod grpc;
mod health;
mod metrics;
mod observe;
#[path = "../common/prometheus.rs"]
mod prometheus;
mod samples;
mod scraped;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod server;
mod top;
