//! The limiter: limits fixed in code, counted by any hashable key, without a policy.
//!
//! `synchronous.rs` has the methods for stores that never wait, and `asynchronous.rs` the same methods for all stores.
//! `wait.rs` has the methods that wait until a call fits.

mod asynchronous;
mod synchronous;
mod wait;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;

use fnv::FnvHasher;
use smallvec::SmallVec;
use thiserror::Error;

use crate::decision::{Decision, DecisionLimits, Denied};
use crate::hit::Hit;
use crate::key::{DEFAULT_DOMAIN, Key, Scope, Value};
use crate::limit::{Limit, LimitError};
use crate::rule_limit::NamedLimits;
use crate::store::memory::MemoryStore;
use crate::store::{Adjustment, Edit, Receipt, Store, StoreError, StoreKind};
use crate::wait::WaitBounds;
use crate::wait::queues::WaitQueues;

pub use crate::store_key::StoreKey;

/// A rate limiter whose limits are fixed in code. The limits apply to each key separately; a key is any hashable value.
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
/// `_async` exist for every store. With a synchronous store, both count the same keys.
pub struct Limiter<S = MemoryStore> {
    limits: Box<[Limit]>,
    store: S,
    /// The secret with which keys are hashed, so that clients cannot choose keys whose hashes collide.
    secret: foldhash::quality::RandomState,
    /// Whether the windows of a limit begin at an offset that depends on the key (the phase). The phase is computed
    /// from a stable hash of the key.
    has_per_key_window_offset: bool,
    /// The constant part of the limiter's keys, for a store that other processes share.
    scope: Scope,
    /// The limits with their names, for decisions. In the order of `limits`.
    named_limits: Arc<NamedLimits>,
    /// The number of instances of the service that share the store.
    instances: NonZeroU32,
    /// The calls that wait until they fit.
    wait_queues: WaitQueues,
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
    /// The limit bounds the requests in flight. A limiter does not release permits.
    #[error("`{0}` needs permits, which a limiter does not release; use a gate with a policy")]
    Concurrent(Limit),
}

/// The reason why a wait ended without a charge.
#[derive(Clone, Debug, Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The request is denied, and the time at which it would fit is not known. For example, its cost exceeds the
    /// capacity of a limit.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// The store did not respond.
    #[error(transparent)]
    Store(#[from] StoreError),
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
        Self::with_store(limits, MemoryStore::new())
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
    /// Creates a limiter that counts in `store`.
    ///
    /// # Errors
    /// If a limit is invalid or bounds the requests in flight, there are no limits, or two limits would share their counts.
    pub fn with_store<L>(
        limits: impl IntoIterator<Item = L>,
        store: S,
    ) -> Result<Self, LimiterError>
    where
        L: IntoLimit,
    {
        let limits: Box<[Limit]> =
            limits.into_iter().map(IntoLimit::into_limit).collect::<Result<_, _>>()?;
        if let Some(concurrent) = limits.iter().find(|limit| limit.is_concurrent()) {
            return Err(LimiterError::Concurrent(*concurrent));
        }
        let mut shapes = HashSet::new();
        if let Some(duplicate) = limits.iter().find(|limit| !shapes.insert(limit.shape_text())) {
            return Err(LimiterError::Duplicate(*duplicate));
        }
        if limits.is_empty() {
            return Err(LimiterError::Empty);
        }
        Ok(Self {
            has_per_key_window_offset: limits.iter().any(Limit::has_per_key_window_offset),
            named_limits: Arc::new(NamedLimits::new(DEFAULT_LIMITER_NAME, &limits, false)),
            limits,
            store,
            secret: foldhash::quality::RandomState::default(),
            scope: new_limiter_scope(DEFAULT_LIMITER_NAME),
            instances: NonZeroU32::MIN,
            wait_queues: WaitQueues::new(WaitBounds::default()),
        })
    }

    /// Sets the name of the limiter, `limiter` by default. In a store that several limiters share, limiters with the
    /// same name share the counts of each key and limit.
    ///
    /// The name also appears in headers, with `-` in place of characters other than `[a-z0-9._-]`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let limits = NamedLimits::new(name, &self.limits, self.named_limits.is_observing());
        Self { scope: new_limiter_scope(name), named_limits: Arc::new(limits), ..self }
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
        let limits = NamedLimits::new(self.named_limits.name(), &self.limits, true);
        Self { named_limits: Arc::new(limits), ..self }
    }

    /// Sets the number of instances that share the store, 1 by default. See [`local_share`](Self::local_share).
    #[must_use]
    pub fn with_instances(self, instances: NonZeroU32) -> Self {
        Self { instances, ..self }
    }

    /// Returns a limiter in memory that enforces this instance's share of the limits, for use while the store is
    /// unavailable. The share of a limit is max(1, max / instances), and the same applies to a burst. A max of 0 stays
    /// 0. All instances together then admit at most max, or one unit each if max is less than the number of instances.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    ///
    /// let four = NonZeroU32::MIN.saturating_add(3);
    /// let limiter = slidegate::Limiter::new(["10/min"])?.with_instances(four);
    /// assert_eq!(limiter.local_share().peek("acme", 1).remaining(), 2);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[must_use]
    pub fn local_share(&self) -> Limiter {
        let share = |limit: &Limit| limit.instance_share(self.instances);
        let limits: Box<[Limit]> = self.limits.iter().map(share).collect();
        let names = &self.named_limits;
        let named_limits = NamedLimits::new(names.name(), &limits, names.is_observing());
        Limiter {
            limits,
            named_limits: Arc::new(named_limits),
            ..self.with_other_store(MemoryStore::new())
        }
    }

    /// Returns a limiter with the same limits and settings that counts in another store.
    #[must_use]
    pub fn with_other_store<T>(&self, store: T) -> Limiter<T> {
        Limiter {
            limits: self.limits.clone(),
            store,
            secret: self.secret.clone(),
            has_per_key_window_offset: self.has_per_key_window_offset,
            scope: self.scope.clone(),
            named_limits: self.named_limits.clone(),
            instances: self.instances,
            wait_queues: WaitQueues::new(self.wait_queues.bounds()),
        }
    }

    /// Returns the limits, in the order of [`Decision::limits`].
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the limits with their names, in the order of [`limits`](Self::limits).
    pub(crate) fn named_limits(&self) -> &Arc<NamedLimits> {
        &self.named_limits
    }

    /// Returns the limits for a decision.
    #[inline]
    fn decision_limits(&self) -> DecisionLimits<'_> {
        DecisionLimits::Limiter { limits: Cow::Borrowed(&self.named_limits), is_key_missing: false }
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

    /// Returns one hit of `cost` units for each limit.
    #[inline]
    fn hits_for_key<'l>(&'l self, key: Key<'l>, cost: u64) -> HitList<'l> {
        let mut hits = HitList::new();
        for limit in &self.limits {
            hits.push(self.new_hit(key, limit, cost));
        }
        hits
    }

    #[inline]
    fn new_hit<'l>(&self, key: Key<'l>, limit: &'l Limit, cost: u64) -> Hit<'l> {
        let hit = Hit::new(key, limit, cost);
        if self.named_limits.is_observing() { hit.observed() } else { hit }
    }
}

