//! The gate, which decides requests by a policy with the counters of a store, and in memory while the store is
//! unavailable.
//!
//! `fallback.rs` counts in memory while the store is unavailable; each instance of the service then enforces its own
//! share of every limit. `refund.rs` decides requests with refunds, which take two calls to the store. `ruling.rs`
//! attributes a decision to the rules of the policy. `settle.rs` corrects charges when the actual cost is known.

mod fallback;
mod refund;
mod ruling;
mod settle;

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::policy::{HitOrigins, MatchedRules, OnStoreError, Policy, Rule};
use crate::request::Request;
use crate::store::memory::MemoryStore;
use crate::store::{Receipt, Store, StoreError, SyncStore};

use fallback::{InMemoryFallback, LocalCounts, LocalCountsBounds};

pub use ruling::{LimitStatus, Ruling};

/// A gate, which decides requests: a policy, and the store whose counters enforce the limits of the policy.
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
    /// The number of instances of the service that share the store.
    instances: NonZeroU32,
    /// A copy of the policy's rules in which each limit is divided by `instances`. Enforced while the store is
    /// unavailable.
    local_rules: Arc<[Rule]>,
    store: Arc<S>,
    fallback: Arc<InMemoryFallback>,
}

impl<S> Gate<S> {
    /// Creates a gate that enforces `policy` with the counters in `store`.
    pub fn new(policy: Policy, store: S) -> Self {
        let fallback =
            InMemoryFallback::new(Arc::new(SystemClock::new()), LocalCountsBounds::default());
        let instances = NonZeroU32::MIN;
        let local_rules = policy.rules_with_divided_limits(instances);
        Self {
            policy,
            instances,
            local_rules,
            store: Arc::new(store),
            fallback: Arc::new(fallback),
        }
    }

    /// Returns a gate with another policy and the same store, including its counts. Requests in progress finish under
    /// the policy with which they started.
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
            local_rules: policy.rules_with_divided_limits(self.instances),
            policy,
            instances: self.instances,
            store: self.store.clone(),
            fallback: self.fallback.clone(),
        }
    }

    /// Sets the number of instances that share the store, 1 by default. While the store is unavailable, each instance
    /// enforces its own share of every limit whose rules have [`OnStoreError::Local`]. The share is max(1, max /
    /// instances), and the burst is divided in the same way. A max of 0 stays 0.
    ///
    /// The following bound holds over any number of outages. In any window, the store admits at most max units, and all
    /// instances together admit at most max units in memory. The sum is at most 2 * max units, or max + instances if
    /// max is less than the number of instances. For an algorithm that admits more than max units per window, the sum
    /// is at most twice the number of units that the algorithm admits. Counts in memory are kept until their window has
    /// passed, and are used again if the store fails again within this window.
    pub fn with_instances(self, instances: NonZeroU32) -> Self {
        Self { local_rules: self.policy.rules_with_divided_limits(instances), instances, ..self }
    }

    /// Sets the clock of the counts in memory, which are used while the store is unavailable.
    pub fn with_local_clock(self, clock: impl Clock) -> Self {
        Self { fallback: Arc::new(self.fallback.with_clock(Arc::new(clock))), ..self }
    }

    /// Sets the maximum number of keys that are counted in memory while the store is unavailable.
    pub fn with_local_max_keys(self, max_keys: usize) -> Self {
        Self { fallback: Arc::new(self.fallback.with_max_keys(max_keys)), ..self }
    }

    /// Sets the maximum memory, in bytes, of the keys that are counted in memory while the store is unavailable. 1 GiB
    /// by default; see [`MemoryStore::with_max_memory`].
    pub fn with_local_max_memory(self, bytes: usize) -> Self {
        Self { fallback: Arc::new(self.fallback.with_max_memory(bytes)), ..self }
    }

    /// Returns the policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the number of keys that are counted in memory because the store was unavailable. These keys are kept
    /// until their windows have passed.
    pub fn local_keys(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.keys())
    }

    /// Returns the bytes of memory that the [`local_keys`](Self::local_keys) take.
    pub fn local_memory_bytes(&self) -> usize {
        self.fallback.local_counts().map_or(0, |counts| counts.memory_bytes())
    }

    /// Creates the ruling for a decision. `matched` are the rules of this gate's policy from which the decision was
    /// made.
    fn create_ruling(&self, matched: &MatchedRules<'_>, decision: Decision) -> Ruling {
        Ruling::new(self.policy.shared_rules().clone(), matched.hit_origins(), decision)
    }

    /// Decides a request after a failed store call. Denies the request if one of the rules that apply has
    /// [`OnStoreError::Deny`]; otherwise calls `decide` with the counts in memory.
    fn decide_without_store<'r>(
        &'r self,
        matched: &MatchedRules<'r>,
        decide: impl FnOnce(&LocalCounts, &MatchedRules<'_>) -> Decision,
    ) -> Ruling {
        let rules = self.local_rules.clone();
        let is_denied = matched.on_store_error() == OnStoreError::Deny;
        let mut matched =
            matched.matches_decidable_without_store(&self.local_rules, self.instances);
        if is_denied {
            // Refunds are applied also if the request is denied: their units have not been consumed.
            matched = matched.only_refunds();
        }
        let decision = match matched.has_hits() {
            true => self
                .fallback
                .decide_with_local_counts(|counts| decide(counts, &matched), Decision::outcomes),
            false => Decision::unlimited(),
        };
        match is_denied {
            true => Ruling::new(rules, HitOrigins::default(), Decision::store_unavailable()),
            false => Ruling::new(rules, matched.hit_origins(), decision.into_degraded()),
        }
    }

    /// Returns `result` unchanged. If the store call succeeded, notifies the fallback, which can then drop its counts.
    fn notify_fallback_on_success<T>(
        &self,
        result: Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        if result.is_ok() {
            self.fallback.on_store_success();
        }
        result
    }
}

