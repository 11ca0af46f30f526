//! Counters and callers under load while a Sentinel service or a Cluster loses a master, recovers it, or migrates
//! slots. All calls and their results are recorded.
//!
//! The number of lost charges is bounded by the bytes that Redis has lost according to its replication offsets.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod scale {
    mod cluster;
    mod crowd;
    mod ledger;
    mod sentinel;
}
mod server;
