//! Cluster store for slidegate: a group of nodes that replicate their counters, without Redis or another service.
//!
//! Each node decides from its own counters and from the updates of the other nodes, so that no request waits for a
//! network round trip.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use slidegate::Limiter;
//! use slidegate_cluster::{ClusterStore, Credentials, ClusterSettings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let store = ClusterStore::start(ClusterSettings {
//!     listen: "192.0.2.11:7946".parse()?,
//!     advertise: None,
//!     seeds: vec!["192.0.2.12:7946".to_owned()],
//!     name: None,
//!     credentials: Some(Credentials::Keys(vec![std::env::var("CLUSTER_KEY")?])),
//!     secret: None,
//!     sync_interval: Duration::from_millis(250),
//!     sync_wait: Duration::from_millis(20),
//!     max_clock_skew: Duration::from_secs(2),
//!     max_keys: 1_000_000,
//!     max_memory: 1 << 30,
//! })
//! .await?;
//! let limiter = Limiter::with_store("api", ["10/s"], store)?;
//! println!("allowed: {}", limiter.check_async("tenant:acme").await.is_allowed());
//! # Ok(())
//! # }
//! ```
//!
//! # When to use it
//!
//! Use it for a handful of nodes that depend on nothing else, if a [bounded](bound) number of units above a limit is
//! acceptable. For many instances, and for limits that must be exact across instances, use the crate `slidegate-redis`.
//! The algorithms `sliding_log` and `token_bucket` are not supported: see [`supports`].
//!
//! # Modules
//!
//! [`ClusterStore::start`] starts a node. [`counters`] makes decisions. [`replication`] exchanges updates and explains
//! why the overshoot is [bounded](bound). [`membership`] knows the nodes, and [`transport`] carries [`message`]s over
//! mutual TLS with the [`credentials`] of the nodes. [`ClusterStore::status`] reports the members and their state.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bound;
pub mod clock_limit;
pub mod counters;
pub mod credentials;
mod hit_options;
pub mod membership;
pub mod message;
mod node;
pub mod node_info;
mod overshoot;
pub mod pn_counter;
pub mod progress;
mod replica;
pub mod replicated_counters;
pub mod replication;
pub mod store;
pub mod transport;

pub use counters::supports;
pub use credentials::{Certificates, Credentials, CredentialsError, DEFAULT_CERTIFICATE_NAME};
pub use node::{ClusterSettings, ClusterStatus, MemberStatus, StartError};
pub use overshoot::{OVERSHOOT_BOUNDS_PERMILLE, OvershootHistogram};
pub use store::ClusterStore;
pub use transport::RejectReason;

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;
