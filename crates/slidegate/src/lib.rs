//! A rate limiter with *sliding* windows. Its sliding log algorithm is exact. All limits and descriptors of a request
//! are decided in one atomic step, and denied requests are not charged.
//!
//! ```
//! use slidegate::{Limiter, Verdict::{Allowed, Denied}};
//!
//! let limiter = Limiter::new(["10/s", "600/min"])?;      // in memory
//! match limiter.check("tenant:acme") {
//!     Allowed(decision) => println!("allowed, {} left", decision.remaining()),
//!     Denied(decision) => println!("denied, retry after {:?}", decision.retry_after()),
//! }
//! # Ok::<(), slidegate::LimiterError>(())
//! ```
//!
//! A [`Limiter`] has its limits in code and counts by any hashable key. A [`Gate`] takes its limits from a [`Policy`],
//! a YAML file of rules. A rule states the conditions under which it applies, the attributes that it counts by, and its
//! limits.
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
//! # Data flow
//!
//! ```text
//! request ──► policy ──► hits ──► store ──► outcomes ──► decision
//! ```
//!
//! Data flows in one direction. The policy does not depend on stores, stores do not depend on the policy, and the
//! algorithms use no clock, lock or I/O. A [`Hit`] is one charge: a [`Key`], a [`Limit`], a cost, and the conditions of
//! admission. A [`Store`] charges all hits of a request or none, and returns one [`Outcome`] for each hit. A
//! [`Decision`] says whether the request is allowed, and names the binding outcome, which is the outcome that clients
//! see. A denial is a value; an error always means that the store did not respond.
//!
//! # Features
//!
//! - `tokio`: [`Limiter::wait_async`](limiter::Limiter), which waits on the timer of tokio.
//! - `testkit`: test support for stores: an oracle, a reference model, a conformance suite, property tests, and a
//!   faulty store.

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

/// The YAML tree of policy files, for the converter in `slidegate-server`. Not public interface: it can change in any
/// version.
#[doc(hidden)]
pub mod internal {
    pub use crate::policy::file::node::{Node, NodeKind, SourceSpan};
}

/// Runs the Rust examples of the README as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
