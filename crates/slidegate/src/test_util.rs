//! Functions for unit tests that create rulings, from scripted outcomes or with an unavailable store.
//!
//! A scripted outcome can be one that a real store returns only after a long time, or never.

use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::gate::{Gate, Ruling};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::request::{DEFAULT_DOMAIN, Descriptor, Request};
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

/// The outcome that a [`ScriptedStore`] returns for one limit.
#[derive(Clone, Copy, Debug)]
pub enum ScriptedOutcome {
    Fits { remaining: u32, reset_us: u64 },
    Denied { remaining: u32, reset_us: u64, retry_after_us: Option<u64> },
}

impl ScriptedOutcome {
    fn to_outcome(self) -> Outcome {
        match self {
            Self::Fits { remaining, reset_us } => Outcome::from_fit_and_remaining(
                (true, remaining.into(), u64::MAX),
                0,
                reset_us,
                || 0,
            )
            .charged(),
            Self::Denied { remaining, reset_us, retry_after_us } => {
                let remaining = u64::from(remaining);
                let capacity = if retry_after_us.is_some() { u64::MAX } else { remaining };
                let wait = || retry_after_us.unwrap_or_default();
                Outcome::from_fit_and_remaining(
                    (false, remaining, capacity),
                    remaining + 1,
                    reset_us,
                    wait,
                )
            }
        }
    }
}

/// Returns the ruling of a policy on a request, from a store that returns one of the `scripted` outcomes for each
/// limit, in the order of the limits.
pub fn scripted_ruling(policy: &str, scripted: &[ScriptedOutcome]) -> Ruling {
    let policy = Policy::from_yaml(policy).unwrap();
    let outcomes: Outcomes = scripted.iter().map(|scripted| scripted.to_outcome()).collect();
    let gate = Gate::new(policy, ScriptedStore(outcomes));
    let ruling = gate.check_now(&Request::new(DEFAULT_DOMAIN, Descriptor::new([])));
    assert_eq!(ruling.limits().count(), scripted.len());
    ruling
}

/// A store that returns the same outcomes for every request.
struct ScriptedStore(Outcomes);

impl SyncStore for ScriptedStore {
    fn take_now(&self, _: &[Hit<'_>]) -> ChargeResult {
        let allowed = self.0.iter().all(Outcome::fits);
        ChargeResult { allowed, outcomes: self.0.clone(), receipt: Receipt::default() }
    }

    fn take_many_now(&self, requests: &[&[Hit<'_>]], on_result: impl FnMut(ChargeResult)) {
        requests.iter().map(|hits| self.take_now(hits)).for_each(on_result);
    }

    fn peek_now(&self, _: &[Hit<'_>]) -> Outcomes {
        self.0.clone()
    }

    fn revert_now(&self, _: &Receipt) {}

    fn refund_now(&self, _: &[Hit<'_>]) -> Outcomes {
        self.0.clone()
    }

    fn reset_now(&self, _: &[Hit<'_>]) {}
}

/// Returns the ruling of a policy on a request, from a store that fails every call.
pub fn ruling_with_unavailable_store(policy: &str) -> Ruling {
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), UnavailableStore);
    let request = Request::new(DEFAULT_DOMAIN, Descriptor::new([]));
    let check = pin!(gate.check(&request));
    match check.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ruling) => ruling,
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

    fn take(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send {
        ready(new_unavailable_error())
    }

    fn take_many(
        &self,
        _: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        ready(new_unavailable_error())
    }

    fn peek(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(new_unavailable_error())
    }

    fn revert(&self, _: &Receipt) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(new_unavailable_error())
    }

    fn refund(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(new_unavailable_error())
    }

    fn reset(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(new_unavailable_error())
    }
}
