//! What the server tells of its own accord: its log, and traces. Real processes, real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
mod collector;
#[path = "../common/mod.rs"]
mod common;
mod logs;
mod lost_traces;
mod traces;
