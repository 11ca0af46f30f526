//! What happens to callers when something happens to Redis, or between it and them.
//!
//! The measure of a wait is the machine's own: it may be as much longer than the time-out as a task that
//! does nothing but sleep was late, and then some.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod faults {
    pub mod load;
    mod network;
    mod process;
    mod values;
}
mod proxy;
mod server;
