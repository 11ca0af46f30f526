//! The code-first form: limits fixed in code, any key.

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
use crate::settle::{Settlement, settled};
use crate::store::memory::MemoryStore;
use crate::store::{Receipt, SyncStore};

/// Keys that [`Limiter::check_many`] takes to the store at once.
const BATCH: usize = 16;

/// Limits fixed in code, counted per any key that can be hashed.
///
/// ```
/// use slidegate::{Limiter, Verdict::{Allowed, Denied}};
///
/// let limiter = Limiter::new(["2/s", "600/min"])?;      // sliding windows, in memory
/// for _ in 0..3 {
///     match limiter.check("tenant:acme") {
///         Allowed(decision) => println!("{} left", decision.remaining()),
///         Denied(decision) => println!("come back in {:?}", decision.retry_after()),
///     }
/// }
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
pub struct Limiter<S = MemoryStore> {
    limits: Box<[Limit]>,
    store: S,
    secret: foldhash::quality::RandomState,
    has_phase: bool,
    scope: Scope,
    /// Whether it only observes.
    is_observing: bool,
    /// The limits as headers tell them.
    rules: Arc<[Rule]>,
    /// Number of instances that share the store.
    instances: NonZeroU32,
}

/// The name by which a limiter's counts are known where others count too.
const NAME: &str = "limiter";

/// Why a limiter cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimiterError {
    /// One of the limits is wrong.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// No limit was given.
    #[error("a limiter needs at least one limit, for example \"10/s\"")]
    Empty,
    /// Two limits would share their counts.
    #[error("`{0}` stands twice with one window and algorithm: keep the smaller")]
    Twice(Limit),
}

/// The cost is over what one of the limits holds, so that it can never fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a cost of {0} is over what one of the limits holds: it can never fit")]
pub struct CostExceedsMax(pub u64);

impl Limiter {
    /// A limiter over a memory store of its own. A limit is a [`Limit`], or text like `"100/min"`.
    ///
    /// # Errors
    /// If a limit is wrong, there is none, or two would share their counts.
    pub fn new<L>(limits: impl IntoIterator<Item = L>) -> Result<Self, LimiterError>
    where
        L: IntoLimit,
    {
        Self::with_store(limits, MemoryStore::new())
    }
}

