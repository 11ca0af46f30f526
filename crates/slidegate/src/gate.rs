//! Policy and store, and what to do when the store fails.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::{Admission, Hit};
use crate::outcome::Outcome;
use crate::policy::{Applied, OnStoreError, Origin, Policy, Rule, RuleLimit};
use crate::request::Request;
use crate::store::memory::MemoryStore;
use crate::store::{LocalStore, Receipt, Store, StoreError};

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
    policy: Arc<Policy>,
    store: S,
    /// Enforces while the store does not answer.
    fallback: OnceLock<MemoryStore>,
}

/// A decision, and the rules that it comes from.
#[derive(Clone, Debug)]
pub struct Ruling {
    policy: Arc<Policy>,
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

    /// How every limit stands that applies, in the order of the policy.
    pub fn limits(&self) -> impl Iterator<Item = Standing<'_>> {
        self.origins.iter().zip(self.decision.outcomes()).map(|(origin, outcome)| {
            let rule = &self.policy.rules()[origin.rule as usize];
            let limit = &rule.limits(origin.chosen)[usize::from(origin.limit)];
            Standing { rule, limit, outcome, admission: origin.admission }
        })
    }

    /// The limit that the decision hangs on; none if no rule applies.
    pub fn binding(&self) -> Option<Standing<'_>> {
        self.limits().nth(self.decision.binding()?)
    }
}

impl<S> Gate<S> {
    /// A gate that enforces a policy by a store.
    pub fn new(policy: Policy, store: S) -> Self {
        Self { policy: Arc::new(policy), store, fallback: OnceLock::new() }
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
        Ruling { policy: self.policy.clone(), origins: applied.origins(), decision }
    }

    fn fallback(&self) -> &MemoryStore {
        self.fallback.get_or_init(MemoryStore::new)
    }

    /// What the rules want when the store did not answer.
    fn without_store(
        &self,
        applied: Applied<'_>,
        decide: impl FnOnce(&MemoryStore, &[Hit<'_>]) -> Decision,
    ) -> Ruling {
        if applied.on_store_error() == OnStoreError::Deny {
            let policy = self.policy.clone();
            return Ruling { policy, origins: SmallVec::new(), decision: Decision::refused() };
        }
        let applied = applied.without_store();
        let decision = decide(self.fallback(), &applied.hits()).degraded();
        self.rule(&applied, decision)
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
/// [`OnStoreError`] says holds, the strictest of all rules that apply.
impl<S: Store> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        if hits.is_empty() {
            return self.rule(&applied, Decision::unlimited());
        }
        match self.store.take(&hits).await {
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
        match self.store.peek(&hits).await {
            Ok(outcomes) => self.rule(&applied, Decision::of_peeked(&hits, outcomes)),
            Err(_) => {
                drop(hits);
                self.without_store(applied, |store, hits| {
                    Decision::of_peeked(hits, store.peek_now(hits))
                })
            }
        }
    }

    /// Gives back what a decision's receipt says was charged. Once only.
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn give_back(&self, decision: &Decision) -> Result<(), StoreError> {
        let receipt: &Receipt = decision.receipt();
        if decision.is_degraded() {
            self.fallback().give_back_now(receipt);
            return Ok(());
        }
        self.store.give_back(receipt).await
    }
}
