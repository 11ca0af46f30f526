//! Comparisons of refunds and resets with the model.

use crate::algorithm::Algorithm;
use crate::clock::{ManualClock, Timestamp};
use crate::outcome::Outcome;
use crate::store::{Edit, Outcomes, Store, SyncStore};

use super::{ConformanceRun, check_results_are_equal};
use crate::testkit::trace::PlannedHit;

impl<S: Store> ConformanceRun<'_, S> {
    pub(super) async fn compare_refund_with_model(
        &mut self,
        plans: &[PlannedHit],
    ) -> Result<Outcomes, String> {
        let bound = self.add_key_values(plans);
        let hits = bound.hits();
        match self.store.edit_async(&hits, Edit::Refund).await {
            Ok(outcomes) => {
                let model = self.model.edit(&hits, Edit::Refund);
                check_results_are_equal(&format!("a refund, {plans:?}"), &outcomes, &model)?;
                self.stats.refunds += 1;
                Ok(outcomes)
            }
            // The suite requires that a failed refund has no effect, so the model makes no refund.
            Err(error) => self.count_failure(error),
        }
    }

    /// Steps the clock. Before the step, resets the counters of which no units are in use, because the store may have
    /// removed them.
    pub(super) async fn compare_clock_step_with_model(
        &mut self,
        clock: &ManualClock,
        now: Timestamp,
        plans: &[PlannedHit],
    ) -> Result<Outcomes, String> {
        self.reset_expired_counters(plans).await?;
        clock.set(now);
        // Until a call sets a counter back, its expiry is a time of the old clock, and a store may remove it by its time to
        // live instead. So the trace sets back all counters that share a value with others.
        let shares_values = plans.iter().any(|plan| plan.limit != plans[0].limit);
        if !shares_values {
            return Ok(Outcomes::new());
        }
        let outcomes = self.compare_peek_with_model(plans).await?;
        // A fixed window that has begun is not set back, so a store may remove it before its end, by as much as the
        // clock has stepped.
        let is_fixed =
            |plan: &&PlannedHit| matches!(plan.limit.algorithm(), Algorithm::FixedWindow { .. });
        self.reset_until_done(&plans.iter().filter(is_fixed).cloned().collect::<Vec<_>>()).await?;
        Ok(outcomes)
    }

    /// Resets the counters of which no units are in use.
    async fn reset_expired_counters(&mut self, plans: &[PlannedHit]) -> Result<(), String> {
        let outcomes = self.compare_peek_with_model(plans).await?;
        let is_expired = |outcome: &Outcome| outcome.reset_after().is_zero();
        let expired = plans.iter().zip(&outcomes).filter(|(_, outcome)| is_expired(outcome));
        self.reset_until_done(&expired.map(|(plan, _)| plan.clone()).collect::<Vec<_>>()).await
    }

    /// Resets counters. Retries until the store has reset them.
    async fn reset_until_done(&mut self, plans: &[PlannedHit]) -> Result<(), String> {
        loop {
            let failures = self.stats.failures;
            self.compare_reset_with_model(plans).await?;
            if self.stats.failures == failures {
                return Ok(());
            }
        }
    }

    pub(super) async fn compare_reset_with_model(
        &mut self,
        plans: &[PlannedHit],
    ) -> Result<Outcomes, String> {
        let bound = self.add_key_values(plans);
        let hits = bound.hits();
        match self.store.edit_async(&hits, Edit::Reset).await {
            Ok(outcomes) => {
                let model = self.model.edit(&hits, Edit::Reset);
                check_results_are_equal(&format!("a reset, {plans:?}"), &outcomes, &model)?;
                // After a reset, a permit can get the id of an earlier one, if the clock has not moved. The trace does not
                // release the earlier one, because the effect of that is not specified.
                if plans.iter().any(|plan| plan.limit.is_concurrent()) {
                    self.receipts.clear();
                }
                Ok(outcomes)
            }
            Err(error) => self.count_failure(error),
        }
    }
}
