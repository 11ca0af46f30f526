//! Counts in a group of nodes that tell each other: each decides from its own counts and from what the others have
//! told, so that no request waits for a network.
//!
//! [`ClusterStore::start`] starts a node. [`counters`] decide; [`sync`] tells the others, and says why what slips through
//! is [bounded](bound); [`membership`] knows who they are, and [`transport`] carries what is told, under a [`seal`].

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
