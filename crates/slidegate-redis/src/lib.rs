//! Keeps the counters of the slidegate rate limiter in Redis. One atomic script call normally decides a request.
//!
//! ```no_run
//! use slidegate::Limiter;
//! use slidegate_redis::{RedisStore, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::open("redis://127.0.0.1:6379", Settings::default())?;
//! let limiter = Limiter::with_store(["10/s", "600/min"], store)?.named("api");
//! let decision = limiter.check_async("tenant:acme").await?;
//! println!("allowed: {}, {} left", decision.is_allowed(), decision.remaining());
//! # Ok(())
//! # }
//! ```
//!
//! A `Gate` takes a [`RedisStore`] in the same way. The crate logs with `tracing`.
//!
//! `docs/reference/redis-wire-format.md` documents the keys, and the arguments and replies of the scripts.
//! `docs/explanation/failure-modes.md` documents the behavior while Redis is not available.
//!
//! A request passes through these layers, each of which uses only the layers below it: `store` (denial cache,
//! sampling), `multi_slot` (keys in several slots of a Cluster), `topology` (one server or a Cluster), `node` (deadline,
//! circuit breaker), `coalescing` (waiting requests share a call), `execution` (scripts and their replies), `connect`
//! (connections).

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod breaker;

mod address;
#[doc(hidden)]
pub mod bench_api;
mod call;
mod call_record;
mod clocks;
mod cluster;
mod coalescing;
mod connect;
mod deny_cache;
mod error;
mod execution;
mod failure;
mod hash_tag;
mod maintenance;
mod maintenance_op;
mod multi_slot;
mod node;
mod permit;
mod reply;
mod script;
mod script_operation;
mod script_request;
mod sentinel;
mod settings;
mod store;
mod tls;
mod topology;

pub use address::{Address, AddressError};
pub use error::ConnectError;
pub use settings::Settings;
pub use store::RedisStore;

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
