//! Requests of which it is known only afterwards what they have cost.

use super::Gate;
use crate::decision::Decision;
use crate::request::Request;
use crate::settle::{Settlement, settled};
use crate::store::{LocalStore, Store, StoreError};

impl<S: Store> Gate<S> {
    /// Makes `cost` what an allowed request was charged, once it is known what it has cost: gives back what is too
    /// much, or charges the rest, even beyond max. Who has spent so much stays denied until enough has left the
    /// window. What was denied has cost nothing. Of several descriptors each has then cost so much, and has to have
    /// been asked for at the same cost.
    ///
    /// ```
    /// use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let policy = Policy::from_yaml("rules: [{ name: tokens, per: [user], limits: [1000/min] }]")?;
    /// let gate = Gate::new(policy, MemoryStore::new());
    /// let request = Request::new("default", Descriptor::new([("user", "ann")]).cost(100)); // a guess
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
        let asked = request.descriptors().first().map_or(0, |descriptor| descriptor.cost);
        match Settlement::of(decision, asked, cost) {
            Settlement::Nothing => Ok(()),
            Settlement::GiveBack(receipt) => self.give_back_part(decision, &receipt).await,
            Settlement::Charge(extra) => self.charge_more(&request.costing(extra), decision).await,
        }
    }

    async fn charge_more(
        &self,
        request: &Request<'_>,
        decision: &Decision,
    ) -> Result<(), StoreError> {
        let applied = self.policy.apply(request);
        if decision.is_degraded() {
            let applied = applied.without_store(&self.own_rules, self.instances);
            let hits = settled(applied.hits(), decision);
            self.fallback.decide(|counts| counts.take_now(&hits), |taken| &taken.outcomes);
            return Ok(());
        }
        let hits = settled(applied.hits(), decision);
        match hits.is_empty() {
            true => Ok(()),
            false => self.heard(self.store.take(&hits).await).map(drop),
        }
    }
}
