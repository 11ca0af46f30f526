//! Counts in Redis, shared by many instances.

pub mod breaker;

mod sync;
