//! Policy and store, and what to do when the store fails.

mod fallback;
mod refund;
mod ruling;
mod settle;

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::policy::{MatchedRules, OnStoreError, Origins, Policy, Rule};
use crate::request::Request;
use crate::store::memory::MemoryStore;
use crate::store::{Receipt, Store, StoreError, SyncStore};

use fallback::{Counts, Fallback, LocalBounds};

pub use ruling::{LimitStatus, Ruling};

/// Policy and store: asks the store what the policy makes of a request.
///
/// ```
/// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: per-tenant, per: [tenant], limits: [2/s, 600/min] }
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let request = Request::new("default", Descriptor::new([("tenant", "acme")]));
/// let ruling = gate.check_now(&request);
/// assert!(ruling.decision().is_allowed());
/// assert_eq!(ruling.binding().map(|limit| limit.policy_name()), Some("per-tenant.1s"));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
pub struct Gate<S = MemoryStore> {
    policy: Policy,
    instances: NonZeroU32,
    /// The policy's rules as this instance enforces them while the store does not answer.
    own_rules: Arc<[Rule]>,
    store: Arc<S>,
    fallback: Arc<Fallback>,
}

impl<S> Gate<S> {
    /// A gate that enforces a policy by a store.
    pub fn new(policy: Policy, store: S) -> Self {
        let fallback = Fallback::new(Arc::new(SystemClock::new()), LocalBounds::default());
        let instances = NonZeroU32::MIN;
        let own_rules = policy.rules_divided_by(instances);
        Self { policy, instances, own_rules, store: Arc::new(store), fallback: Arc::new(fallback) }
    }

    /// The same store, with all its counts, under another policy. What is under way ends under the policy by
    /// which it began.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// let policy = |limit| {
    ///     Policy::from_yaml(&format!("rules: [{{ name: all, limits: [{limit}] }}]"))
    /// };
    /// let gate = Gate::new(policy("1/min")?, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([]));
    /// assert!(gate.check_now(&request).decision().is_allowed());
    /// let gate = gate.with_policy(policy("3/min")?);
    /// assert_eq!(gate.check_now(&request).decision().remaining(), 1);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    #[must_use]
    pub fn with_policy(&self, policy: Policy) -> Self {
        Self {
            own_rules: policy.rules_divided_by(self.instances),
            policy,
            instances: self.instances,
            store: self.store.clone(),
            fallback: self.fallback.clone(),
        }
    }

    /// The same, as one of so many instances that share the store. While it does not answer, each enforces
    /// its part of every limit that is [`OnStoreError::Local`]: max(1, max / instances), and the same of a
    /// burst. A max of 0 stays 0.
    ///
    /// The bound over any number of outages: in any window the store lets at most max pass, and the
    /// instances together at most max, so at most 2*max pass (max + instances, if max is less than those).
    /// Where an algorithm lets more than max pass in a window, it is twice what that promises. Local counts
    /// stay until their window has passed, so the next outage finds those of the last one.
    pub fn expecting_instances(self, instances: NonZeroU32) -> Self {
        Self { own_rules: self.policy.rules_divided_by(instances), instances, ..self }
    }

    /// The same with another clock for what is counted while the store does not answer.
    pub fn with_local_clock(self, clock: impl Clock) -> Self {
        Self { fallback: Arc::new(self.fallback.with_clock(Arc::new(clock))), ..self }
    }

    /// The same with room for so many keys in what is counted while the store does not answer.
    pub fn with_local_max_keys(self, max_keys: usize) -> Self {
        Self { fallback: Arc::new(self.fallback.with_max_keys(max_keys)), ..self }
    }

    /// Sets the memory, in bytes, for keys that are counted while the store is unavailable. 1 GiB by default; see
    /// [`MemoryStore::with_max_memory`].
    pub fn with_local_max_memory(self, bytes: usize) -> Self {
        Self { fallback: Arc::new(self.fallback.with_max_memory(bytes)), ..self }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the number of keys that are counted in memory because the store was unavailable. They stay until their
    /// windows have passed.
    pub fn local_keys(&self) -> usize {
        self.fallback.present().map_or(0, |counts| counts.keys())
    }

    /// Returns the bytes of memory that the [`local_keys`](Self::local_keys) take.
    pub fn local_memory_bytes(&self) -> usize {
        self.fallback.present().map_or(0, |counts| counts.memory_bytes())
    }

    fn rule(&self, applied: &MatchedRules<'_>, decision: Decision) -> Ruling {
        Ruling::new(self.policy.shared_rules().clone(), applied.origins(), decision)
    }

    /// What the rules want when the store did not answer.
    fn without_store<'r>(
        &'r self,
        applied: &MatchedRules<'r>,
        decide: impl FnOnce(&Counts, &MatchedRules<'_>) -> Decision,
    ) -> Ruling {
        let rules = self.own_rules.clone();
        let refuses = applied.on_store_error() == OnStoreError::Deny;
        let mut applied = applied.without_store(&self.own_rules, self.instances);
        if refuses {
            // What is given back has not been spent, whatever becomes of the rest.
            applied = applied.as_refund();
        }
        let decision = match applied.has_hits() {
            true => self.fallback.decide(|counts| decide(counts, &applied), Decision::outcomes),
            false => Decision::unlimited(),
        };
        match refuses {
            true => Ruling::new(rules, Origins::default(), Decision::refused()),
            false => Ruling::new(rules, applied.origins(), decision.degraded()),
        }
    }

    /// Sees that the store answers again.
    fn heard<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.is_ok() {
            self.fallback.store_answered();
        }
        answer
    }
}