/// What can be a limit of a limiter.
pub trait IntoLimit {
    /// The limit.
    ///
    /// # Errors
    /// If it is text that is no quota.
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
    /// A limiter over a given store.
    ///
    /// # Errors
    /// If a limit is wrong, there is none, or two would share their counts.
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
        if let Some(twice) = limits.iter().find(|limit| !shapes.insert(limit.shape_text())) {
            return Err(LimiterError::Twice(*twice));
        }
        if limits.is_empty() {
            return Err(LimiterError::Empty);
        }
        let has_phase = limits.iter().any(Limit::has_phase);
        let secret = foldhash::quality::RandomState::default();
        let rules = rules(NAME, &limits, Mode::Enforce);
        let (scope, instances) = (scope(NAME), NonZeroU32::MIN);
        let is_observing = false;
        Ok(Self { limits, store, secret, has_phase, scope, is_observing, rules, instances })
    }

    /// The name by which its counts are known in a store that several limiters share; `limiter` if none is
    /// given. Those of one name share the counts of each key and limit.
    ///
    /// Headers call its limits by that name, with `-` for what is not of `[a-z0-9._-]`.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        let rules = rules(name, &self.limits, self.rules[0].settings().mode());
        Self { scope: scope(name), rules, ..self }
    }

    /// The same, deciding and counting as ever, and denying nothing: to see what it would do.
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
        let rules = rules(self.rules[0].name(), &self.limits, Mode::Observe);
        Self { is_observing: true, rules, ..self }
    }

    /// A decision of this limiter as [headers](crate::headers) and [problems](crate::Problem) want it: with the
    /// names of the limits.
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
        Ruling::fixed(self.rules.clone(), decision)
    }

    /// Of a request that has no key, where nobody shall pass without: a denial that never ends, unless this
    /// limiter [observes](Self::observing).
    pub fn ruling_without_key(&self) -> Ruling {
        Ruling::without_key(self.rules.clone())
    }

    /// Sets the number of instances that share the store, 1 by default. See [`local_share`](Self::local_share).
    #[must_use]
    pub fn expecting_instances(self, instances: NonZeroU32) -> Self {
        Self { instances, ..self }
    }

    /// Returns a limiter in memory that enforces this instance's share of the limits, for use while the store is
    /// unavailable. The share of a limit is max(1, max / instances), and that of a burst likewise; a max of 0 stays 0. All
    /// instances together then admit at most max, or one unit each if max is less than the number of instances.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    ///
    /// let four = NonZeroU32::MIN.saturating_add(3);
    /// let limiter = slidegate::Limiter::new(["10/min"])?.expecting_instances(four);
    /// assert_eq!(limiter.local_share().peek("acme", 1).decision().remaining(), 2);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    #[must_use]
    pub fn local_share(&self) -> Limiter {
        let share = |limit: &Limit| limit.instance_share(self.instances);
        let rules = self.rules.iter().map(|rule| rule.share_of(self.instances));
        Limiter {
            limits: self.limits.iter().map(share).collect(),
            rules: rules.collect(),
            ..self.over(MemoryStore::new())
        }
    }

    /// The same limits, counted in another store.
    #[must_use]
    pub fn over<T>(&self, store: T) -> Limiter<T> {
        let Self { limits, secret, has_phase, scope, is_observing, rules, instances, .. } = self;
        Limiter {
            limits: limits.clone(),
            store,
            secret: secret.clone(),
            has_phase: *has_phase,
            scope: scope.clone(),
            is_observing: *is_observing,
            rules: rules.clone(),
            instances: *instances,
        }
    }

    /// The limits, in the order of the outcomes of a decision.
    pub fn limits(&self) -> &[Limit] {
        &self.limits
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    #[inline]
    fn key<K: Hash + ?Sized>(&self, key: &K) -> Key<'static> {
        let stable = if self.has_phase {
            let mut hasher = FnvHasher::default();
            key.hash(&mut hasher);
            hasher.finish()
        } else {
            0
        };
        Key::hashed(self.secret.hash_one(key), stable)
    }

    #[inline]
    fn check_in<K: Hash + ?Sized, L: SyncStore + ?Sized>(
        &self,
        store: &L,
        key: &K,
        cost: u64,
    ) -> Verdict {
        self.decide_in(store, key, cost).into()
    }

    #[inline(always)]
    fn decide_in<K: Hash + ?Sized, L: SyncStore + ?Sized>(
        &self,
        store: &L,
        key: &K,
        cost: u64,
    ) -> Decision {
        if let [limit] = &*self.limits {
            let hit = self.hit(self.key(key), limit, cost);
            return Decision::of_one(&hit, store.take_one_now(&hit));
        }
        let hits = self.hits(key, cost);
        Decision::of_taken(&hits, store.take_now(&hits))
    }

    fn settle_in<K: Hash + ?Sized>(
        &self,
        store: &dyn SyncStore,
        key: &K,
        decision: &Decision,
        cost: u64,
    ) {
        match Settlement::of(decision, decision.receipt().first_cost(), cost) {
            Settlement::Nothing => {}
            Settlement::Revert { units, of } => {
                store.revert_now(&decision.receipt().fraction(units, of));
            }
            Settlement::Charge(extra) => {
                store.take_now(&settled(self.hits(key, extra), decision));
            }
        }
    }

    #[inline]
    fn hits<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> SmallVec<[Hit<'_>; 4]> {
        let mut hits = SmallVec::new();
        self.push_hits(&mut hits, key, cost);
        hits
    }

    fn reported_hits<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> SmallVec<[Hit<'_>; 4]> {
        self.hits(key, cost).into_iter().map(Hit::reported).collect()
    }

    #[inline]
    fn push_hits<'l, K, A>(&'l self, hits: &mut SmallVec<A>, key: &K, cost: u64)
    where
        K: Hash + ?Sized,
        A: Array<Item = Hit<'l>>,
    {
        let key = self.key(key);
        for limit in &self.limits {
            hits.push(self.hit(key, limit, cost));
        }
    }

    #[inline(always)]
    fn hit<'l>(&self, key: Key<'l>, limit: &'l Limit, cost: u64) -> Hit<'l> {
        let hit = Hit::new(key, limit, cost);
        if self.is_observing { hit.observed() } else { hit }
    }
}

