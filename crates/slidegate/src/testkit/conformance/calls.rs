//! Calls with an id and settlements in the conformance suite. Each is repeated, and must be charged once.

use std::time::Duration;

use crate::call::{CallId, CallIdentity};
use crate::outcome::Outcome;
use crate::store::{
    Adjustment, CallSettlement, ChargeOnceResult, ChargeResult, Edit, Outcomes, Receipt,
    SettleResult, Store, StoreError, SyncStore,
};
use crate::testkit::trace::PlannedHit;

use super::{ConformanceRun, check_error_is_retryable, check_results_are_equal};

/// The time for which calls are remembered, longer than a trace: stores may measure it with another clock.
const CALL_TTL: Duration = Duration::from_secs(10_000_000_000);

/// A call with an id that was sent to the store before.
pub(super) struct IdentifiedCall {
    identity: CallIdentity,
    plans: Vec<PlannedHit>,
}

fn call_id_for_step(step: u64) -> CallId {
    CallId::from_bytes((u128::from(step) << 64 | 0x5eed).to_be_bytes())
}

/// Returns the time and the units of each charge of a receipt, which are the same in every store.
fn charged_units(receipt: &Receipt) -> Vec<(u64, u64)> {
    let charges = receipt.charges().iter();
    charges.map(|charge| (charge.charged_at.as_micros(), charge.cost)).collect()
}

/// A result without the parts that differ between stores.
#[derive(Debug, PartialEq)]
enum ComparedResult {
    Decided(bool, Vec<Outcome>, Vec<(u64, u64)>),
    Repeated(bool, Vec<Outcome>, Vec<(u64, u64)>),
    OtherRequest,
    Other,
}

impl From<&ChargeOnceResult> for ComparedResult {
    fn from(result: &ChargeOnceResult) -> Self {
        let parts = |result: &ChargeResult| {
            (result.allowed, result.outcomes.to_vec(), charged_units(&result.receipt))
        };
        match result {
            ChargeOnceResult::Decided(result) => {
                let (allowed, outcomes, charged) = parts(result);
                Self::Decided(allowed, outcomes, charged)
            }
            ChargeOnceResult::Repeated { result: Some(result), .. } => {
                let (allowed, outcomes, charged) = parts(result);
                Self::Repeated(allowed, outcomes, charged)
            }
            ChargeOnceResult::OtherRequest => Self::OtherRequest,
            ChargeOnceResult::Repeated { result: None, .. } | ChargeOnceResult::InProgress => {
                Self::Other
            }
        }
    }
}

/// Returns whether a store remembers calls. To find out, applies a settlement without charges, which other stores do
/// not support.
pub(super) async fn supports_idempotency(store: &impl Store) -> Result<bool, String> {
    let settlement = CallSettlement {
        id: CallId::from_bytes([0; 16]),
        owner: None,
        value_digest: 0,
        ttl: CALL_TTL,
        reverted: Vec::new(),
        added: Vec::new(),
    };
    loop {
        match store.settle_async(&settlement).await {
            Ok(_) => return Ok(true),
            Err(StoreError::Unsupported(_)) => return Ok(false),
            Err(error) => check_error_is_retryable(error)?,
        }
    }
}

