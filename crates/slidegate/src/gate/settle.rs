//! Requests whose cost is known only afterwards: correcting the charges of a decision (settling), and recording
//! consumption (reporting).

use smallvec::SmallVec;

use super::{Gate, Ruling};
use crate::decision::Decision;
use crate::hit::Hit;
use crate::policy::MatchedRules;
use crate::request::Request;
use crate::settle::{ChargeCorrection, was_charged};
use crate::store::{Receipt, Store, StoreError, SyncStore, is_charged};

impl<S: Store> Gate<S> {
    /// Corrects the charges of an allowed request to `cost`, its actual cost: reverts the excess, or charges the
    /// difference, even above max. A key above max is denied until enough units have left the window. A denied request
    /// has no cost, so its charges are not changed.
    ///
    /// Charges of rules that [state their cost](crate::RuleCost) are not changed. All descriptors of the request must
    /// have had the same cost; each of them is corrected to the new cost.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::from_yaml("rules: [{ name: tokens, per: [user], limits: [1000/min] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([("user", "ann")]).cost(100)); // an estimate
    /// let ruling = gate.check(&request).await;
    /// gate.settle(&request, ruling.decision(), 1_500).await?;                              // the actual cost
    /// assert!(!gate.check(&request).await.decision().is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the store did not respond.
    pub async fn settle(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        cost: u64,
    ) -> Result<(), StoreError> {
        let charged =
            request.descriptors().first().map_or(0, |descriptor| descriptor.request_cost());
        match ChargeCorrection::new(decision, charged, cost) {
            ChargeCorrection::Unchanged => Ok(()),
            ChargeCorrection::Revert { units, charged } => {
                let matched = self.rules_used_for_decision(request, decision);
                let receipt =
                    request_cost_part_of_receipt(&matched, decision).fraction(units, charged);
                self.revert_receipt(decision, &receipt).await
            }
            ChargeCorrection::Charge(extra) => {
                self.charge_additional_cost(&request.with_request_cost(extra), decision).await
            }
        }
    }

    /// Returns the rules from which `decision` was made for `request`. If the decision was made without the store, each
    /// limit of these rules is reduced to the share of this instance.
    fn rules_used_for_decision<'r>(
        &'r self,
        request: &'r Request<'_>,
        decision: &Decision,
    ) -> MatchedRules<'r> {
        let matched = self.policy.apply(request);
        match decision.is_degraded() {
            true => matched.matches_decidable_without_store(&self.local_rules, self.instances),
            false => matched,
        }
    }

    /// Charges an additional cost to the limits that `decision` has charged, even above max. The additional cost is the
    /// cost of `request`.
    async fn charge_additional_cost(
        &self,
        request: &Request<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        let matched = self.rules_used_for_decision(request, decision);
        let hits = matched.hits();
        let all = hits.iter().zip(decision.outcomes()).zip(matched.request_cost_flag_per_hit());
        let charged = all.filter(|((hit, outcome), has_request_cost)| {
            *has_request_cost && was_charged(hit, outcome)
        });
        let hits: SmallVec<[Hit<'_>; 3]> = charged.map(|((hit, _), _)| hit.reported()).collect();
        if hits.is_empty() {
            return Ok(());
        }
        if decision.is_degraded() {
            self.fallback.decide_with_local_counts(
                |counts| counts.take_now(&hits),
                |result| &result.outcomes,
            );
            return Ok(());
        }
        self.notify_fallback_on_success(self.store.take(&hits).await).map(drop)
    }

    /// Records units that have been consumed already. A report is never denied: units are charged even above max, and
    /// the counters then deny requests until enough units have left the window.
    ///
    /// Rules with a constant cost are skipped. Rules with a [named cost] are charged if the descriptor has a cost with
    /// this name. Rules without a cost of their own are charged if [`cost`] was called.
    ///
    /// [`cost`]: crate::Descriptor::cost
    /// [named cost]: crate::Descriptor::with_cost
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::from_yaml("
    /// rules:
    ///   - { name: requests, per: [user], limits: [10/s], cost: 1 }
    ///   - { name: tokens, per: [user], limits: [1000/h], cost: tokens }
    /// ")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let ann = || Descriptor::new([("user", "ann")]);
    /// let check = Request::new("default", ann());
    /// assert!(gate.check(&check).await.decision().is_allowed());          // one request, no tokens yet
    /// gate.report(&Request::new("default", ann().with_cost("tokens", 1_800))).await;
    /// let ruling = gate.check(&check).await;
    /// assert_eq!(ruling.binding().map(|limit| limit.policy_name()), Some("tokens"));
    /// assert!(!ruling.decision().is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn report(&self, request: &Request<'_>) -> Ruling {
        self.report_matched(self.policy.apply(request)).await
    }

    /// Records consumption like [`report`](Self::report). `matched` are the rules of [the policy](Self::policy) that
    /// apply to the request.
    pub async fn report_matched<'r>(&'r self, matched: MatchedRules<'r>) -> Ruling {
        self.check_matched(&matched.into_matches_for_reported_usage()).await
    }
}

/// Returns the charges in a decision's receipt that have the cost of the request, that is, the charges of all rules
/// that do not state a cost. Refunds are left out.
fn request_cost_part_of_receipt(matched: &MatchedRules<'_>, decision: &Decision) -> Receipt {
    let hits = matched.hits();
    let all = (hits.iter().zip(decision.outcomes()))
        .zip(matched.request_cost_flag_per_hit().zip(matched.refund_flag_per_hit()));
    let charged = all.filter(|((hit, outcome), (_, is_refund))| {
        !is_refund && outcome.is_known() && is_charged(hit, decision.is_allowed(), outcome)
    });
    let pairs = charged.zip(&decision.receipt().charges);
    let charges = pairs.filter(|((_, (has_request_cost, _)), _)| *has_request_cost);
    Receipt { charges: charges.map(|(_, charge)| charge.clone()).collect() }
}
