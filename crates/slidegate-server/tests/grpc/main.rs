//! The gRPC face as its clients see it: a real process, and a client that is not ours.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod client;
mod client_values;
#[path = "../common/mod.rs"]
mod common;
mod consumed;
mod deciding;
mod health;
mod hostile;
mod raw;
mod tls;
