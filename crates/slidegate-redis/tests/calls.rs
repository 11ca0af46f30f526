//! Tests of calls with an id, and of settlements: nothing is charged or settled twice, whatever is repeated.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

mod calls {
    mod failover;
    pub mod fixture;
    mod once;
    mod races;
}
mod proxy;
mod server;
