//! Servers that tell each other what they count: real processes, real sockets, and each on a loopback address of its
//! own, so that they start again where they were.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

#[path = "../http/client.rs"]
#[allow(dead_code, reason = "the tests of HTTP use all of it")]
mod client;
#[path = "../common/mod.rs"]
mod common;
mod crash;
mod flags;
mod leaving;
mod meeting;
mod node;
mod partition;
mod policies;
mod relay;
mod strangers;
