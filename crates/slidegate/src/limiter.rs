//! The limiter: limits fixed in code, counted by any hashable key, without a policy.
//!
//! For headers and problem details, its limits are presented as a policy with one rule.

mod any_store;

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};
use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use fnv::FnvHasher;
use smallvec::{Array, SmallVec};
use thiserror::Error;

use crate::decision::{Decision, Verdict};
use crate::gate::Ruling;
use crate::hit::Hit;
use crate::jitter::Jitter;
use crate::key::{Key, Scope};
use crate::limit::{Limit, LimitError};
use crate::policy::{Mode, Rule};
use crate::request::DEFAULT_DOMAIN;
use crate::settle::{ChargeCorrection, extra_charge_hits};
use crate::store::memory::MemoryStore;
use crate::store::{Receipt, SyncStore};

/// Number of keys that [`Limiter::check_many`] charges in one call to the store.
const MAX_KEYS_PER_BATCH: usize = 16;

/// A rate limiter whose limits are fixed in code. The limits apply to each key separately; a key is any hashable value.
///
/// ```
/// use slidegate::{Limiter, Verdict::{Allowed, Denied}};
///
/// let limiter = Limiter::new(["2/s", "600/min"])?;      // sliding windows, in memory
/// for _ in 0..3 {
///     match limiter.check("tenant:acme") {
///         Allowed(decision) => println!("{} left", decision.remaining()),
///         Denied(decision) => println!("denied, retry after {:?}", decision.retry_after()),
///     }
/// }
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
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
    /// Whether the limiter is in observe mode, in which it denies nothing.
    is_observing: bool,
    /// The limits, converted into a policy rule for headers and problem details. This slice has one rule.
    rules: Arc<[Rule]>,
    /// The number of instances of the service that share the store.
    instances: NonZeroU32,
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
    #[error("a limiter needs at least one limit, for example \"10/s\"")]
    Empty,
    /// Two limits have the same window and algorithm, and would share their counts.
    #[error(
        "`{0}` has the same window and algorithm as another limit; keep the smaller of the two"
    )]
    Duplicate(Limit),
}

