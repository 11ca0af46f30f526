//! Tests of the Redis options of rules (`redis: {…}`) with real servers: `split`, `sample` and `slot_by`.
#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

mod hot_keys {
    mod fairness;
    mod instance;
    mod overload;
    mod sample;
    mod slots;
    mod split;
}
mod server;
