//! For tests: rulings over outcomes that no store would give so soon, or at all.

use std::future::ready;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::gate::{Gate, Ruling};
use crate::hit::Hit;
use crate::outcome::Outcome;
use crate::policy::Policy;
use crate::request::{DEFAULT_DOMAIN, Descriptor, Request};
use crate::store::{ChargeResult, Outcomes, Receipt, Store, StoreError, SyncStore};

/// What the store shall say of one limit.
#[derive(Clone, Copy, Debug)]
pub enum ScriptedOutcome {
    Fits { remaining: u32, reset_us: u64 },
    Denied { remaining: u32, reset_us: u64, wait_us: Option<u64> },
}

impl ScriptedOutcome {
    fn outcome(self) -> Outcome {
        match self {
            Self::Fits { remaining, reset_us } => {
                Outcome::with_fit((true, remaining.into(), u64::MAX), 0, reset_us, || 0).charged()
            }
            Self::Denied { remaining, reset_us, wait_us } => {
                let remaining = u64::from(remaining);
                let capacity = if wait_us.is_some() { u64::MAX } else { remaining };
                let wait = || wait_us.unwrap_or_default();
                Outcome::with_fit((false, remaining, capacity), remaining + 1, reset_us, wait)
            }
        }
    }
}

/// How the policy rules if the store says this of its limits, in their order.
pub fn ruling(policy: &str, said: &[ScriptedOutcome]) -> Ruling {
    let policy = Policy::from_yaml(policy).unwrap();
    let outcomes: Outcomes = said.iter().map(|said| said.outcome()).collect();
    let gate = Gate::new(policy, Script(outcomes));
    let ruling = gate.check_now(&Request::new(DEFAULT_DOMAIN, Descriptor::new([])));
    assert_eq!(ruling.limits().count(), said.len());
    ruling
}

struct Script(Outcomes);

impl SyncStore for Script {
    fn take_now(&self, _: &[Hit<'_>]) -> ChargeResult {
        let allowed = self.0.iter().all(Outcome::fits);
        ChargeResult { allowed, outcomes: self.0.clone(), receipt: Receipt::default() }
    }

    fn take_many_now(&self, asks: &[&[Hit<'_>]], answer: impl FnMut(ChargeResult)) {
        asks.iter().map(|hits| self.take_now(hits)).for_each(answer);
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

/// How the policy rules if its store does not answer.
pub fn without_store(policy: &str) -> Ruling {
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), Away);
    let request = Request::new(DEFAULT_DOMAIN, Descriptor::new([]));
    let check = pin!(gate.check(&request));
    match check.poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(ruling) => ruling,
        Poll::Pending => unreachable!("it fails at once"),
    }
}

struct Away;

impl Store for Away {
    type Kind = crate::store::Asynchronous;

    fn take(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<ChargeResult, StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }

    fn take_many(
        &self,
        _: &[&[Hit<'_>]],
    ) -> impl Future<Output = Result<Vec<ChargeResult>, StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }

    fn peek(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }

    fn revert(&self, _: &Receipt) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }

    fn refund(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<Outcomes, StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }

    fn reset(&self, _: &[Hit<'_>]) -> impl Future<Output = Result<(), StoreError>> + Send {
        ready(Err(StoreError::Unavailable("away".into())))
    }
}
