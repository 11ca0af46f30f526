//! Tests of connections that are closed or forgotten while a store uses them, or between two of its calls.
//!
//! `REPETITIONS=1000` repeats each interruption as often.

mod breaker;
mod fixture;
mod idle_close;
mod repeated_calls;
