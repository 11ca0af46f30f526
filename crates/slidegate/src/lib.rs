//! A rate limiter with *sliding* windows: it decides in the process whether a request is allowed now, and states when a
//! denied request fits again.
//!
//! The default algorithm never allows more than `max` units in any window. All limits of a request are decided in one
//! atomic step, and denied requests are not charged.
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
//! # Which type to use
//!
//! | need | use |
//! |---|---|
//! | limits in code, any hashable key | [`Limiter`] |
//! | limits in a YAML file: rules for plans, routes and clients, changed without a build | [`Gate`] with a [`Policy`] |
//! | limits of an axum, tonic or other tower service | the crate `slidegate-tower`, over a limiter or a gate |
//! | counters that several instances share | the crates `slidegate-redis` or `slidegate-cluster` as [`Store`], in place of [`MemoryStore`] |
//! | limits of services in other languages, or behind a proxy | the program `slidegate` of the crate `slidegate-server` |
//!
//! Methods with a plain name are synchronous, and exist for stores that never wait. The methods of the same names with
//! `_async` exist for every store, for example a store in Redis.
//!
//! # Limits in a policy
//!
//! A rule states the conditions under which it applies, the attributes that it counts by, and its limits.
//!
//! ```
//! # #[cfg(feature = "policy")] {
//! use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
//!
//! let policy = Policy::from_yaml("
//! rules:
//!   - { name: login, when: { path: /login }, per: [ip], limits: [5/min] }
//! ")?;
//! let gate = Gate::new(policy, MemoryStore::new());
//! let attributes = [("path", "/login"), ("ip", "203.0.113.7")];
//! let decision = gate.check(&Request::new("default", Descriptor::new(attributes)));
//! assert_eq!(decision.remaining(), 4);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Costs that are known after the response
//!
//! Charge an estimate first, and correct it with [`Limiter::settle`]. [`Limiter::revert`] undoes the charge.
//!
//! ```
//! use slidegate::{Check, Limiter};
//!
//! let tokens = Limiter::new(["1000/min"])?;
//! let decision = tokens.check(Check::new("acme").cost(100));
//! tokens.settle(&decision, 250);      // the response had 250 tokens
//! assert_eq!(tokens.peek("acme").remaining(), 750);
//! # Ok::<(), slidegate::LimiterError>(())
//! ```
//!
//! # Wait in place of a denial
//!
//! [`Limiter::wait`] blocks the thread until the request is allowed. `wait_async` waits on the timer of tokio.
//!
//! ```
//! let limiter = slidegate::Limiter::new(["100/s"])?;
//! limiter.wait("smtp.example")?;
//! // Send the message.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Tests without sleeping
//!
//! A [`ManualClock`] sets the time of a store. A retry after the stated wait is allowed exactly then.
//!
//! ```
//! use slidegate::{Limiter, ManualClock, MemoryStore, Timestamp};
//!
//! let clock = ManualClock::at(Timestamp::from_secs(0));
//! let limiter = Limiter::with_store("api", ["1/s"], MemoryStore::with_clock(clock.clone(), 1_000))?;
//! assert!(limiter.check("acme").is_allowed());
//! let wait = limiter.check("acme").retry_after().unwrap();
//! clock.advance(wait);
//! assert!(limiter.check("acme").is_allowed());
//! # Ok::<(), slidegate::LimiterError>(())
//! ```
//!
//! # Other algorithms
//!
//! A quota such as `"10/s"` has the algorithm `sliding_window`. [`Limit::new`] takes any [`Algorithm`]:
//!
//! ```
//! use slidegate::{Algorithm, Limit, Limiter};
//!
//! let steady = Algorithm::TokenBucket { burst: Some(20), max_debt: None };
//! let limiter = Limiter::new([Limit::new("10/s".parse()?, steady)?])?;
//! assert_eq!(limiter.check("acme").remaining(), 19);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Data flow
//!
//! ```text
//! request ──► policy ──► hits ──► store ──► outcomes ──► decision
//! ```
//!
//! Data flows in one direction. The policy does not depend on stores, stores do not depend on the policy, and the
//! algorithms use no clock, lock or I/O. A [`Hit`](store::Hit) is one charge: a [`Key`](store::Key), a [`Limit`], a
//! cost, and the conditions of admission. A [`Store`] charges all hits of a request or none, and returns one
//! [`Outcome`](store::Outcome) for each hit. A [`Decision`] says whether the request is allowed, and names the binding
//! outcome, which is the outcome that clients see. A denial is a value. Only methods that wait or return a guard, and
//! [`Decision::into_result`], return it as the error [`Denied`].
//!
//! # Features
//!
//! - `policy`, on by default: [`Gate`] and [`Policy`]. Without it, a [`Limiter`] depends on no crate for YAML, routes
//!   or networks. Includes `calendar`.
//! - `calendar`: [`Limit::calendar`], with the time zone database of the crate jiff.
//! - `tokio`: `wait_async`, and maximum waits of asynchronous calls, on the timer of tokio.
//! - `coarse-clock`: `CoarseClock`, which is cheaper to read than the default clock, and precise to a tick of the Linux
//!   kernel.
//! - `testkit`: test support for stores: an oracle, a reference model, a conformance suite, property tests, and a
//!   faulty store.

