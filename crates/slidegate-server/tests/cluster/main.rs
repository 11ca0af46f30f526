//! Server processes that form a cluster over real sockets.
//!
//! Each process has its own loopback address, so that a restarted node listens on the address that it had before.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod authentication;
#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod flags;
mod joining;
mod node;
mod partition;
mod policies;
mod relay;
mod shutdown;
