//! The [`Limiter`]: limits fixed in code, counted by any hashable key, without a policy.
//!
//! A call is a key, which costs one unit, or a [`Check`], which also has a cost and a maximum wait. Over a store
//! outside of the process, keys implement [`StoreKey`].

// `synchronous.rs` has the methods for stores that never wait, and `asynchronous.rs` the same methods for all stores.
// `decide.rs` calls the store, or counts in memory while the store is unavailable. `wait.rs` decides calls that wait
// until they fit.

mod asynchronous;
mod check;
mod decide;
mod synchronous;
mod wait;

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use fnv::FnvHasher;
use thiserror::Error;

use crate::fallback::{InMemoryFallback, LocalCountsOptions};
use crate::key::{DEFAULT_DOMAIN, Key, Scope};
use crate::limit::{Limit, LimitError};
use crate::on_store_error::OnStoreError;
use crate::rule_limit::NamedLimits;
use crate::store::Store;
use crate::store::memory::MemoryStore;
use crate::wait::queues::WaitQueues;
use crate::wait::{WaitOptions, WaitStats};

pub use crate::store_key::{StoreKey, client_network};
pub use check::Check;

/// A rate limiter whose limits are fixed in code. The limits apply to each key separately; a key is any hashable value.
/// For the address of a client, use [`client_network`], because a client usually has many IPv6 addresses. Requests in
/// flight, idempotency keys and reservations need a [`Gate`](crate::Gate).
///
/// ```
/// let limiter = slidegate::Limiter::new(["2/s", "600/min"])?;      // sliding windows, in memory
/// for _ in 0..3 {
///     let decision = limiter.check("tenant:acme");
///     match decision.is_allowed() {
///         true => println!("{} left", decision.remaining()),
///         false => println!("denied, retry after {:?}", decision.retry_after()),
///     }
/// }
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
///
/// Methods with a plain name are synchronous: they exist for stores that never wait. The methods of the same names with
/// `_async` exist for every store. With a synchronous store, both kinds of methods share the counts of a key.
pub struct Limiter<S = MemoryStore> {
    limits: Box<[Limit]>,
    store: S,
    /// The secret with which keys are hashed, so that clients cannot choose keys whose hashes collide.
    secret: foldhash::quality::RandomState,
    /// Whether the windows of a limit begin at an offset that depends on the key. Only then each call computes the
    /// stable hash of its key, from which the store derives the offset.
    has_per_key_window_offset: bool,
    /// The constant part of the limiter's keys, for a store that other processes share.
    scope: Scope,
    /// The limits with their names, for decisions. In the order of `limits`.
    named_limits: Arc<NamedLimits>,
    on_store_error: OnStoreError,
    share: LocalLimits,
    fallback: InMemoryFallback,
    /// The queues of calls that wait for capacity in place of a denial.
    wait_queues: WaitQueues,
}

/// The limits that one instance enforces in memory while the store is unavailable: max and burst are divided by the
/// number of instances.
struct LocalLimits {
    limits: Box<[Limit]>,
    named_limits: Arc<NamedLimits>,
}

/// The default name of a limiter. The name is a part of the limiter's keys in a shared store.
const DEFAULT_LIMITER_NAME: &str = "limiter";

/// The reason why the limits of a limiter are rejected.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimiterError {
    /// One of the limits is invalid.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// The list of limits is empty.
    #[error("the list of limits is empty; add at least one limit, for example \"10/s\"")]
    Empty,
    /// Two limits have the same window and algorithm, and would share their counts.
    #[error(
        "`{0}` has the same window and algorithm as another limit; keep the smaller of the two"
    )]
    Duplicate(Limit),
    /// The limit bounds the requests in flight. A limiter rejects it, because it does not release permits.
    #[error("`{0}` needs permits, which a limiter does not release; use a gate with a policy")]
    Concurrent(Limit),
    /// The store cannot count one of the limits.
    #[error("the store does not support `{limit}`: {reason}")]
    Unsupported {
        /// The limit that the store cannot count.
        limit: Limit,
        /// The reason why the store cannot count the limit, and an alternative.
        reason: String,
    },
}

impl Limiter {
    /// Creates a limiter with a memory store of its own. A limit is a [`Limit`], or text such as `"100/min"`.
    ///
    /// # Errors
    /// If a limit is invalid, there are no limits, or two limits would share their counts.
    pub fn new<L>(limits: impl IntoIterator<Item = L>) -> Result<Self, LimiterError>
    where
        L: IntoLimit,
    {
        Self::with_store(DEFAULT_LIMITER_NAME, limits, MemoryStore::new())
    }
}

/// Conversion into a [`Limit`], for the limits of a [`Limiter`].
pub trait IntoLimit {
    /// Converts the value into a limit.
    ///
    /// # Errors
    /// If the value is text that is not a quota.
    fn into_limit(self) -> Result<Limit, LimitError>;
}

impl IntoLimit for Limit {
    fn into_limit(self) -> Result<Limit, LimitError> {
        Ok(self)
    }
}

impl IntoLimit for &str {
    fn into_limit(self) -> Result<Limit, LimitError> {
        self.parse()
    }
}