/// The error of a wait that would never end, because the cost exceeds the capacity of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a cost of {0} exceeds the capacity of a limit and never fits")]
pub struct CostExceedsMax(pub u64);

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
    /// If a limit is invalid, there are no limits, or two limits would share their counts.
    pub fn with_store<L>(
        limits: impl IntoIterator<Item = L>,
        store: S,
    ) -> Result<Self, LimiterError>
    where
        L: IntoLimit,
    {
        let limits: Box<[Limit]> =
            limits.into_iter().map(IntoLimit::into_limit).collect::<Result<_, _>>()?;
        let mut shapes = HashSet::new();
        if let Some(duplicate) = limits.iter().find(|limit| !shapes.insert(limit.shape_text())) {
            return Err(LimiterError::Duplicate(*duplicate));
        }
        if limits.is_empty() {
            return Err(LimiterError::Empty);
        }
        let has_per_key_window_offset = limits.iter().any(Limit::has_per_key_window_offset);
        let secret = foldhash::quality::RandomState::default();
        let rules = limits_as_single_rule(DEFAULT_LIMITER_NAME, &limits, Mode::Enforce);
        let (scope, instances) = (new_limiter_scope(DEFAULT_LIMITER_NAME), NonZeroU32::MIN);
        let is_observing = false;
        Ok(Self {
            limits,
            store,
            secret,
            has_per_key_window_offset,
            scope,
            is_observing,
            rules,
            instances,
        })
    }

    /// Sets the name of the limiter, `limiter` by default. In a store that several limiters share, limiters with the
    /// same name share the counts of each key and limit.
    ///
    /// The name also appears in headers, with `-` in place of characters other than `[a-z0-9._-]`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let rules = limits_as_single_rule(name, &self.limits, self.rules[0].settings().mode());
        Self { scope: new_limiter_scope(name), rules, ..self }
    }

    /// Returns the limiter in observe mode: it charges each limit that has capacity for the request, and denies
    /// nothing.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["1/min"])?.observing();
    /// assert!(limiter.check("acme").is_allowed());
    /// let verdict = limiter.check("acme");
    /// assert!(verdict.is_allowed() && !verdict.decision().outcomes()[0].fits());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[must_use]
    pub fn observing(self) -> Self {
        let rules = limits_as_single_rule(self.rules[0].name(), &self.limits, Mode::Observe);
        Self { is_observing: true, rules, ..self }
    }

    /// Combines a decision of this limiter with the names of its limits. [Headers](crate::headers) and [problem
    /// details](crate::Problem) are written from the resulting ruling.
    ///
    /// ```
    /// use slidegate::headers::{self, Style};
    /// use slidegate::{JitterSample, Timestamp};
    ///
    /// let limiter = slidegate::Limiter::new(["100/min"])?.named("api");
    /// let ruling = limiter.ruling(limiter.check("acme").into());
    /// let headers = headers::write(Style::Ietf, &ruling, Timestamp::from_secs(0), JitterSample::NONE);
    /// assert_eq!(headers[0], ("ratelimit-policy", "\"api\";q=100;w=60".to_owned()));
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[inline]
    pub fn ruling(&self, decision: Decision) -> Ruling {
        Ruling::from_limiter(self.rules.clone(), decision)
    }

    /// Returns the ruling for a request that has no key although a key is required: a denial without a retry time, or,
    /// in [observe mode](Self::observing), an admission.
    pub fn ruling_without_key(&self) -> Ruling {
        Ruling::without_key(self.rules.clone())
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
    /// assert_eq!(limiter.local_share().peek("acme", 1).decision().remaining(), 2);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[must_use]
    pub fn local_share(&self) -> Limiter {
        let share = |limit: &Limit| limit.instance_share(self.instances);
        let rules = self.rules.iter().map(|rule| rule.with_limits_divided(self.instances));
        Limiter {
            limits: self.limits.iter().map(share).collect(),
            rules: rules.collect(),
            ..self.with_other_store(MemoryStore::new())
        }
    }

    /// Returns a limiter with the same limits and settings that counts in another store.
    #[must_use]
    pub fn with_other_store<T>(&self, store: T) -> Limiter<T> {
        let Self {
            limits,
            secret,
            has_per_key_window_offset,
            scope,
            is_observing,
            rules,
            instances,
            ..
        } = self;
        Limiter {
            limits: limits.clone(),
            store,
            secret: secret.clone(),
            has_per_key_window_offset: *has_per_key_window_offset,
            scope: scope.clone(),
            is_observing: *is_observing,
            rules: rules.clone(),
            instances: *instances,
        }
    }

    /// Returns the limits, in the order of the outcomes of a decision.
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

    /// Decides a request for `key` as [`decide_in_store`](Self::decide_in_store) does, and returns the decision as a
    /// [`Verdict`].
    #[inline]
    fn check_in_store<K: Hash + ?Sized, L: SyncStore + ?Sized>(
        &self,
        store: &L,
        key: &K,
        cost: u64,
    ) -> Verdict {
        self.decide_in_store(store, key, cost).into()
    }

    /// Decides a request for `key` with the counts in `store`, which responds without waiting. Charges `cost` units if
    /// every limit has capacity for them.
    #[inline(always)]
    fn decide_in_store<K: Hash + ?Sized, L: SyncStore + ?Sized>(
        &self,
        store: &L,
        key: &K,
        cost: u64,
    ) -> Decision {
        if let [limit] = &*self.limits {
            let hit = self.new_hit(self.hash_key(key), limit, cost);
            return Decision::from_single_charge(&hit, store.take_one_now(&hit));
        }
        // Filled in place: the result of `hits` would be copied.
        let mut hits = SmallVec::<[Hit<'_>; 4]>::new();
        self.push_hits(&mut hits, key, cost);
        Decision::from_charge(&hits, store.take_now(&hits))
    }

    /// Corrects the charge of a request for `key` to its actual cost `cost`, with the counts in `store`; see
    /// [`settle`](Limiter::settle).
    fn settle_in_store<K: Hash + ?Sized>(
        &self,
        store: &dyn SyncStore,
        key: &K,
        decision: &Decision,
        cost: u64,
    ) {
        match ChargeCorrection::new(decision, decision.receipt().cost_of_first_charge(), cost) {
            ChargeCorrection::Unchanged => {}
            ChargeCorrection::Revert { units, charged } => {
                store.revert_now(&decision.receipt().fraction(units, charged));
            }
            ChargeCorrection::Charge(extra) => {
                store.take_now(&extra_charge_hits(self.hits_for_cost(key, extra), decision));
            }
        }
    }

    /// Returns one hit of `cost` units for each limit.
    #[inline]
    fn hits_for_cost<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> SmallVec<[Hit<'_>; 4]> {
        let mut hits = SmallVec::new();
        self.push_hits(&mut hits, key, cost);
        hits
    }

    /// Returns one hit of `cost` units for each limit. The hits report units that have been consumed already, so they
    /// never deny.
    fn hits_for_reported_usage<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
    ) -> SmallVec<[Hit<'_>; 4]> {
        self.hits_for_cost(key, cost).into_iter().map(Hit::reported).collect()
    }

    /// Appends one hit of `cost` units for each limit to `hits`.
    #[inline]
    fn push_hits<'l, K, A>(&'l self, hits: &mut SmallVec<A>, key: &K, cost: u64)
    where
        K: Hash + ?Sized,
        A: Array<Item = Hit<'l>>,
    {
        let key = self.hash_key(key);
        for limit in &self.limits {
            hits.push(self.new_hit(key, limit, cost));
        }
    }

    #[inline(always)]
    fn new_hit<'l>(&self, key: Key<'l>, limit: &'l Limit, cost: u64) -> Hit<'l> {
        let hit = Hit::new(key, limit, cost);
        if self.is_observing { hit.observed() } else { hit }
    }
}

