//! Tests of the admin listener, with real server processes and real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "only the HTTP tests use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
#[path = "../common/documented_metrics.rs"]
mod documented_metrics;
mod explain;
#[path = "../grpc/client.rs"]
#[allow(dead_code, unused_imports, reason = "only the gRPC tests use all of it")]
mod grpc;
mod health;
mod metrics;
mod observe;
mod origin;
mod probes;
#[path = "../common/prometheus.rs"]
mod prometheus;
mod prometheus_scrape;
mod samples;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod server;
mod store_failures;
mod top;
