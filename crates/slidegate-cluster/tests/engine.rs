//! Tests of the guarantees of the replication engine. The engines use counters in plain maps, and each test controls
//! the delivery of every frame.

mod acknowledgements;
mod broadcasting;
mod clocks;
mod joining;
mod map_counters;
mod silent_members;
mod test_cluster;
