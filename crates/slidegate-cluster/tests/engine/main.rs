//! Guarantees of the replication engine, each tested separately: engines with counters in plain maps, and a network in
//! which the test controls the delivery of every frame.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod acknowledgements;
mod broadcasting;
mod joining;
mod map_counters;
mod silent_members;
mod test_cluster;