/// Methods for a store that responds without waiting and never fails.
impl<S: SyncStore> Limiter<S> {
    /// Decides a request for `key`, and charges one unit if every limit has capacity for it.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Verdict {
        self.check_cost(key, 1)
    }

    /// Decides a request for `key`, and charges `cost` units if every limit has capacity for them. A cost of 0 checks
    /// whether one unit would fit, and charges nothing.
    #[inline]
    pub fn check_cost<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        self.check_in_store(&self.store, key, cost)
    }

    /// Returns the decision that [`check_cost`](Self::check_cost) would make. Charges nothing.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        let hits = self.hits_for_cost(key, cost);
        Decision::from_peek(&hits, self.store.peek_now(&hits)).into()
    }

    /// Decides one request for each key, in order and independently of each other. Faster than separate calls of
    /// [`check`](Self::check).
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["1/min"])?;
    /// let verdicts = limiter.check_many(&["a", "b", "a"]);
    /// let allowed: Vec<bool> = verdicts.iter().map(|verdict| verdict.is_allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn check_many<K: Hash>(&self, keys: &[K]) -> Vec<Verdict> {
        let mut verdicts = Vec::with_capacity(keys.len());
        if let [limit] = &*self.limits {
            for keys in keys.chunks(MAX_KEYS_PER_BATCH) {
                let hit = |key| self.new_hit(key, limit, 1);
                let mut hits = [hit(Key::from_hashes(0, 0)); MAX_KEYS_PER_BATCH];
                for (hit, key) in hits.iter_mut().zip(keys) {
                    hit.key = self.hash_key(key);
                }
                self.store.take_each_now(&hits[..keys.len()], |result| {
                    verdicts.push(Decision::from_single_charge(&hits[0], result).into());
                });
            }
            return verdicts;
        }
        for keys in keys.chunks(MAX_KEYS_PER_BATCH) {
            let mut hits: SmallVec<[Hit<'_>; MAX_KEYS_PER_BATCH]> = SmallVec::new();
            for key in keys {
                self.push_hits(&mut hits, key, 1);
            }
            let requests: SmallVec<[&[Hit<'_>]; MAX_KEYS_PER_BATCH]> =
                hits.chunks(self.limits.len()).collect();
            let mut charged = requests.iter();
            self.store.take_many_now(&requests, |result| {
                let hits = charged.next().copied().unwrap_or_default();
                verdicts.push(Decision::from_charge(hits, result).into());
            });
        }
        verdicts
    }

    /// Reverts the charges of a decision's receipt. Call this method at most once per receipt.
    pub fn revert(&self, receipt: &Receipt) {
        self.store.revert_now(receipt);
    }

    /// Corrects the charge of an allowed request for `key` to `cost`, the actual cost: reverts the excess, or charges
    /// the difference, even above max. A key above max is denied until enough units have left the window. A denied
    /// request has no cost, so its charge is not changed.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// let verdict = limiter.check_cost("acme", 80);              // an estimate
    /// limiter.settle("acme", verdict.decision(), 120);           // the actual cost
    /// assert!(!limiter.peek("acme", 1).is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle<K: Hash + ?Sized>(&self, key: &K, decision: &Decision, cost: u64) {
        self.settle_in_store(&self.store, key, decision, cost);
    }

    /// Records units of `key` that have been consumed already. A report is never denied: units are charged even above
    /// max, and the key is then denied until enough units have left the window.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.report("acme", 120).is_allowed());
    /// assert!(!limiter.check("acme").is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn report<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let hits = self.hits_for_reported_usage(key, cost);
        Decision::from_charge(&hits, self.store.take_now(&hits))
    }

    /// Subtracts `cost` units from each counter of `key`, oldest units first, or all units if the counter has fewer. No
    /// receipt is needed.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.check_cost("acme", 80).is_allowed()); // the maximum cost
    /// limiter.refund("acme", 50);                           // the actual cost is 30
    /// assert_eq!(limiter.peek("acme", 1).decision().remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        self.store.refund_now(&self.hits_for_cost(key, cost));
    }

    /// Resets all counters of a key to zero.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.store.reset_now(&self.hits_for_cost(key, 1));
    }

    /// Charges `cost` units to `key` as soon as they fit. Blocks the current thread until then, plus a random time of
    /// up to `jitter`. Waiting callers are not queued: when capacity becomes free, the first caller to retry is
    /// admitted.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits.
    pub fn wait<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision, CostExceedsMax> {
        loop {
            match self.try_charge_once(key, cost, jitter)? {
                ChargeAttempt::Allowed(decision) => return Ok(decision),
                ChargeAttempt::RetryAfter(wait) => std::thread::sleep(wait),
            }
        }
    }

    /// Charges units like [`wait`](Self::wait), and waits asynchronously, on the timer of tokio.
    ///
    /// # Errors
    /// If the cost exceeds the capacity of a limit, and so never fits.
    #[cfg(feature = "tokio")]
    pub async fn wait_async<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision, CostExceedsMax> {
        loop {
            match self.try_charge_once(key, cost, jitter)? {
                ChargeAttempt::Allowed(decision) => return Ok(decision),
                ChargeAttempt::RetryAfter(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    /// Tries once to charge `cost` units to `key`. Returns the time until the next attempt if the units do not fit yet.
    fn try_charge_once<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<ChargeAttempt, CostExceedsMax> {
        match self.check_cost(key, cost) {
            Verdict::Allowed(decision) => Ok(ChargeAttempt::Allowed(decision)),
            Verdict::Denied(decision) => {
                let wait = decision.retry_after().ok_or(CostExceedsMax(cost))?;
                Ok(ChargeAttempt::RetryAfter(jitter.draw().extend(wait)))
            }
        }
    }
}

/// Converts limits into a policy rule with this name. The returned slice has one rule.
fn limits_as_single_rule(name: &str, limits: &[Limit], mode: Mode) -> Arc<[Rule]> {
    [Rule::for_limiter(name, limits, mode)].into()
}

/// Returns the scope of a limiter, that is, the constant part of its keys, for stores that other processes share.
fn new_limiter_scope(name: &str) -> Scope {
    Scope::new(DEFAULT_DOMAIN, name, "", &["key"])
}

/// The result of one attempt to charge units for a waiting caller.
enum ChargeAttempt {
    Allowed(Decision),
    RetryAfter(Duration),
}
