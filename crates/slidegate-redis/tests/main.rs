//! The integration tests of the Redis store, with real servers, as one program: each program would be compiled and linked
//! on its own. `cargo test -p slidegate-redis --all-features faults::` runs the tests of one module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

mod access;
mod block;
mod bounded_work;
mod breaker;
mod calendar;
mod calls;
mod client_interop;
mod clock_steps;
mod coalescing;
mod conformance;
mod connections;
mod deny_cache;
mod faults;
mod fixtures;
mod hot_keys;
mod limiter;
mod permits;
mod properties;
mod proxy;
mod races;
mod scale;
mod script_files;
mod server;
