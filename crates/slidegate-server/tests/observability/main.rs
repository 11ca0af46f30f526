//! Tests of the log and the traces of the server, with real processes and sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
mod collector;
mod collector_failures;
#[path = "../common/mod.rs"]
mod common;
mod logs;
#[path = "../../../slidegate-redis/tests/server/mod.rs"]
mod server;
mod traces;
mod unwritable_log;