/// Over a store that answers without waiting and never fails.
impl<S: SyncStore> Limiter<S> {
    /// Takes one unit of `key` if every limit has room for it.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Verdict {
        self.check_cost(key, 1)
    }

    /// Takes `cost` units of `key` if every limit has room for them. A cost of 0 asks whether one unit
    /// would fit, and takes nothing.
    #[inline]
    pub fn check_cost<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        self.check_in(&self.store, key, cost)
    }

    /// What [`check_cost`](Self::check_cost) would say. Takes nothing.
    pub fn peek<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        let hits = self.hits(key, cost);
        Decision::of_peeked(&hits, self.store.peek_now(&hits)).into()
    }

    /// Takes one unit of each key, each decided on its own, in their order. Cheaper than one by one.
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
            for keys in keys.chunks(BATCH) {
                let hit = |key| self.hit(key, limit, 1);
                let mut hits = [hit(Key::hashed(0, 0)); BATCH];
                for (hit, key) in hits.iter_mut().zip(keys) {
                    hit.key = self.key(key);
                }
                self.store.take_each_now(&hits[..keys.len()], |taken| {
                    verdicts.push(Decision::of_one(&hits[0], taken).into());
                });
            }
            return verdicts;
        }
        for keys in keys.chunks(BATCH) {
            let mut hits: SmallVec<[Hit<'_>; BATCH]> = SmallVec::new();
            for key in keys {
                self.push_hits(&mut hits, key, 1);
            }
            let asks: SmallVec<[&[Hit<'_>]; BATCH]> = hits.chunks(self.limits.len()).collect();
            let mut asked = asks.iter();
            self.store.take_many_now(&asks, |taken| {
                let hits = asked.next().copied().unwrap_or_default();
                verdicts.push(Decision::of_taken(hits, taken).into());
            });
        }
        verdicts
    }

    /// Gives back what a decision's receipt says was charged. Once only.
    pub fn revert(&self, receipt: &Receipt) {
        self.store.revert_now(receipt);
    }

    /// Makes `cost` what an allowed request of `key` was charged, once it is known what it has cost: gives back
    /// what is too much, or charges the rest, even beyond max. The key then stays denied until enough has left
    /// the window. What was denied has cost nothing.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// let verdict = limiter.check_cost("acme", 80);              // a guess
    /// limiter.settle("acme", verdict.decision(), 120);           // it was more
    /// assert!(!limiter.peek("acme", 1).is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn settle<K: Hash + ?Sized>(&self, key: &K, decision: &Decision, cost: u64) {
        self.settle_in(&self.store, key, decision, cost);
    }

    /// Records units of `key` that have been consumed, also above max. The key then stays denied until enough has left the
    /// window. It never denies.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.report("acme", 120).is_allowed());
    /// assert!(!limiter.check("acme").is_allowed());
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn report<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Decision {
        let hits = self.reported_hits(key, cost);
        Decision::of_taken(&hits, self.store.take_now(&hits))
    }

    /// Takes `cost` units off the counts of `key` without a receipt: of the units that still count the oldest, or
    /// all if there are fewer.
    ///
    /// ```
    /// let limiter = slidegate::Limiter::new(["100/min"])?;
    /// assert!(limiter.check_cost("acme", 80).is_allowed()); // what it may cost at most
    /// limiter.refund("acme", 50);                           // it has cost 30
    /// assert_eq!(limiter.peek("acme", 1).decision().remaining(), 70);
    /// # Ok::<(), slidegate::LimiterError>(())
    /// ```
    pub fn refund<K: Hash + ?Sized>(&self, key: &K, cost: u64) {
        self.store.refund_now(&self.hits(key, cost));
    }

    /// Forgets the counts of a key.
    pub fn reset<K: Hash + ?Sized>(&self, key: &K) {
        self.store.reset_now(&self.hits(key, 1));
    }

    /// Takes `cost` units of `key` as soon as they fit: blocks this thread until then, and up to the
    /// jitter longer. Those who wait do not queue: who comes back first, is served first.
    ///
    /// # Errors
    /// If the cost can never fit.
    pub fn wait<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision, CostExceedsMax> {
        loop {
            match self.next_try(key, cost, jitter)? {
                Try::Allowed(decision) => return Ok(decision),
                Try::After(wait) => std::thread::sleep(wait),
            }
        }
    }

    /// [`wait`](Self::wait) on tokio's timer.
    ///
    /// # Errors
    /// If the cost can never fit.
    #[cfg(feature = "tokio")]
    pub async fn wait_async<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Decision, CostExceedsMax> {
        loop {
            match self.next_try(key, cost, jitter)? {
                Try::Allowed(decision) => return Ok(decision),
                Try::After(wait) => tokio::time::sleep(wait).await,
            }
        }
    }

    fn next_try<K: Hash + ?Sized>(
        &self,
        key: &K,
        cost: u64,
        jitter: Jitter,
    ) -> Result<Try, CostExceedsMax> {
        match self.check_cost(key, cost) {
            Verdict::Allowed(decision) => Ok(Try::Allowed(decision)),
            Verdict::Denied(decision) => {
                let wait = decision.retry_after().ok_or(CostExceedsMax(cost))?;
                Ok(Try::After(jitter.draw().extend(wait)))
            }
        }
    }
}

fn rules(name: &str, limits: &[Limit], mode: Mode) -> Arc<[Rule]> {
    [Rule::fixed(name, limits, mode)].into()
}

fn scope(name: &str) -> Scope {
    Scope::new(DEFAULT_DOMAIN, name, "", &["key"])
}

/// One turn of waiting.
enum Try {
    Allowed(Decision),
    After(Duration),
}
