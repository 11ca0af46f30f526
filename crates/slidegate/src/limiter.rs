//! The code-first form: limits fixed in code, any key.

use std::collections::HashSet;
use std::hash::{BuildHasher, Hash, Hasher};
use std::time::Duration;

use fnv::FnvHasher;
use smallvec::{Array, SmallVec};
use thiserror::Error;

use crate::decision::{Decision, Verdict};
use crate::hit::{Admission, Hit};
use crate::jitter::Jitter;
use crate::key::{Key, Scope, Value};
use crate::limit::{Limit, LimitError};
use crate::request::DEFAULT_DOMAIN;
use crate::store::memory::MemoryStore;
use crate::store::{LocalStore, Receipt, Store, StoreError};

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
pub struct NeverFits(pub u64);

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
        Ok(Self { limits, store, secret, has_phase, scope: scope(NAME) })
    }

    /// The name by which its counts are known in a store that several limiters share; `limiter` if none is
    /// given. Those of one name share the counts of each key and limit.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { scope: scope(name), ..self }
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
    fn hits<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> SmallVec<[Hit<'_>; 4]> {
        let mut hits = SmallVec::new();
        self.push_hits(&mut hits, key, cost);
        hits
    }

    #[inline]
    fn push_hits<'l, K, A>(&'l self, hits: &mut SmallVec<A>, key: &K, cost: u64)
    where
        K: Hash + ?Sized,
        A: Array<Item = Hit<'l>>,
    {
        let key = self.key(key);
        for limit in &self.limits {
            hits.push(Hit { key, limit, cost, admission: Admission::Enforce });
        }
    }
}

/// Over a store that answers without waiting and never fails.
impl<S: LocalStore> Limiter<S> {
    /// Takes one unit of `key` if every limit has room for it.
    #[inline]
    pub fn check<K: Hash + ?Sized>(&self, key: &K) -> Verdict {
        self.check_cost(key, 1)
    }

    /// Takes `cost` units of `key` if every limit has room for them. A cost of 0 asks whether one unit
    /// would fit, and takes nothing.
    #[inline]
    pub fn check_cost<K: Hash + ?Sized>(&self, key: &K, cost: u64) -> Verdict {
        if let [limit] = &*self.limits {
            let hit = Hit { key: self.key(key), limit, cost, admission: Admission::Enforce };
            return Decision::of_one(&hit, self.store.take_one_now(&hit)).into();
        }
        let hits = self.hits(key, cost);
        Decision::of_taken(&hits, self.store.take_now(&hits)).into()
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
                let hit = |key| Hit { key, limit, cost: 1, admission: Admission::Enforce };
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
    pub fn give_back(&self, receipt: &Receipt) {
        self.store.give_back_now(receipt);
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
    ) -> Result<Decision, NeverFits> {
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
    ) -> Result<Decision, NeverFits> {
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
    ) -> Result<Try, NeverFits> {
        match self.check_cost(key, cost) {
            Verdict::Allowed(decision) => Ok(Try::Allowed(decision)),
            Verdict::Denied(decision) => {
                let wait = decision.retry_after().ok_or(NeverFits(cost))?;
                Ok(Try::After(jitter.draw().of(wait)))
            }
        }
    }
}

fn scope(name: &str) -> Scope {
    Scope::new(DEFAULT_DOMAIN, name, "", &["key"])
}

/// One turn of waiting.
enum Try {
    Allowed(Decision),
    After(Duration),
}

/// Over any store. A denial is a value; what is an error is that the store did not answer. Keys are texts, as
/// every process writes them alike; what is counted for one is apart from what the other methods count.
impl<S: Store> Limiter<S> {
    fn written_hits<'a>(&'a self, value: &'a [Value<'a>; 1], cost: u64) -> SmallVec<[Hit<'a>; 4]> {
        let key = Key::new(&self.scope, value);
        let hit = |limit| Hit { key, limit, cost, admission: Admission::Enforce };
        self.limits.iter().map(hit).collect()
    }

    /// Takes `cost` units of `key` if every limit has room for them. A cost of 0 asks whether one unit
    /// would fit, and takes nothing.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_check(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        let value = [Value::Text(key)];
        let hits = self.written_hits(&value, cost);
        let taken = self.store.take(&hits).await?;
        Ok(Decision::of_taken(&hits, taken).into())
    }

    /// What [`try_check`](Self::try_check) would say. Takes nothing.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_peek(&self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
        let value = [Value::Text(key)];
        let hits = self.written_hits(&value, cost);
        let outcomes = self.store.peek(&hits).await?;
        Ok(Decision::of_peeked(&hits, outcomes).into())
    }

    /// Gives back what a decision's receipt says was charged. Once only.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_give_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.store.give_back(receipt).await
    }

    /// Takes `cost` units off the counts of `key` without a receipt: of the units that still count the oldest, or
    /// all if there are fewer.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_refund(&self, key: &str, cost: u64) -> Result<(), StoreError> {
        let value = [Value::Text(key)];
        self.store.refund(&self.written_hits(&value, cost)).await.map(drop)
    }

    /// Forgets the counts of a key.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn try_reset(&self, key: &str) -> Result<(), StoreError> {
        let value = [Value::Text(key)];
        self.store.reset(&self.written_hits(&value, 1)).await
    }
}