impl<S: Store> ConformanceRun<'_, S> {
    /// Sends a call with a new id, and then repeats an earlier call and sends another request with its id.
    pub(super) async fn compare_call_with_model(
        &mut self,
        plans: &[PlannedHit],
        step: u64,
    ) -> Result<Outcomes, String> {
        let identity =
            CallIdentity { id: call_id_for_step(step), request_digest: step, ttl: CALL_TTL };
        if !self.supports_idempotency {
            self.check_call_is_unsupported(plans, &identity).await?;
            return self.compare_charge_with_model(plans).await;
        }
        self.calls.push(IdentifiedCall { identity, plans: plans.to_vec() });
        let outcomes = self.send_call_with_retries(self.calls.len() - 1, step).await?;
        let earlier = (step as usize).wrapping_mul(7) % self.calls.len();
        self.send_call_with_retries(earlier, self.calls[earlier].identity.request_digest).await?;
        self.send_call_with_retries(earlier, step + 1).await?;
        Ok(outcomes)
    }

    /// Checks that a store that supports no settlements supports no calls with an id either.
    async fn check_call_is_unsupported(
        &self,
        plans: &[PlannedHit],
        identity: &CallIdentity,
    ) -> Result<(), String> {
        let bound = self.add_key_values(plans);
        match self.store.charge_once_async(&bound.hits(), identity).await {
            Err(StoreError::Unsupported(_)) => Ok(()),
            Err(error) => check_error_is_retryable(error),
            Ok(result) => Err(format!("settlements are unsupported, but a call has {result:?}")),
        }
    }

    /// Sends a call, and repeats it until the store responds.
    async fn send_call_with_retries(
        &mut self,
        index: usize,
        request_digest: u64,
    ) -> Result<Outcomes, String> {
        let IdentifiedCall { identity, plans } = &self.calls[index];
        let identity = CallIdentity { request_digest, ..*identity };
        let bound = self.add_key_values(plans);
        let hits = bound.hits();
        let mut failures = 0;
        let mut has_timed_out = false;
        let found = loop {
            match self.store.charge_once_async(&hits, &identity).await {
                Ok(result) => break result,
                Err(error) => {
                    has_timed_out |= error.may_have_charged();
                    check_error_is_retryable(error)?;
                    failures += 1;
                }
            }
        };
        let mut model = self.model.charge_once(&hits, &identity);
        if has_timed_out
            && let (ChargeOnceResult::Repeated { .. }, ChargeOnceResult::Decided(_)) =
                (&found, &model)
        {
            // The call that timed out was admitted, so the model must repeat the call as well.
            model = self.model.charge_once(&hits, &identity);
        } else if has_timed_out
            && !matches!(&model, ChargeOnceResult::Decided(result) if result.allowed)
        {
            // Each attempt of a denied call has charged the hits that are always charged, so the counters are reset.
            let charges = hits.iter().any(|hit| hit.charge.charges_denied());
            if charges {
                return self.reset_call(index).await;
            }
        }
        let description = format!("call {index}, {plans:?}");
        check_results_are_equal(
            &description,
            &ComparedResult::from(&found),
            &ComparedResult::from(&model),
        )?;
        self.stats.failures += failures;
        self.stats.repeated_calls +=
            usize::from(matches!(found, ChargeOnceResult::Repeated { .. }));
        let (ChargeOnceResult::Decided(store), ChargeOnceResult::Decided(model)) = (found, model)
        else {
            return Ok(Outcomes::new());
        };
        self.stats.decisions += 1;
        self.stats.allowed += usize::from(store.allowed);
        if !store.receipt.is_empty() {
            self.receipts.push((store.receipt, model.receipt));
        }
        Ok(store.outcomes)
    }

    /// Resets the counters of a call in both stores.
    async fn reset_call(&self, index: usize) -> Result<Outcomes, String> {
        let bound = self.add_key_values(&self.calls[index].plans);
        let hits = bound.hits();
        while let Err(error) = self.store.edit_async(&hits, Edit::Reset).await {
            check_error_is_retryable(error)?;
        }
        self.model.edit(&hits, Edit::Reset);
        Ok(Outcomes::new())
    }

    /// Settles a charge, repeats the settlement, and tries to settle it to another cost.
    pub(super) async fn compare_settlement_with_model(
        &mut self,
        age: usize,
        adjustment: Adjustment,
        step: u64,
    ) -> Result<Outcomes, String> {
        let Some(index) = self.receipts.len().checked_sub(age + 1) else {
            return Ok(Outcomes::new());
        };
        if !self.supports_idempotency {
            return self.compare_adjust_with_model(age, adjustment).await;
        }
        let (store, model) = self.receipts.swap_remove(index);
        let other = match adjustment {
            Adjustment::Revert => Adjustment::SetCost(1),
            Adjustment::SetCost(cost) => Adjustment::SetCost(cost + 1),
        };
        for (adjustment, value_digest, expected) in [
            (adjustment, 1, SettleResult::Settled),
            (adjustment, 1, SettleResult::Repeated),
            (other, 2, SettleResult::OtherValue),
        ] {
            let settlement = |receipt: &Receipt| CallSettlement {
                id: call_id_for_step(u64::MAX - step),
                owner: receipt.charges().first().map(|charge| charge.counter.clone()),
                value_digest,
                ttl: CALL_TTL,
                reverted: receipt.charges_to_revert(adjustment).collect(),
                added: receipt.additional_charges(adjustment).collect(),
            };
            let mut has_timed_out = false;
            let found = loop {
                match self.store.settle_async(&settlement(&store)).await {
                    Ok(result) => break result,
                    Err(error) => {
                        has_timed_out |= error.may_have_charged();
                        check_error_is_retryable(error)?;
                    }
                }
            };
            let model = self.model.settle(&settlement(&model));
            check_results_are_equal("settlement of the model", &model, &expected)?;
            let was_lost = has_timed_out && found == SettleResult::Repeated;
            if !(was_lost && expected == SettleResult::Settled) {
                check_results_are_equal("settlement", &found, &expected)?;
            }
        }
        Ok(Outcomes::new())
    }
}
