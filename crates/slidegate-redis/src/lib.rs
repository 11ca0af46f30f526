//! slidegate's counts in Redis: every request is one atomic script call.
//!
//! `docs/REDIS.md` tells how keys are named, what the scripts take and answer, and what happens when Redis
//! does not.

pub mod breaker;

mod address;
mod ask;
mod call;
mod clocks;
mod cluster;
mod connect;
mod deny_cache;
mod errand;
mod failure;
mod over_slots;
mod queue;
mod reply;
mod script;
#[doc(hidden)]
pub mod sent;
mod sentinel;
mod server;
mod servers;
mod store;
mod sync;

pub use address::{Address, AddressError};
pub use connect::{ConnectError, Settings};
pub use store::RedisStore;
