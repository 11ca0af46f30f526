//! Keeps the counters of the slidegate rate limiter in Redis, so that several instances of a service share their
//! limits. One atomic script call normally decides a request with all of its limits.
//!
//! ```no_run
//! use slidegate::Limiter;
//! use slidegate_redis::{RedisSettings, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::open("redis://127.0.0.1:6379", RedisSettings::default())?;
//! let limiter = Limiter::with_store("api", ["10/s", "600/min"], store)?;
//! let decision = limiter.check_async("tenant:acme").await;
//! println!("allowed: {}, {} left", decision.is_allowed(), decision.remaining());
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//!
//! Use it if a limit must hold for all instances together, exactly. A decision takes one network round trip, or none if
//! the denial is cached. `MemoryStore` of the crate `slidegate` counts in each instance separately, and the crate
//! `slidegate-cluster` shares counters without a server, with a bounded overshoot.
//!
//! Redis 6.2 or later and Valkey are supported: a single server, Sentinel, or Redis Cluster. [`Address`] lists the
//! forms of addresses.
//!
//! # Limits in a policy, and failures of Redis
//!
//! A `Gate` takes a [`RedisStore`] in the same way. While Redis does not respond within [`RedisSettings::timeout`],
//! each rule determines the decision: allow, deny, or count in memory.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use slidegate::{Descriptor, Gate, Policy, Request};
//! use slidegate_redis::{RedisSettings, RedisStore};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::from_yaml("
//! rules:
//!   - { name: per-client, per: [client], limits: [10/min], on_store_error: local }
//! ")?;
//! let settings = RedisSettings { timeout: Duration::from_millis(50), ..RedisSettings::default() };
//! let gate = Gate::new(policy, RedisStore::open("redis+sentinel://10.0.0.5/main", settings)?);
//! let request = Request::new("default", Descriptor::new([("client", "alice")]));
//! let decision = gate.check_async(&request).await;
//! println!("allowed: {}, by Redis: {}", decision.is_allowed(), !decision.is_degraded());
//! # Ok(())
//! # }
//! ```
//!
//! # Programs in other languages
//!
//! [`script_files`] returns the Lua scripts with a JSON argument. A program that calls them shares its counters with
//! this store.
//!
//! # Reference
//!
//! `docs/reference/redis-wire-format.md` documents the keys, and the arguments and replies of the scripts.
//! `docs/explanation/failure-modes.md` documents the behavior while Redis is not available. The crate logs with
//! `tracing`.
//!
//! A request passes through these layers, each of which uses only the layers below it: `store` (denial cache,
//! sampling), `multi_slot` (keys in several slots of a Cluster), `topology` (one server or a Cluster), `node` (circuit
//! breaker, waiting requests), `coalescing` (which of them share a call), `execution` (scripts, deadline, lost
//! connections), `connection` (the current connection).

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
mod connection;
mod connector;
mod deny_cache;
mod error;
mod execution;
mod failure;
mod foreign_value_log;
mod group;
mod log_throttle;
mod maintenance;
mod maintenance_op;
mod multi_slot;
mod node;
mod permit;
mod reply;
mod script;
mod script_files;
mod script_request;
mod sentinel;
mod settings;
mod store;
mod tls;
mod topology;

pub use address::{Address, AddressError};
pub use error::ConnectError;
pub use script_files::{ScriptFile, script_files};
pub use settings::{ClientCertificate, RedisSettings};
pub use store::{ChargeSource, RedisStats, RedisStore};

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
