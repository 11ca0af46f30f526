//! The client that waits as it is told: on sockets, and in paused time where time matters.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A test that cannot go on has failed.

mod bounds;
mod repeating;
mod scripted;
mod sockets;
mod spike;
mod waits;
