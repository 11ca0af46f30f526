//! Rate limits over sliding windows as [tower](https://docs.rs/tower) middleware, and client middleware that retries a
//! denied request after the wait that the denial states.
//!
//! ```
//! use slidegate::{Limiter, LimiterError};
//! use slidegate_tower::{RateLimitLayer, TrustedProxies, WhenMissing, extract};
//!
//! fn limits() -> Result<RateLimitLayer, LimiterError> {
//!     let limiter = Limiter::new(["10/s", "300/min"])?;      // sliding windows, in memory
//!     let ip = extract::client_ip(TrustedProxies::none());
//!     Ok(RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Deny))
//! }
//! # assert!(limits().is_ok());
//! ```
//!
//! A request passes these stages:
//!
//! ```text
//! request ──► extractors ──► gate or limiter ──► ruling ──► the service, or a denial ──► headers
//!                                                              └──► settled by its response
//! ```
//!
//! [`RateLimitLayer`] holds the configuration, [`RateLimit`] is the service that the layer creates, and
//! [`ResponseFuture`] is the future of one response. [`extract`] reads values from requests, [`Respond`] creates the
//! responses to denied requests, and [`Settlement`] corrects the charge of a request when its response is known, or with a
//! [`RequestReservation`] when its response body has ended.
//!
//! # Features
//!
//! - `axum`: matched routes, and peer addresses from axum's `ConnectInfo`.
//! - `tonic`: peer addresses from tonic's connection info.
//! - `client`: [`client::RetryLayer`](client), which waits for the time that a denial states and retries.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod future;
mod header_writer;
mod layer;
mod request_options;
mod reservation;
mod respond;
mod service;
mod settle_guard;
mod settlement;
mod trusted_proxies;

#[cfg(feature = "client")]
pub mod client;
pub mod extract;

pub use extract::{Attributes, Peer};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use reservation::RequestReservation;
pub use respond::{Denial, Grpc, ProblemJson, Respond};
pub use service::RateLimit;
pub use settlement::{OnDrop, ResponseHead, Settlement};
pub use slidegate::policy::{OnStoreError, WhenMissing};
pub use trusted_proxies::{TrustedProxies, TrustedProxiesError};

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Runs the code of the guide for tower services as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/limit-an-axum-or-tonic-service.md")]
struct MiddlewareGuide;

/// Runs the code of the migration guide for governor as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/migrate-from-governor.md")]
struct GovernorMigrationGuide;

/// Runs the code of the migration guide for tower_governor as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/migrate-from-tower-governor.md")]
struct TowerGovernorMigrationGuide;

/// Runs the code of the guide for tests with a manual clock as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/test-with-a-manual-clock.md")]
struct ManualClockGuide;
