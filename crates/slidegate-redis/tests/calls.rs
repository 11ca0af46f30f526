//! Tests of calls with an id, and of settlements: nothing is charged or settled twice, whatever is repeated.

mod failover;
pub mod fixture;
mod once;
mod races;
