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
//! # When to use it
//!
//! | need | use |
//! |---|---|
//! | limits of an axum, tonic, hyper or other tower service, by one key | [`RateLimitLayer::keyed_by`] with a `Limiter` |
//! | limits by plan, route or several attributes, from a policy file | [`RateLimitLayer::new`] with a `Gate` and [`Attributes`] |
//! | counters that several instances share | a limiter or gate over a store of `slidegate-redis` or `slidegate-cluster` |
//! | a client that retries denied requests | [`client::RetryLayer`](client), with the feature `client` |
//!
//! # Limits by plan, from a policy
//!
//! Each attribute of the policy is read by an [extractor](extract). The authentication of the service runs first, and
//! adds the user to the extensions of the request.
//!
//! ```
//! use slidegate::{Gate, MemoryStore, Policy, PolicyErrors};
//! use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, extract};
//!
//! #[derive(Clone)]
//! struct User {
//!     id: &'static str,
//!     plan: &'static str,
//! }
//!
//! fn limits() -> Result<RateLimitLayer, PolicyErrors> {
//!     let policy = Policy::from_yaml("
//! rules:
//!   - name: per-user
//!     per: [user|ip]
//!     limits: [5/min]
//!     overrides:
//!       - { name: pro, when: { plan: pro }, limits: [20/min] }
//! ")?;
//!     let attributes = Attributes::new()
//!         .with("user", extract::extension(|user: &User| Some(user.id)))
//!         .with("plan", extract::extension(|user: &User| Some(user.plan)))
//!         .with("ip", extract::client_ip(TrustedProxies::none()));
//!     Ok(RateLimitLayer::new(Gate::new(policy, MemoryStore::new()), attributes))
//! }
//! # assert!(limits().is_ok());
//! ```
//!
//! # Charges that depend on the response
//!
//! A request is charged before the service is called. [`RateLimitLayer::settle`] corrects the charge. This layer counts
//! only failed logins:
//!
//! ```
//! use http::StatusCode;
//! use slidegate::{Limiter, LimiterError};
//! use slidegate_tower::{RateLimitLayer, Settlement, TrustedProxies, WhenMissing, extract};
//!
//! fn login_limits() -> Result<RateLimitLayer, LimiterError> {
//!     let ip = extract::client_ip(TrustedProxies::none());
//!     let layer = RateLimitLayer::keyed_by(Limiter::new(["5/min"])?, ip, WhenMissing::Deny);
//!     Ok(layer.settle(|response| match response.status {
//!         StatusCode::UNAUTHORIZED => Settlement::Keep,
//!         _ => Settlement::Revert,
//!     }))
//! }
//! # assert!(login_limits().is_ok());
//! ```
//!
//! # Stages of a request
//!
//! A request passes these stages:
//!
//! ```text
//! request ──► extractors ──► gate or limiter ──► decision ──► the service, or a denial ──► headers
//!                                                              └──► settled by its response
//! ```
//!
//! [`RateLimitLayer`] holds the configuration, [`RateLimit`] is the service that the layer creates, and
//! [`ResponseFuture`] is the future of one response. [`extract`] reads values from requests, [`Respond`] creates the
//! responses to denied requests, and [`Settlement`] corrects the charge of a request when its response is known, or
//! with a [`RequestReservation`] when its response body has ended.
//!
//! A policy that bounds the requests in flight gives each request a permit. [`RateLimitLayer::hold_permits`] holds it
//! until the response body has ended or the client has disconnected, and renews it in the meantime.
//!
//! # Features
//!
//! - `axum`: matched routes, and peer addresses from axum's `ConnectInfo`.
//! - `tonic`: peer addresses from tonic's connection info.
//! - `client`: [`client::RetryLayer`](client), which waits for the time that a denial states and retries.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod backend;
mod checked_names;
mod future;
mod header_writer;
mod hold_permits;
mod layer;
mod names;
mod permit;
mod request_options;
mod reservation;
mod respond;
mod service;
mod settle_guard;
mod settlement;
mod trusted_proxies;

#[cfg(feature = "client")]
pub mod client;
mod config;
mod costs;
pub mod extract;

#[doc(inline)]
pub use extract::{Attributes, Peer, RequestHead};
pub use future::ResponseFuture;
pub use hold_permits::{HoldPermits, HoldPermitsFuture, HoldPermitsLayer, PermitBody};
pub use layer::RateLimitLayer;
pub use names::NamesError;
pub use permit::HeldPermit;
pub use reservation::RequestReservation;
pub use respond::{Denial, Grpc, ProblemJson, Respond};
pub use service::RateLimit;
pub use settlement::{OnDrop, ResponseHead, Settlement};
pub use slidegate::policy::WhenMissing;
pub use trusted_proxies::{TrustedProxies, TrustedProxiesError};

/// Runs the Rust example of the README as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeDoctests;

/// Runs the code of the guide for tower services as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/limit-an-axum-or-tonic-service.md")]
struct MiddlewareGuideDoctests;

/// Runs the code of the migration guide for governor as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/migrate-from-governor.md")]
struct GovernorMigrationDoctests;

/// Runs the code of the migration guide for tower_governor as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/migrate-from-tower-governor.md")]
struct TowerGovernorMigrationDoctests;

/// Runs the code of the guide for scripts in browsers as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/limit-scripts-in-browsers.md")]
struct BrowserGuideDoctests;

/// Runs the code of the guide for tests with a manual clock as documentation tests.
#[cfg(all(doctest, feature = "axum"))]
#[doc = include_str!("../../../docs/how-to/test-with-a-manual-clock.md")]
struct ManualClockGuideDoctests;