#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod algorithm;
pub mod clock;
pub mod decision;
#[cfg(feature = "policy")]
pub mod gate;
pub mod headers;
pub mod limit;
pub mod limiter;
#[cfg(feature = "policy")]
pub mod policy;
pub mod store;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod wait;

#[cfg(feature = "calendar")]
mod calendar;
mod call;
mod cluster_options;
mod fallback;
mod hit;
#[cfg(feature = "policy")]
mod host;
#[cfg(feature = "policy")]
mod idempotency_key;
mod jitter;
mod key;
mod layout;
#[cfg(feature = "policy")]
mod network;
mod on_store_error;
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
#[cfg(feature = "tokio")]
mod restart;
mod rule_limit;
#[cfg(feature = "calendar")]
mod similar;
mod store_key;
mod sync;
#[cfg(test)]
mod test_util;

#[doc(inline)]
pub use algorithm::{Algorithm, Align};
#[cfg(feature = "calendar")]
pub use calendar::{Calendar, Period};
#[doc(inline)]
pub use clock::{ManualClock, Timestamp};
#[doc(inline)]
pub use decision::{Decision, Denied, LimitStatus};
#[cfg(feature = "policy")]
#[doc(inline)]
pub use gate::{Gate, PermitGuard, Reservation};
#[cfg(feature = "policy")]
pub use idempotency_key::IdempotencyKey;
pub use jitter::Jitter;
#[doc(inline)]
pub use limit::{Limit, Quota};
#[doc(inline)]
pub use limiter::{Check, Limiter, LimiterError};
#[cfg(feature = "policy")]
pub use permit::Permit;
#[cfg(feature = "policy")]
#[doc(inline)]
pub use policy::{Policy, PolicyErrors};
pub use reason::Reason;
#[cfg(feature = "policy")]
pub use request::{Descriptor, Request};
#[cfg(feature = "policy")]
pub use reserved_call::ActualCosts;
#[doc(inline)]
pub use store::{MemoryStore, OnStoreError, Store, StoreError, SyncStore};

/// Runs the Rust examples of the README as doctests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct ReadmeDoctests;

/// Runs the Rust example of the guide to monthly budgets as a doctest.
#[cfg(all(doctest, feature = "calendar"))]
#[doc = include_str!("../../../docs/how-to/set-a-monthly-budget.md")]
struct MonthlyBudgetGuideDoctests;

/// Runs the Rust example of the guide to waiting calls as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/how-to/let-calls-wait-for-capacity.md")]
struct WaitGuideDoctests;

/// Runs the Rust example of the guide to repeated checks as a doctest.
#[cfg(all(doctest, feature = "policy"))]
#[doc = include_str!("../../../docs/how-to/repeat-checks-safely.md")]
struct RepeatGuideDoctests;

/// Runs the Rust example of the guide to denials as a doctest.
#[cfg(all(doctest, feature = "policy"))]
#[doc = include_str!("../../../docs/how-to/find-out-why-a-request-is-denied.md")]
struct DenialGuideDoctests;