#[inline]
fn take_now<S: SyncStore + ?Sized>(store: &S, applied: &MatchedRules<'_>) -> Decision {
    if applied.is_refund() {
        return refund::take_now(store, applied);
    }
    let hits = applied.hits();
    Decision::of_taken(&hits, store.take_now(&hits))
}

fn peek_now<S: SyncStore>(store: &S, applied: &MatchedRules<'_>) -> Decision {
    let hits = refund::looks(applied);
    refund::seen(applied, &hits, store.peek_now(&hits))
}

/// Over a store that answers without waiting and never fails.
impl<S: SyncStore> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub fn check_now(&self, request: &Request<'_>) -> Ruling {
        self.check_matched_now(&self.policy.apply(request))
    }

    /// [`check_now`](Self::check_now), where it is known already how [the policy](Self::policy) applies.
    pub fn check_matched_now(&self, applied: &MatchedRules<'_>) -> Ruling {
        self.rule(applied, take_now(&*self.store, applied))
    }

    /// Records units that have been consumed; see [`report`](Self::report).
    pub fn report_now(&self, request: &Request<'_>) -> Ruling {
        self.check_matched_now(&self.policy.apply(request).reported())
    }

    /// What [`check_now`](Self::check_now) would say. Takes nothing.
    pub fn peek_now(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        self.rule(&applied, peek_now(&*self.store, &applied))
    }
}

/// Over any store. While it does not answer, the decision is degraded: what each rule's
/// [`OnStoreError`] says holds, the strictest of all rules that apply. How much passes then is said at
/// [`expecting_instances`](Gate::expecting_instances).
impl<S: Store> Gate<S> {
    /// Takes what the request costs if every limit has room for it. What descriptors
    /// [give back](crate::Descriptor::as_refund) is taken off first, in a call of its own, and whether or not
    /// the rest is denied.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        self.check_matched(&self.policy.apply(request)).await
    }

    /// [`check`](Self::check), where it is known already how [the policy](Self::policy) applies.
    pub async fn check_matched<'r>(&'r self, applied: &MatchedRules<'r>) -> Ruling {
        if let Some(store) = self.store.as_sync() {
            return self.rule(applied, take_now(store, applied));
        }
        let hits = applied.hits();
        if hits.is_empty() {
            return self.rule(applied, Decision::unlimited());
        }
        let decision = match applied.is_refund() {
            true => refund::take(&*self.store, applied).await,
            false => self.store.take(&hits).await.map(|taken| Decision::of_taken(&hits, taken)),
        };
        match self.heard(decision) {
            Ok(decision) => self.rule(applied, decision),
            Err(_) => self.without_store(applied, take_now),
        }
    }

    /// What [`check`](Self::check) would say. Takes nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        self.peek_matched(&self.policy.apply(request)).await
    }

    /// [`peek`](Self::peek), where it is known already how [the policy](Self::policy) applies.
    pub async fn peek_matched<'r>(&'r self, applied: &MatchedRules<'r>) -> Ruling {
        let hits = refund::looks(applied);
        if hits.is_empty() {
            return self.rule(applied, Decision::unlimited());
        }
        match self.heard(self.store.peek(&hits).await) {
            Ok(outcomes) => self.rule(applied, refund::seen(applied, &hits, outcomes)),
            Err(_) => self.without_store(applied, peek_now),
        }
    }

    /// Reverts the charges in a decision's receipt; call it once per decision. Charges that were made in memory, while the
    /// store was unavailable, are reverted there.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn revert(&self, decision: &Decision) -> Result<(), StoreError> {
        self.give_back_part(decision, decision.receipt()).await
    }

    async fn give_back_part(
        &self,
        decision: &Decision,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        if decision.is_degraded() {
            if let Some(counts) = self.fallback.present() {
                counts.revert_now(receipt);
            }
            return Ok(());
        }
        self.heard(self.store.revert(receipt).await)
    }
}
