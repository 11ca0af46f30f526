//! The policy changes while the server runs: real processes, real files, real signals.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod bad_files;
mod changes;
#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod folder;
mod ratelimit;
mod storm;
mod ways;