/// The bodies of all operations. With a synchronous store, they are ready when they are first polled.
impl<S: Store> Limiter<S> {
    async fn charge_key(&self, key: Key<'_>, cost: u64) -> Result<Decision<'_>, StoreError> {
        let hits = self.hits_for_key(key, cost);
        let result = self.store.charge_async(&hits).await?;
        Ok(Decision::from_charge(&hits, result, self.decision_limits()))
    }

    async fn charge_keys(
        &self,
        keys: impl Iterator<Item = Key<'_>>,
    ) -> Result<Vec<Decision<'_>>, StoreError> {
        let hits: Vec<HitList<'_>> = keys.map(|key| self.hits_for_key(key, 1)).collect();
        let calls: Vec<&[Hit<'_>]> = hits.iter().map(|hits| &**hits).collect();
        let results = self.store.charge_many_async(&calls).await?;
        let decided = calls.iter().zip(results);
        Ok(decided
            .map(|(hits, result)| Decision::from_charge(hits, result, self.decision_limits()))
            .collect())
    }

    async fn peek_key(&self, key: Key<'_>, cost: u64) -> Result<Decision<'_>, StoreError> {
        let hits = self.hits_for_key(key, cost);
        let outcomes = self.store.peek_async(&hits).await?;
        Ok(Decision::from_peek(&hits, outcomes, self.decision_limits()))
    }

    async fn report_key(&self, key: Key<'_>, cost: u64) -> Result<Decision<'_>, StoreError> {
        let hits: HitList<'_> =
            self.hits_for_key(key, cost).into_iter().map(Hit::reported).collect();
        let result = self.store.charge_async(&hits).await?;
        Ok(Decision::from_charge(&hits, result, self.decision_limits()))
    }

    async fn edit_key(&self, key: Key<'_>, cost: u64, edit: Edit) -> Result<(), StoreError> {
        let hits = self.hits_for_key(key, cost);
        self.store.edit_async(&hits, edit).await?;
        self.wait_queues.wake_for_hits(&self.store, hits);
        Ok(())
    }

    async fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) -> Result<(), StoreError> {
        self.store.adjust_async(receipt, adjustment).await?;
        self.wait_queues.wake_for_charges(receipt.charges_to_revert(adjustment));
        Ok(())
    }

    /// Returns the text of a key for a store outside of this process; an empty text for a synchronous store, which counts
    /// by hashes.
    fn text_for_store<'k, K: StoreKey + ?Sized>(&self, key: &'k K) -> Cow<'k, str> {
        if S::Kind::IS_SYNCHRONOUS { Cow::Borrowed("") } else { key.text() }
    }

    /// Returns the key for the store of the limiter: the hash of `key` for a synchronous store, otherwise the key with
    /// this value.
    fn key_for_store<'a, K: StoreKey + ?Sized>(
        &'a self,
        key: &K,
        value: &'a [Value<'a>; 1],
    ) -> Key<'a> {
        if S::Kind::IS_SYNCHRONOUS { self.hash_key(key) } else { Key::new(&self.scope, value) }
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

/// The hits of one request.
type HitList<'l> = SmallVec<[Hit<'l>; 4]>;

/// Returns the scope of a limiter, that is, the constant part of its keys, for stores that other processes share.
fn new_limiter_scope(name: &str) -> Scope {
    Scope::new(DEFAULT_DOMAIN, name, "", &["key"])
}
