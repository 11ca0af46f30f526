//! Counts in a group of nodes that tell each other: each decides from its own counts and from what the others have
//! told, so that no request waits for a network.
//!
//! [`ClusterStore::start`] starts a node. [`counters`] decide; [`sync`] tells the others, and says why what slips through
//! is [bounded](bound); [`membership`] knows who they are, and [`transport`] carries what is told, under a [`seal`].

mod book;
pub mod bound;
pub mod counters;
pub mod counts;
pub mod ledger;
pub mod membership;
pub mod message;
mod node;
mod overshoot;
pub mod progress;
pub mod seal;
pub mod store;
pub mod sync;
mod terms;
pub mod transport;

pub use counters::supports;
pub use node::{MemberStatus, Settings, StartError, Status};
pub use overshoot::{Overshoot, SHARES};
pub use store::ClusterStore;
