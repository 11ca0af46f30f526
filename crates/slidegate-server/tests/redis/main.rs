//! Tests of the server with Redis as its store, with real processes and sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod cached_denials;
#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod flags;
#[path = "../grpc/client.rs"]
#[allow(dead_code, unused_imports, reason = "only the gRPC tests use all of it")]
mod grpc_client;
mod hot_keys;
mod keys;
mod limit_overrides;
mod long_keys;
mod lost_connections;
mod outage;
mod passwords;
mod permits;
mod reservations;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod server;
mod shared_counters;
mod topologies;
