//! Requests whose cost is known only afterwards: settling a decision, and reporting consumption.

use smallvec::SmallVec;

use super::{Gate, Ruling};
use crate::decision::Decision;
use crate::hit::Hit;
use crate::policy::MatchedRules;
use crate::request::Request;
use crate::settle::{Settlement, was_charged};
use crate::store::{Receipt, Store, StoreError, SyncStore, is_charged};

impl<S: Store> Gate<S> {
    /// Corrects the charges of an allowed request to `cost`, once that is known: reverts what was too much, or charges the
    /// rest, even above max. The key then stays denied until enough has left the window. A denied request has no cost.
    ///
    /// Charges of rules that [state their cost](crate::RuleCost) stay as they are. All descriptors of the request must have
    /// had the same cost; each has the new one afterwards.
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
    /// gate.settle(&request, ruling.decision(), 1_500).await?;                              // it was more
    /// assert!(!gate.check(&request).await.decision().is_allowed());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// If the store did not answer.
    pub async fn settle(
        &self,
        request: &Request<'_>,
        decision: &Decision,
        cost: u64,
    ) -> Result<(), StoreError> {
        let asked = request.descriptors().first().map_or(0, |descriptor| descriptor.plain_cost());
        match Settlement::of(decision, asked, cost) {
            Settlement::Nothing => Ok(()),
            Settlement::Revert { units, of } => {
                let applied = self.applied_to(request, decision);
                let receipt = receipt_of_request_costs(&applied, decision).fraction(units, of);
                self.give_back_part(decision, &receipt).await
            }
            Settlement::Charge(extra) => self.charge_more(&request.costing(extra), decision).await,
        }
    }

    /// Returns how the policy applied to a request when it was decided.
    fn applied_to<'r>(&'r self, request: &'r Request<'_>, decision: &Decision) -> MatchedRules<'r> {
        let applied = self.policy.apply(request);
        match decision.is_degraded() {
            true => applied.without_store(&self.own_rules, self.instances),
            false => applied,
        }
    }

    async fn charge_more(
        &self,
        request: &Request<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        let applied = self.applied_to(request, decision);
        let hits = applied.hits();
        let all = hits.iter().zip(decision.outcomes()).zip(applied.has_request_cost_each());
        let charged = all.filter(|((hit, outcome), is_own)| *is_own && was_charged(hit, outcome));
        let hits: SmallVec<[Hit<'_>; 3]> = charged.map(|((hit, _), _)| hit.reported()).collect();
        if hits.is_empty() {
            return Ok(());
        }
        if decision.is_degraded() {
            self.fallback.decide(|counts| counts.take_now(&hits), |taken| &taken.outcomes);
            return Ok(());
        }
        self.heard(self.store.take(&hits).await).map(drop)
    }

    /// Records units that have been consumed, also above max; the counters then deny until enough has left the window. It
    /// never denies.
    ///
    /// It charges the rules whose cost the descriptors carry: those that state no cost if [`cost`] was called, and those
    /// of a [named cost]. Rules with a constant cost are skipped.
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

    /// [`report`](Self::report), where it is known already how [the policy](Self::policy) applies.
    pub async fn report_matched<'r>(&'r self, applied: MatchedRules<'r>) -> Ruling {
        self.check_matched(&applied.reported()).await
    }
}

/// Returns the charges of rules that state no cost of their own.
fn receipt_of_request_costs(applied: &MatchedRules<'_>, decision: &Decision) -> Receipt {
    let hits = applied.hits();
    let all = (hits.iter().zip(decision.outcomes()))
        .zip(applied.has_request_cost_each().zip(applied.gives_back_each()));
    let charged = all.filter(|((hit, outcome), (_, is_refund))| {
        !is_refund && outcome.is_known() && is_charged(hit, decision.is_allowed(), outcome)
    });
    let both = charged.zip(&decision.receipt().charges);
    let own = both.filter(|((_, (has_request_cost, _)), _)| *has_request_cost);
    Receipt { charges: own.map(|(_, charge)| charge.clone()).collect() }
}
