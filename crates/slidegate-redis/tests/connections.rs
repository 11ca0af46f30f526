//! Tests of connections that are closed or forgotten while a store uses them, or between two of its calls.
//!
//! `REPETITIONS=1000` repeats each interruption as often.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod connections {
    mod breaker;
    mod fixture;
    mod idle_close;
    mod repeated_calls;
}
mod proxy;
mod server;
