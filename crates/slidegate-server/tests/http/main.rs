//! The server as its clients see it: a real process, real sockets.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod auth;
mod bad_input;
mod client;
mod client_values;
#[path = "../common/mod.rs"]
mod common;
mod connection;
mod counting;
mod exchange;
mod headers;
mod lifecycle;
mod malformed;
mod openapi;
mod report;
mod slow;
