//! Rate limits over *sliding* windows: exact where they shall be, several limits and several identities
//! decided as one atomic step, and only what is admitted is counted.
//!
//! ```
//! use slidegate::{Limiter, Verdict::{Allowed, Denied}};
//!
//! let limiter = Limiter::new(["10/s", "600/min"])?;      // in memory
//! match limiter.check("tenant:acme") {
//!     Allowed(decision) => println!("serve it, {} left", decision.remaining()),
//!     Denied(decision) => println!("come back in {:?}", decision.retry_after()),
//! }
//! # Ok::<(), slidegate::LimiterError>(())
//! ```
//!
//! A [`Limiter`] has its limits in code and counts per any key that can be hashed. A [`Gate`] has them in
//! a [`Policy`], a YAML file whose rules say when they apply, and per which attributes they count:
//!
//! ```
//! use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
//!
//! let policy = Policy::from_yaml("
//! rules:
//!   - { name: login, when: { path: /login }, per: [ip], limits: [5/min], algorithm: sliding_log }
//! ")?;
//! let gate = Gate::new(policy, MemoryStore::new());
//! let attributes = [("path", "/login"), ("ip", "203.0.113.7")];
//! let ruling = gate.check_now(&Request::new("default", Descriptor::new(attributes)));
//! assert_eq!(ruling.decision().remaining(), 4);
//! # Ok::<(), slidegate::PolicyErrors>(())
//! ```
//!
//! # How a request flows
//!
//! ```text
//! request ──► policy ──► hits ──► store ──► outcomes ──► decision
//! ```
//!
//! It runs one way. The policy knows no store, a store knows no policy, and an algorithm knows neither
//! clock nor lock nor I/O. A [`Hit`] is one charge: a [`Key`], a [`Limit`], a cost, and how it is
//! admitted. A [`Store`] charges all the hits of a request or none, and gives one [`Outcome`] for each; a
//! [`Decision`] says which of them the request hangs on. A denial is a value. An error means that the
//! store did not answer, and nothing else.
//!
//! # Features
//!
//! - `tokio`: [`Limiter::wait_async`](limiter::Limiter), on tokio's timer.
//! - `testkit`: the oracle, the model, the conformance suite and the laws that every store is held to.

pub mod algorithm;
pub mod headers;
pub mod heap;
pub mod limiter;
pub mod policy;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;

mod clock;
mod cluster_options;
mod decision;
mod gate;
mod hit;
mod host;
mod jitter;
mod key;
mod limit;
mod network;
mod outcome;
mod problem;
mod quota;
mod reason;
mod redis_options;
mod request;
mod settle;
mod sync;
#[cfg(test)]
mod test_util;

pub use algorithm::{Algorithm, Align};
pub use clock::{Clock, DriftCorrectedClock, ManualClock, SystemClock, Timestamp, WallClock};
pub use cluster_options::{ClusterOptions, ClusterOptionsError, OnPartition};
pub use decision::{Decision, Verdict};
pub use gate::{Gate, LimitStatus, Ruling};
pub use hit::{ChargeWhen, Hit, Veto};
pub use host::normal_host;
pub use jitter::{Jitter, JitterError, JitterSample};
pub use key::{Key, MAX_VALUE_BYTES, Scope, ShortenedValue, Value};
pub use limit::{Limit, LimitError, LimitParams};
pub use limiter::{CostExceedsMax, Limiter, LimiterError};
pub use network::{Network, NetworkError};
pub use outcome::Outcome;
pub use policy::file::{PolicyError, PolicyErrors, PolicyWarning};
pub use policy::{Policy, RuleCost};
pub use problem::Problem;
pub use quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, QuotaError};
pub use reason::Reason;
pub use redis_options::{RedisOptions, RedisOptionsError};
pub use request::{DEFAULT_DOMAIN, Descriptor, Request};
pub use store::memory::MemoryStore;
pub use store::{
    Asynchronous, ChargeResult, Receipt, Store, StoreError, StoreKind, SyncStore, Synchronous,
};

/// The README's Rust runs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
