//! Load tests in which a Sentinel service or a Redis Cluster loses a master, recovers it, or migrates slots. All calls
//! and their results are recorded.
//!
//! The number of charges that may be lost is computed from the number of bytes that Redis has lost according to its
//! replication offsets.

mod cluster;
mod load;
mod load_result;
mod sentinel;