impl<S> Limiter<S> {
    /// Creates a limiter that counts in `store`. In a store outside of this process, such as Redis, limiters with the
    /// same name share the counts of each key and limit. In a memory store, each limiter has its own counts. The name
    /// also appears in headers; see [`named`](Self::named).
    ///
    /// ```
    /// use std::sync::Arc;
    ///
    /// use slidegate::{Limiter, MemoryStore};
    ///
    /// let store = Arc::new(MemoryStore::new());
    /// let logins = Limiter::with_store("logins", ["5/min"], store.clone())?;
    /// let searches = Limiter::with_store("searches", ["5/min"], store)?;
    /// assert_eq!(logins.check("ann").remaining(), 4);
    /// assert_eq!(searches.check("ann").remaining(), 4);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    ///
    /// # Errors
    /// If a limit is invalid, bounds the requests in flight, or cannot be counted by the store. Also if there are no
    /// limits, or if two limits would share their counts.
    pub fn with_store<L>(
        name: &str,
        limits: impl IntoIterator<Item = L>,
        store: S,
    ) -> Result<Self, LimiterError>
    where
        L: IntoLimit,
        S: Store,
    {
        let limits: Box<[Limit]> =
            limits.into_iter().map(IntoLimit::into_limit).collect::<Result<_, _>>()?;
        if let Some(concurrent) = limits.iter().find(|limit| limit.is_concurrent()) {
            return Err(LimiterError::Concurrent(*concurrent));
        }
        for limit in &limits {
            let unsupported = |reason| LimiterError::Unsupported { limit: *limit, reason };
            store.supports(limit).map_err(unsupported)?;
        }
        let mut shapes = HashSet::new();
        if let Some(duplicate) =
            limits.iter().find(|limit| !shapes.insert(limit.counter_shape_text()))
        {
            return Err(LimiterError::Duplicate(*duplicate));
        }
        if limits.is_empty() {
            return Err(LimiterError::Empty);
        }
        Ok(Self {
            has_per_key_window_offset: limits.iter().any(Limit::has_per_key_window_offset),
            named_limits: Arc::new(NamedLimits::new(name, &limits, false)),
            share: LocalLimits::new(name, &limits, NonZeroU32::MIN, false),
            limits,
            store,
            secret: foldhash::quality::RandomState::default(),
            scope: new_limiter_scope(name),
            on_store_error: OnStoreError::default(),
            fallback: InMemoryFallback::new(LocalCountsOptions::default()),
            wait_queues: WaitQueues::new(WaitOptions::default()),
        })
    }

    /// Sets the name of the limiter, `limiter` by default. It is a part of its keys in a store outside of this process,
    /// and appears in headers, with `-` in place of characters other than `[a-z0-9._-]`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let is_observing = self.named_limits.is_observing();
        Self { scope: new_limiter_scope(name), ..self }.with_names(name, is_observing)
    }

    /// Returns the limiter in observe mode: it charges each limit that has capacity for the request, and denies
    /// nothing.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["1/min"])?.observing();
    /// assert!(limiter.check("acme").is_allowed());
    /// let decision = limiter.check("acme");
    /// assert!(decision.is_allowed() && decision.limits().all(|status| !status.fits()));
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[must_use]
    pub fn observing(self) -> Self {
        let names = self.named_limits.clone();
        self.with_names(names.name(), true)
    }

    fn with_names(self, name: &str, is_observing: bool) -> Self {
        Self {
            named_limits: Arc::new(NamedLimits::new(name, &self.limits, is_observing)),
            share: LocalLimits::new(name, &self.limits, self.fallback.instances(), is_observing),
            ..self
        }
    }

    /// Sets the behavior while the store is unavailable. By default, each instance enforces its share of the limits in
    /// memory; see [`with_local_counts`](Self::with_local_counts). A decision that was made without the store is
    /// [degraded](crate::Decision::is_degraded), and [has the error](crate::Decision::store_error) of the store.
    #[must_use]
    pub fn on_store_error(self, on_store_error: OnStoreError) -> Self {
        Self { on_store_error, ..self }
    }

    /// Sets the options of the counts in memory, which are used while the store is unavailable, among them the number
    /// of instances that share the store.
    #[must_use]
    pub fn with_local_counts(self, options: LocalCountsOptions) -> Self {
        let names = self.named_limits.clone();
        let limiter = Self { fallback: InMemoryFallback::new(options), ..self };
        limiter.with_names(names.name(), names.is_observing())
    }

    /// Sets the bounds on the calls that wait at the same time, and the jitter of their waits.
    #[must_use]
    pub fn with_wait_options(self, options: WaitOptions) -> Self {
        Self { wait_queues: WaitQueues::new(options), ..self }
    }

    /// Returns the number of calls that wait now, and the results of the calls that have waited.
    pub fn wait_stats(&self) -> WaitStats {
        self.wait_queues.stats()
    }

    /// Returns the limits, in the order of [`Decision::limits`](crate::Decision::limits).
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the hashed form of a key, for stores in this process.
    #[inline]
    fn hash_key<K: Hash + ?Sized>(&self, key: &K) -> Key<'static> {
        let stable_hash = if self.has_per_key_window_offset {
            let mut hasher = FnvHasher::default();
            key.hash(&mut hasher);
            hasher.finish()
        } else {
            0
        };
        Key::from_hashes(self.secret.hash_one(key), stable_hash)
    }
}

impl LocalLimits {
    fn new(name: &str, limits: &[Limit], instances: NonZeroU32, is_observing: bool) -> Self {
        let limits: Box<[Limit]> =
            limits.iter().map(|limit| limit.instance_share(instances)).collect();
        Self { named_limits: Arc::new(NamedLimits::new(name, &limits, is_observing)), limits }
    }
}

impl<S> fmt::Debug for Limiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limiter")
            .field("name", &self.named_limits.name())
            .field("limits", &self.limits)
            .field("wait_queues", &self.wait_queues)
            .finish_non_exhaustive()
    }
}

/// Returns the scope of a limiter, that is, the constant part of its keys, for stores that other processes share.
fn new_limiter_scope(name: &str) -> Scope {
    Scope::new(DEFAULT_DOMAIN, name, "", &["key"])
}
