//! Tests of the retrying client, with scripted services and over sockets. Tests that depend on durations run in tokio's
//! paused time.

mod attempts;
mod delays;
mod repeatable_requests;
mod retry_spike;
mod sockets;
mod test_util;
