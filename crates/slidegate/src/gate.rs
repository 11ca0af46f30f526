//! Policy and store, and what to do when the store fails.

mod fallback;

use std::num::NonZeroU32;
use std::sync::Arc;

use smallvec::SmallVec;

use crate::clock::{Clock, SystemClock};
use crate::decision::Decision;
use crate::hit::{Admission, Hit};
use crate::outcome::Outcome;
use crate::policy::{Applied, OnStoreError, Origin, Policy, Rule, RuleLimit};
use crate::request::Request;
use crate::store::memory::{DEFAULT_MAX_KEYS, MemoryStore};
use crate::store::{LocalStore, Receipt, Store, StoreError};

use fallback::{Counts, Fallback};

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
    store: S,
    /// The policy's rules as this instance enforces them while the store does not answer.
    own_rules: Arc<[Rule]>,
    fallback: Fallback,
}

/// A decision, and the rules that it comes from.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// Those of the policy, with the limits that were enforced.
    rules: Arc<[Rule]>,
    origins: SmallVec<[Origin; 3]>,
    decision: Decision,
}

/// How one limit of one rule stands after a decision.
#[derive(Clone, Copy, Debug)]
pub struct Standing<'r> {
    /// The rule.
    pub rule: &'r Rule,
    /// The limit of the rule.
    pub limit: &'r RuleLimit,
    /// What the store said of it.
    pub outcome: &'r Outcome,
    /// How it was admitted.
    pub admission: Admission,
}

impl<'r> Standing<'r> {
    /// The limit's name in headers: that of the rule, or `rule.id` where several limits hold.
    pub fn policy_name(&self) -> &'r str {
        self.limit.policy_name()
    }

    /// Whether it only watches: it never denies.
    pub fn is_observed(&self) -> bool {
        self.admission == Admission::Observe
    }

    /// Whether it denies the request.
    pub fn vetoes(&self) -> bool {
        self.admission == Admission::Enforce && !self.outcome.fits()
    }
}

impl Ruling {
    /// The decision.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// How every limit stands that applies, in the order of the policy; without those that the store did not
    /// have to ask.
    pub fn limits(&self) -> impl Iterator<Item = Standing<'_>> {
        self.standings().filter(|standing| standing.outcome.is_known())
    }

    fn standings(&self) -> impl Iterator<Item = Standing<'_>> {
        self.origins.iter().zip(self.decision.outcomes()).map(|(origin, outcome)| {
            let rule = &self.rules[origin.rule as usize];
            let limit = &rule.limits(origin.chosen)[usize::from(origin.limit)];
            Standing { rule, limit, outcome, admission: origin.admission }
        })
    }

    /// The limit that the decision hangs on; none if no rule applies, or the store was not asked for any limit.
    pub fn binding(&self) -> Option<Standing<'_>> {
        self.standings().nth(self.decision.binding()?)
    }
}

impl<S> Gate<S> {
    /// A gate that enforces a policy by a store.
    pub fn new(policy: Policy, store: S) -> Self {
        let own_rules = policy.shared_rules().clone();
        let fallback = Fallback::new(Arc::new(SystemClock::new()), DEFAULT_MAX_KEYS);
        Self { policy, store, own_rules, fallback }
    }

    /// The same, as one of so many instances that share the store. While it does not answer, each enforces
    /// its part of every limit that is [`OnStoreError::Local`]: max(1, max / instances), and the same of a
    /// burst. A max of 0 stays 0.
    ///
    /// The bound across an outage: in any window the store lets at most max pass, before and after, and the
    /// instances together at most max, so at most 2*max pass (max + instances, if max is less than those).
    /// Where an algorithm lets more than max pass in a window, it is twice what that promises. Local counts
    /// are dropped when the store has answered again for a second, so each further outage in the same window
    /// adds its own max.
    pub fn expecting_instances(self, instances: NonZeroU32) -> Self {
        Self { own_rules: self.policy.rules_shared_by(instances), ..self }
    }

