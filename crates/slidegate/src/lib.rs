//! A rate limiter with *sliding* windows. Its sliding log algorithm is exact. All limits and descriptors of a request
//! are decided in one atomic step, and denied requests are not charged.
//!
//! ```
//! let limiter = slidegate::Limiter::new(["10/s", "600/min"])?;      // in memory
//! let decision = limiter.check("tenant:acme");
//! match decision.is_allowed() {
//!     true => println!("allowed, {} left", decision.remaining()),
//!     false => println!("denied, retry after {:?}", decision.retry_after()),
//! }
//! # Ok::<(), slidegate::LimiterError>(())
//! ```
//!
//! Methods with a plain name are synchronous, and exist for stores that never wait. The methods of the same names with
//! `_async` exist for every store, for example a store in Redis.
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
//! let decision = gate.check(&Request::new("default", Descriptor::new(attributes)));
//! assert_eq!(decision.remaining(), 4);
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
//! - `policy`, on by default: [`Gate`] and [`Policy`]. Without it, a [`Limiter`] depends on no crate for YAML, routes or
//!   networks. Includes `calendar`.
//! - `calendar`: [`Limit::calendar`], with the time zone database of the crate jiff.
//! - `tokio`: `wait_async`, which waits on the timer of tokio.
//! - `coarse-clock`: `CoarseClock`, which is cheaper to read than the default clock, and precise to a tick of the Linux
//!   kernel.
//! - `testkit`: test support for stores: an oracle, a reference model, a conformance suite, property tests, and a
//!   faulty store.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod headers;
#[doc(hidden)]
pub mod internal;
pub mod limiter;
#[cfg(feature = "policy")]
pub mod policy;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;

mod algorithm;
#[cfg(feature = "calendar")]
mod calendar;
mod call;
mod clock;
mod cluster_options;
mod decision;
#[cfg(feature = "policy")]
mod gate;
mod heap;
mod hit;
#[cfg(feature = "policy")]
mod host;
mod jitter;
mod key;
mod limit;
#[cfg(feature = "policy")]
mod network;
mod outcome;
#[cfg(feature = "policy")]
mod permit;
mod problem;
mod quota;
mod reason;
mod redis_options;
#[cfg(feature = "policy")]
mod request;
#[cfg(feature = "policy")]
mod reserved_call;
mod rule_limit;
#[cfg(feature = "calendar")]
mod similar;
mod store_key;
mod sync;
#[cfg(test)]
mod test_util;

pub use algorithm::{Algorithm, Align, LimitParams};
#[cfg(feature = "calendar")]
pub use calendar::{Calendar, CalendarError, Period, Weekday};
pub use call::{CallId, CallIdentity, DEFAULT_CALL_TTL, IdempotencyKey, MAX_CALL_TTL};
#[cfg(all(feature = "coarse-clock", target_os = "linux"))]
pub use clock::CoarseClock;
pub use clock::{Clock, DriftCorrectedClock, ManualClock, SystemClock, Timestamp, WallClock};
pub use cluster_options::{ClusterOptions, ClusterOptionsError, OnPartition};
pub use decision::{Decision, Denied, LimitStatus};
#[cfg(feature = "policy")]
pub use gate::{Gate, OnceDecision, OnceError, PermitGuard, PolicyFileError, Reservation};
pub use hit::{ChargeWhen, Hit, Veto};
#[cfg(feature = "policy")]
pub use host::normal_host;
pub use jitter::{Jitter, JitterError, JitterSample};
pub use key::{DEFAULT_DOMAIN, Key, MAX_VALUE_BYTES, Scope, ShortenedValue, Value};
pub use limit::{Limit, LimitError};
pub use limiter::{Limiter, LimiterError, WaitError};
#[cfg(feature = "policy")]
pub use network::{Network, NetworkError};
pub use outcome::Outcome;
#[cfg(feature = "policy")]
pub use permit::Permit;
#[cfg(feature = "policy")]
pub use policy::file::{PolicyError, PolicyErrors, PolicyWarning};
#[cfg(feature = "policy")]
pub use policy::{Policy, RuleCost};
pub use problem::Problem;
pub use quota::{MAX_UNITS, MAX_WINDOW, MIN_WINDOW, Quota, QuotaError};
pub use reason::Reason;
pub use redis_options::{RedisOptions, RedisOptionsError};
#[cfg(feature = "policy")]
pub use request::{Descriptor, Request};
#[cfg(feature = "policy")]
pub use reserved_call::{ActualCosts, ReservedCall};
pub use store::memory::MemoryStore;
pub use store::{
    Adjustment, Asynchronous, ChargeResult, Edit, PermitChange, Receipt, Store, StoreError,
    StoreKind, SyncStore, Synchronous,
};
pub use store_key::StoreKey;

/// Runs the Rust examples of the README as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

/// Runs the Rust example of the guide to monthly budgets as a doctest.
#[cfg(all(doctest, feature = "calendar"))]
#[doc = include_str!("../../../docs/how-to/set-a-monthly-budget.md")]
struct MonthlyBudgetGuide;
