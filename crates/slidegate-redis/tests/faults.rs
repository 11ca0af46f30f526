//! Tests of a store during faults of Redis, and of the network between Redis and the store.
//!
//! A request may exceed its timeout only by a fixed slack and by the lateness of the machine. A task that only sleeps
//! measures this lateness: the time by which its sleeps take too long.

mod load;
mod network;
mod process;
mod values;