    /// The same with another clock for what is counted while the store does not answer.
    pub fn with_local_clock(self, clock: impl Clock) -> Self {
        Self { fallback: self.fallback.with_clock(Arc::new(clock)), ..self }
    }

    /// The same with room for so many keys in what is counted while the store does not answer.
    pub fn with_local_max_keys(self, max_keys: usize) -> Self {
        Self { fallback: self.fallback.with_max_keys(max_keys), ..self }
    }

    /// The policy.
    pub fn policy(&self) -> &Policy {
        &self.policy
    }

    /// The store.
    pub fn store(&self) -> &S {
        &self.store
    }

    fn rule(&self, applied: &Applied<'_>, decision: Decision) -> Ruling {
        let rules = self.policy.shared_rules().clone();
        Ruling { rules, origins: applied.origins(), decision }
    }

    /// What the rules want when the store did not answer.
    fn without_store<'r>(
        &'r self,
        applied: Applied<'r>,
        decide: impl FnOnce(&Counts, &[Hit<'_>]) -> Decision,
    ) -> Ruling {
        let rules = self.own_rules.clone();
        if applied.on_store_error() == OnStoreError::Deny {
            return Ruling { rules, origins: SmallVec::new(), decision: Decision::refused() };
        }
        let applied = applied.without_store(&self.own_rules);
        let hits = applied.hits();
        let decision = match hits.is_empty() {
            true => Decision::unlimited(),
            false => decide(&self.fallback.counts(), &hits),
        };
        Ruling { rules, origins: applied.origins(), decision: decision.degraded() }
    }

    /// Sees that the store answers again.
    fn heard<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if answer.is_ok() {
            self.fallback.store_answered();
        }
        answer
    }
}

/// Over a store that answers without waiting and never fails.
impl<S: LocalStore> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub fn check_now(&self, request: &Request<'_>) -> Ruling {
        self.check_applied_now(&self.policy.apply(request))
    }

    /// [`check_now`](Self::check_now), where it is known already how [the policy](Self::policy) applies.
    pub fn check_applied_now(&self, applied: &Applied<'_>) -> Ruling {
        let hits = applied.hits();
        self.rule(applied, Decision::of_taken(&hits, self.store.take_now(&hits)))
    }

    /// What [`check_now`](Self::check_now) would say. Takes nothing.
    pub fn peek_now(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        self.rule(&applied, Decision::of_peeked(&hits, self.store.peek_now(&hits)))
    }
}

/// Over any store. While it does not answer, the decision is degraded: what each rule's
/// [`OnStoreError`] says holds, the strictest of all rules that apply. How much passes then is said at
/// [`expecting_instances`](Gate::expecting_instances).
impl<S: Store> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        if hits.is_empty() {
            return self.rule(&applied, Decision::unlimited());
        }
        match self.heard(self.store.take(&hits).await) {
            Ok(taken) => self.rule(&applied, Decision::of_taken(&hits, taken)),
            Err(_) => {
                drop(hits);
                self.without_store(applied, |store, hits| {
                    Decision::of_taken(hits, store.take_now(hits))
                })
            }
        }
    }

    /// What [`check`](Self::check) would say. Takes nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        if hits.is_empty() {
            return self.rule(&applied, Decision::unlimited());
        }
        match self.heard(self.store.peek(&hits).await) {
            Ok(outcomes) => self.rule(&applied, Decision::of_peeked(&hits, outcomes)),
            Err(_) => {
                drop(hits);
                self.without_store(applied, |store, hits| {
                    Decision::of_peeked(hits, store.peek_now(hits))
                })
            }
        }
    }

    /// Gives back what a decision's receipt says was charged. Once only. What was charged in memory while
    /// the store did not answer is gone once it answers, and then there is nothing to give back.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn give_back(&self, decision: &Decision) -> Result<(), StoreError> {
        let receipt: &Receipt = decision.receipt();
        if decision.is_degraded() {
            if let Some(counts) = self.fallback.present() {
                counts.give_back_now(receipt);
            }
            return Ok(());
        }
        self.heard(self.store.give_back(receipt).await)
    }
}
