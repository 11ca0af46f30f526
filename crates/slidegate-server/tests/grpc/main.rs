//! Tests of the gRPC listener: a real server process, and tonic or h2 as client.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod client;
mod client_values;
#[path = "../common/mod.rs"]
mod common;
mod costs;
mod health;
mod hostile;
mod raw;
mod responses;
mod tls;
