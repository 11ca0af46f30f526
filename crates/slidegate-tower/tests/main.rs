//! The integration tests of the layer and of the retrying client, as one program. `cargo test -p slidegate-tower
//! --all-features layer::` runs the tests of one module.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

#[cfg(feature = "client")]
mod client;
#[cfg(all(feature = "axum", feature = "tonic"))]
mod layer;
