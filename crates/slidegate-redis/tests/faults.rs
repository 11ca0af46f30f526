//! Faults of Redis, and of the network between Redis and a store.
//!
//! A request may take longer than the timeout only by a fixed slack and by the lateness of the machine, which is
//! measured with a task that only sleeps.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod faults {
    pub mod load;
    mod network;
    mod process;
    mod values;
}
mod proxy;
mod server;
