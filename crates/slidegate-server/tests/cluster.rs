//! Tests of clusters that consist of server processes with real sockets. The tests crash, pause, restart and partition
//! nodes.
//!
//! Each process has its own loopback address, so that a restarted node listens on its previous address. After each
//! failure, the number of allowed units must stay within the documented bound, and all nodes must report the same
//! number of remaining units.

mod authentication;
mod crash;
mod flags;
mod joining;
mod nearly_used_limits;
mod node;
mod node_certificates;
mod partition;
mod policies;
mod relay;
mod reservations;
mod rolling_restart;
mod shutdown;
