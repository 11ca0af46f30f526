//! Cluster store for slidegate: a group of nodes that replicate their counters.
//!
//! Each node decides from its own counters and from the updates of the other nodes, so that no request waits for a
//! network round trip.
//!
//! [`ClusterStore::start`] starts a node. [`counters`] makes decisions. [`replication`] exchanges updates and explains
//! why the overshoot is [bounded](bound). [`membership`] discovers the nodes, and [`transport`] carries frames that are
//! authenticated by [`seal`].

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod bound;
pub mod counters;
mod hit_options;
pub mod membership;
pub mod message;
mod node;
mod overshoot;
pub mod pn_counter;
pub mod progress;
mod replica;
pub mod replicated_counters;
pub mod replication;
pub mod seal;
pub mod store;
pub mod transport;

pub use counters::supports;
pub use node::{ClusterStatus, MemberStatus, Settings, StartError};
pub use overshoot::{OVERSHOOT_BOUNDS_PERMILLE, OvershootHistogram};
pub use store::ClusterStore;

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
