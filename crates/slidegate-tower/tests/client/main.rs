//! Tests of the retrying client, on sockets, and in tokio's paused time if a test depends on durations.
#![allow(clippy::unwrap_used, clippy::expect_used)] // A panic fails the test.

mod attempts;
mod delays;
mod repeatable_requests;
mod retry_spike;
mod sockets;
mod test_util;
