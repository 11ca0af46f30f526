//! Tests of policy reloads of a running server, with real processes, files and signals.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod file_changes;
mod folder;
mod invalid_files;
mod policy_diff;
mod ratelimit;
mod under_load;