/// Decides a request with a synchronous store, and charges its hits if it is allowed.
#[inline]
fn decide_now<S: SyncStore + ?Sized>(store: &S, matched: &MatchedRules<'_>) -> Decision {
    if matched.is_refund() {
        return refund::refund_and_charge_now(store, matched);
    }
    let hits = matched.hits();
    Decision::from_charge(&hits, store.take_now(&hits))
}

/// Returns the decision that [`decide_now`] would make. Charges nothing.
fn peek_decision_now<S: SyncStore>(store: &S, matched: &MatchedRules<'_>) -> Decision {
    let hits = refund::hits_for_peek(matched);
    refund::decision_from_peek(matched, &hits, store.peek_now(&hits))
}

/// Methods for a store that responds without waiting and never fails.
impl<S: SyncStore> Gate<S> {
    /// Decides a request, and charges its cost if every limit has capacity for it.
    pub fn check_now(&self, request: &Request<'_>) -> Ruling {
        self.check_matched_now(&self.policy.apply(request))
    }

    /// Decides a request like [`check_now`](Self::check_now). `matched` are the rules of [the policy](Self::policy)
    /// that apply to the request.
    pub fn check_matched_now(&self, matched: &MatchedRules<'_>) -> Ruling {
        self.create_ruling(matched, decide_now(&*self.store, matched))
    }

    /// Records units that have been consumed already, without denying the request; see [`report`](Self::report).
    pub fn report_now(&self, request: &Request<'_>) -> Ruling {
        self.check_matched_now(&self.policy.apply(request).into_matches_for_reported_usage())
    }

    /// Returns the decision that [`check_now`](Self::check_now) would make. Charges nothing.
    pub fn peek_now(&self, request: &Request<'_>) -> Ruling {
        let matched = self.policy.apply(request);
        self.create_ruling(&matched, peek_decision_now(&*self.store, &matched))
    }
}

/// Methods for any store. While the store is unavailable, decisions are degraded, that is, made without the store: the
/// gate follows the strictest [`OnStoreError`] of all rules that apply. The bound on the units that are then admitted
/// is described at [`with_instances`](Gate::with_instances).
impl<S: Store> Gate<S> {
    /// Decides a request, and charges its cost if every limit has capacity for it.
    /// [Refunds](crate::Descriptor::as_refund) are applied first, in a separate call to the store, also if the request
    /// is then denied.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        self.check_matched(&self.policy.apply(request)).await
    }

    /// Decides a request like [`check`](Self::check). `matched` are the rules of [the policy](Self::policy) that apply
    /// to the request.
    pub async fn check_matched<'r>(&'r self, matched: &MatchedRules<'r>) -> Ruling {
        if let Some(store) = self.store.as_sync() {
            return self.create_ruling(matched, decide_now(store, matched));
        }
        let hits = matched.hits();
        if hits.is_empty() {
            return self.create_ruling(matched, Decision::unlimited());
        }
        let decision = match matched.is_refund() {
            true => refund::refund_and_charge(&*self.store, matched).await,
            false => {
                self.store.take(&hits).await.map(|result| Decision::from_charge(&hits, result))
            }
        };
        match self.notify_fallback_on_success(decision) {
            Ok(decision) => self.create_ruling(matched, decision),
            Err(_) => self.decide_without_store(matched, decide_now),
        }
    }

    /// Returns the decision that [`check`](Self::check) would make. Charges nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        self.peek_matched(&self.policy.apply(request)).await
    }

    /// Returns the decision of [`peek`](Self::peek). `matched` are the rules of [the policy](Self::policy) that apply
    /// to the request.
    pub async fn peek_matched<'r>(&'r self, matched: &MatchedRules<'r>) -> Ruling {
        let hits = refund::hits_for_peek(matched);
        if hits.is_empty() {
            return self.create_ruling(matched, Decision::unlimited());
        }
        match self.notify_fallback_on_success(self.store.peek(&hits).await) {
            Ok(outcomes) => {
                self.create_ruling(matched, refund::decision_from_peek(matched, &hits, outcomes))
            }
            Err(_) => self.decide_without_store(matched, peek_decision_now),
        }
    }

    /// Reverts the charges in the receipt of a decision. Call this method at most once per decision. Charges that were
    /// made in memory, while the store was unavailable, are reverted in memory.
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn revert(&self, decision: &Decision) -> Result<(), StoreError> {
        self.revert_receipt(decision, decision.receipt()).await
    }

    /// Reverts the charges of `receipt`, which is all or a part of the receipt of `decision`.
    async fn revert_receipt(
        &self,
        decision: &Decision,
        receipt: &Receipt,
    ) -> Result<(), StoreError> {
        if decision.is_degraded() {
            if let Some(counts) = self.fallback.local_counts() {
                counts.revert_now(receipt);
            }
            return Ok(());
        }
        self.notify_fallback_on_success(self.store.revert(receipt).await)
    }
}
