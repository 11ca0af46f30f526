//! Functions for unit tests that create decisions, from scripted outcomes or with an unavailable store.
//!
//! A scripted outcome can be one that a real store returns only after a long time, or never.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::call::CallIdentity;
use crate::decision::Decision;
use crate::gate::Gate;
use crate::hit::Hit;
use crate::key::DEFAULT_DOMAIN;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::request::{Descriptor, Request};
use crate::store::{
    Adjustment, CallSettlement, ChargeOnceResult, ChargeResult, Edit, Outcomes, PermitChange,
    Receipt, SettleResult, Store, StoreError, SyncStore,
};

/// The outcome that a [`ScriptedStore`] returns for one limit.
#[derive(Clone, Copy, Debug)]
pub enum ScriptedOutcome {
    Fits { remaining: u32, reset_us: u64 },
    Denied { remaining: u32, reset_us: u64, retry_after_us: Option<u64> },
}

impl ScriptedOutcome {
    fn to_outcome(self) -> Outcome {
        match self {
            Self::Fits { remaining, reset_us } => {
                Outcome::from_used_units((0, remaining.into()), 0, reset_us, || 0).charged()
            }
            Self::Denied { remaining, reset_us, retry_after_us } => {
                let (required, used) =
                    (u64::from(remaining) + 1, u64::from(retry_after_us.is_some()));
                let wait = || retry_after_us.unwrap_or_default();
                let used_and_capacity = (used, u64::from(remaining) + used);
                Outcome::from_used_units(used_and_capacity, required, reset_us, wait)
            }
        }
    }
}

/// Returns the decision of a policy on a request, from a store that returns one of the `scripted` outcomes for each
/// limit, in the order of the limits.
pub fn scripted_decision(policy: &str, scripted: &[ScriptedOutcome]) -> Decision<'static> {
    let policy = Policy::from_yaml(policy).unwrap();
    let outcomes: Outcomes = scripted.iter().map(|scripted| scripted.to_outcome()).collect();
    let gate = Gate::new(policy, ScriptedStore(outcomes));
    let decision = gate.check(&Request::new(DEFAULT_DOMAIN, Descriptor::new([])));
    assert_eq!(decision.limits().count(), scripted.len());
    decision
}

/// A store that returns the same outcomes for every request.
struct ScriptedStore(Outcomes);

impl SyncStore for ScriptedStore {
    fn charge(&self, _: &[Hit<'_>]) -> ChargeResult {
        let allowed = self.0.iter().all(Outcome::fits);
        ChargeResult { allowed, outcomes: self.0.clone(), receipt: Receipt::default() }
    }

    fn charge_once(&self, call: &[Hit<'_>], _: &CallIdentity) -> ChargeOnceResult {
        ChargeOnceResult::Decided(self.charge(call))
    }

    fn settle(&self, _: &CallSettlement) -> SettleResult {
        SettleResult::Settled
    }

    fn peek(&self, _: &[Hit<'_>]) -> Outcomes {
        self.0.clone()
    }

    fn adjust(&self, _: &Receipt, _: Adjustment) {}

    fn change_permit(&self, _: &Receipt, _: PermitChange) -> bool {
        true
    }

    fn edit(&self, _: &[Hit<'_>], _: Edit) -> Outcomes {
        self.0.clone()
    }
}

/// Returns the decision of a policy on a request, from a store that fails every call.
pub fn decision_with_unavailable_store(policy: &str) -> Decision<'static> {
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), UnavailableStore);
    let request = Request::new(DEFAULT_DOMAIN, Descriptor::new([]));
    let check = pin!(gate.check_async(&request));
    match check.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision,
        Poll::Pending => unreachable!("the store fails immediately"),
    }
}

/// A store that fails every call.
struct UnavailableStore;

/// Returns the error of a store that cannot be reached.
fn new_unavailable_error<T>() -> Result<T, StoreError> {
    Err(StoreError::Unavailable("out of service".into()))
}

impl Store for UnavailableStore {
    type Kind = crate::store::Asynchronous;

    async fn charge_async(&self, _: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        new_unavailable_error()
    }

    async fn charge_many_async(&self, _: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        new_unavailable_error()
    }

    async fn peek_async(&self, _: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        new_unavailable_error()
    }

    async fn adjust_async(&self, _: &Receipt, _: Adjustment) -> Result<(), StoreError> {
        new_unavailable_error()
    }

    async fn edit_async(&self, _: &[Hit<'_>], _: Edit) -> Result<Outcomes, StoreError> {
        new_unavailable_error()
    }
}
