//! Rate limits over sliding windows as [tower](https://docs.rs/tower) middleware, and a client that waits as it is
//! told.
//!
//! ```
//! use slidegate::{Limiter, LimiterError};
//! use slidegate_tower::{Decide, RateLimitLayer, TrustedProxies, WhenMissing, extract};
//!
//! fn limits() -> Result<RateLimitLayer<impl Decide>, LimiterError> {
//!     let limiter = Limiter::new(["10/s", "300/min"])?;      // sliding windows, in memory
//!     let ip = extract::client_ip(TrustedProxies::none());
//!     Ok(RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Skip))
//! }
//! # assert!(limits().is_ok());
//! ```
//!
//! A request goes through these hands:
//!
//! ```text
//! request ──► extractors ──► gate or limiter ──► ruling ──► the service, or a denial ──► headers
//!                                                              └──► settled by its answer
//! ```
//!
//! [`RateLimitLayer`] says what is asked and how it is told; [`RateLimit`] is the service that it makes, and
//! [`ResponseFuture`] the answer to come. What is read of a request is said by [`extract`], what a denial looks like
//! by [`Respond`], and what a request has cost in the end by [`Settle`].
//!
//! # Features
//!
//! - `axum`: matched routes, and peers as axum's `ConnectInfo` tells them.
//! - `tonic`: peers as tonic tells them.
//! - `client`: [`client::RetryLayer`](client), which waits as a denial says.

mod decide;
mod future;
mod layer;
mod question;
mod respond;
mod service;
mod settle;
mod tell;
mod trusted_proxies;

#[cfg(feature = "client")]
pub mod client;
pub mod extract;

pub use decide::Decide;
pub use extract::{Attributes, Peer};
pub use future::ResponseFuture;
pub use layer::RateLimitLayer;
pub use respond::{Denial, Grpc, ProblemJson, Respond};
pub use service::RateLimit;
pub use settle::{Answer, OnDrop, Settle};
pub use slidegate::policy::{OnStoreError, WhenMissing};
pub use trusted_proxies::{TrustedProxies, TrustedProxiesError};

/// The code of docs/MIDDLEWARE.md runs.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/MIDDLEWARE.md")]
struct Middleware;

/// The code of docs/MIGRATION.md runs.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/MIGRATION.md")]
struct Migration;
