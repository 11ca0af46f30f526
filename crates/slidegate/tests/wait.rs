//! Tests of calls that wait for capacity. Most run on tokio's paused time, on which the store counts as well.

mod bounds;
mod cancelled;
mod fixture;
mod model;
mod order;
mod overlapping_limits;
mod policy;
mod remote_store;
mod threads;
mod woken;
