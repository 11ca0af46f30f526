//! What happens to counts and callers when a service that Sentinel guards, or a cluster, loses a master, gets it
//! back, or moves slots: under load, with notes of all that was asked and said.
//!
//! What may be lost is what Redis admits by its replication offsets, and not a charge more.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod scale {
    mod cluster;
    mod crowd;
    mod ledger;
    mod sentinel;
}
mod server;
