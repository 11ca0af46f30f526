//! Tests of the gRPC listener with a real server process. The clients use tonic or h2.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bursts;
#[path = "../common/certificates.rs"]
mod certificates;
mod client;
mod client_values;
#[path = "../common/mod.rs"]
mod common;
mod costs;
mod health;
mod hostile;
mod names;
mod permits;
mod raw;
mod responses;
mod tls;
mod unix_socket;
