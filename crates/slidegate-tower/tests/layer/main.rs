//! What `RateLimitLayer` promises, held by servers and clients on sockets.
//!
//! Clocks stand still until a test moves them. What does not hang on the store is seen over both of its kinds: one
//! that answers at once, so that `call` decides, and one that has to be waited for.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

#[macro_use]
mod rig;

mod answers;
mod costs;
mod examples;

mod grpc;
mod identity;
mod nested;
mod observing;
mod outage;
mod readiness;
mod routes;
mod settling;
mod tiers;
mod types;
mod unanswered;
