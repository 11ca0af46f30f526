//! Policy and store, and what to do when the store fails.

use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::{Policy, Rule, RuleLimit};
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
/// assert_eq!(ruling.binding().map(|limit| limit.policy_name()).as_deref(), Some("per-tenant.1s"));
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
    origins: SmallVec<[(u32, u16); 4]>,
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
}

impl Standing<'_> {
    /// The limit's name in headers: that of the rule, or `rule.id` where a rule has several limits.
    pub fn policy_name(&self) -> String {
        match self.rule.limits() {
            [_] => self.rule.name().to_owned(),
            _ => format!("{}.{}", self.rule.name(), self.limit.id()),
        }
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
            let rule = &self.policy.rules()[origin.0 as usize];
            Standing { rule, limit: &rule.limits()[usize::from(origin.1)], outcome }
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

    fn rule(&self, origins: SmallVec<[(u32, u16); 4]>, decision: Decision) -> Ruling {
        Ruling { policy: self.policy.clone(), origins, decision }
    }

    fn fallback(&self) -> &MemoryStore {
        self.fallback.get_or_init(MemoryStore::new)
    }
}

/// Over a store that answers without waiting and never fails.
impl<S: LocalStore> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub fn check_now(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        self.rule(applied.origins(), Decision::of_taken(&hits, self.store.take_now(&hits)))
    }

    /// What [`check_now`](Self::check_now) would say. Takes nothing.
    pub fn peek_now(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits = applied.hits();
        self.rule(applied.origins(), Decision::of_peeked(&hits, self.store.peek_now(&hits)))
    }
}

/// Over any store. While it does not answer, limits are enforced in the memory of this process, and the
/// decision is degraded.
impl<S: Store> Gate<S> {
    /// Takes what the request costs if every limit has room for it.
    pub async fn check(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits: &[Hit<'_>] = &applied.hits();
        let decision = match self.store.take(hits).await {
            Ok(taken) => Decision::of_taken(hits, taken),
            Err(_) => Decision::of_taken(hits, self.fallback().take_now(hits)).degraded(),
        };
        self.rule(applied.origins(), decision)
    }

    /// What [`check`](Self::check) would say. Takes nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Ruling {
        let applied = self.policy.apply(request);
        let hits: &[Hit<'_>] = &applied.hits();
        let decision = match self.store.peek(hits).await {
            Ok(outcomes) => Decision::of_peeked(hits, outcomes),
            Err(_) => Decision::of_peeked(hits, self.fallback().peek_now(hits)).degraded(),
        };
        self.rule(applied.origins(), decision)
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
