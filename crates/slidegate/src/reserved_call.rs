//! Reserved calls: the charges of an admitted call that can be corrected to the actual costs later.

use std::hash::Hasher;
use std::time::Duration;

use fnv::FnvHasher;
use serde::{Deserialize, Serialize};

use crate::call::CallId;
use crate::decision::Decision;
use crate::permit::Permit;
use crate::policy::RuleCost;
use crate::store::{Adjustment, CallSettlement, Charge, Receipt};

/// The charges of an admitted call, with the costs to which they belong. Plain data: serde serializes it, for a token
/// with which any process can settle the call. The caller must authenticate the token, because deserialization accepts
/// the charges of any counter.
///
/// ```
/// use slidegate::{ActualCosts, Descriptor, Gate, MemoryStore, Policy, Request};
/// use slidegate::gate::ReservedCall;
/// use slidegate::store::CallId;
/// use std::time::Duration;
///
/// let policy = Policy::from_yaml("
/// rules: [{ name: tokens, per: [user], limits: [1000/h], cost: tokens }]
/// ")?;
/// let gate = Gate::new(policy, MemoryStore::new());
/// let estimate = Descriptor::new([("user", "ann")]).with_cost("tokens", 700);
/// let decision = gate.check(&Request::new("default", estimate));
/// let reserved = ReservedCall::from_decision(CallId::unique(), &decision);
///
/// let actual = ActualCosts::new().with_cost("tokens", 400);
/// let settlement = reserved.settlement(&actual, Duration::from_secs(600));
/// assert_eq!(settlement.reverted.iter().map(|charge| charge.cost).sum::<u64>(), 300);
///
/// let token = serde_json::to_string(&reserved)?; // to be encrypted
/// assert_eq!(serde_json::from_str::<ReservedCall>(&token)?, reserved);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReservedCall {
    id: CallId,
    charges: Vec<ReservedCharge>,
}

/// A charge, and the cost of the request from which it results.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct ReservedCharge {
    charge: Charge,
    cost: ReservedCostKind,
}

/// The cost of a request from which a charge results. It determines the actual cost that corrects the charge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReservedCostKind {
    /// The rule charges the same number of units for each request, so an actual cost does not change the charge.
    Constant,
    /// The unnamed cost of the request.
    Request,
    /// The cost with this name.
    Named(Box<str>),
}

/// The actual costs of a call, to which its charges are corrected.
///
/// - A cost that is not set leaves its charges at their estimate.
/// - Charges of rules with a constant cost stay, unless the call is [cancelled](Self::cancelled).
/// - A number converts to the cost without a name. If the only cost that a decision was charged is a named cost, a cost
///   without a name settles the named cost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ActualCosts<'c> {
    is_cancelled: bool,
    plain: Option<u64>,
    named: Vec<(&'c str, u64)>,
}

impl<'c> ActualCosts<'c> {
    /// Creates costs of which none is set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates the costs of a call that is cancelled: all its charges are reverted, also the charges of rules with a
    /// constant cost.
    pub fn cancelled() -> Self {
        Self { is_cancelled: true, plain: Some(0), named: Vec::new() }
    }

    /// Returns whether the call is [cancelled](Self::cancelled).
    pub fn is_cancelled(&self) -> bool {
        self.is_cancelled
    }

    /// Sets the cost for rules that do not state a cost.
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { is_cancelled: false, plain: Some(units), ..self }
    }

    /// Sets a named cost. If two costs have the same name, the first is used.
    #[must_use]
    pub fn with_cost(mut self, name: &'c str, units: u64) -> Self {
        if self.named_cost(name).is_none() {
            self.named.push((name, units));
        }
        Self { is_cancelled: false, ..self }
    }

    /// Returns the cost for rules that do not state a cost; `None` if it is not set.
    pub fn unnamed(&self) -> Option<u64> {
        self.plain
    }

    /// Returns the names of the named costs.
    pub fn names(&self) -> impl Iterator<Item = &'c str> + Clone {
        self.named.iter().map(|(name, _)| *name)
    }

    /// Returns the change of each cost that is set, with the charges of the decision that it changes.
    pub(crate) fn corrections(&self, decision: &Decision<'_>) -> Vec<(Receipt, Adjustment)> {
        if self.is_cancelled {
            return vec![(decision.receipt().clone(), Adjustment::Revert)];
        }
        let plain = self.plain.map(|units| (decision.request_cost_receipt(), units));
        let named =
            self.named.iter().map(|(name, units)| (decision.named_cost_receipt(name), *units));
        let corrections = plain.into_iter().chain(named);
        corrections.map(|(receipt, units)| (receipt, Adjustment::SetCost(units))).collect()
    }

    /// Returns the costs to which a decision is settled: a cost without a name gets the name of the only cost that the
    /// decision was charged, if that has a name.
    pub(crate) fn for_decision<'d>(self, decision: &'d Decision<'_>) -> ActualCosts<'d>
    where
        'c: 'd,
    {
        let Some(units) = self.plain.filter(|_| self.named.is_empty() && !self.is_cancelled) else {
            return self;
        };
        let counted =
            decision.charges_with_costs().filter(|(charge, _)| !charge.limit.is_concurrent());
        let mut costs = counted.map(|(_, cost)| cost.unwrap_or(&RuleCost::Request));
        let mut only = None;
        let is_single = costs.all(|cost| match cost {
            RuleCost::Constant(_) => true,
            RuleCost::Request => false,
            RuleCost::Named(name) => *only.get_or_insert(name) == name,
        });
        match only.filter(|_| is_single) {
            Some(name) => ActualCosts::new().with_cost(name, units),
            None => self,
        }
    }

    fn named_cost(&self, name: &str) -> Option<u64> {
        self.named.iter().find(|(own, _)| *own == name).map(|(_, units)| *units)
    }

    /// Returns the change of a charge that results from `cost`; `None` if the charge stays.
    fn adjustment(&self, cost: &ReservedCostKind) -> Option<Adjustment> {
        if self.is_cancelled {
            return Some(Adjustment::Revert);
        }
        let units = match cost {
            ReservedCostKind::Constant => None,
            ReservedCostKind::Request => self.plain,
            ReservedCostKind::Named(name) => self.named_cost(name),
        };
        units.map(Adjustment::SetCost)
    }

    /// Returns a digest of the costs, by which a store recognizes a repeated settlement. It is the same in every
    /// process and version.
    fn digest(&self) -> u64 {
        let mut hasher = FnvHasher::default();
        let mut write_number = |number: u64| hasher.write(&number.to_le_bytes());
        if self.plain == Some(0) && self.named.is_empty() && !self.is_cancelled {
            write_number(0);
        }
        write_number(self.plain.is_some().into());
        write_number(self.plain.unwrap_or_default());
        let mut named = self.named.clone();
        named.sort_unstable();
        for (name, units) in named {
            hasher.write(&(name.len() as u64).to_le_bytes());
            hasher.write(name.as_bytes());
            hasher.write(&units.to_le_bytes());
        }
        hasher.finish()
    }
}

impl From<u64> for ActualCosts<'_> {
    fn from(units: u64) -> Self {
        Self::new().cost(units)
    }
}

impl<'c> From<&ActualCosts<'c>> for ActualCosts<'c> {
    fn from(costs: &ActualCosts<'c>) -> Self {
        costs.clone()
    }
}

impl ReservedCall {
    /// Creates the reserved call of an allowed decision of a [`Gate`](crate::Gate). `id` must be unique among all calls
    /// that the store remembers: the id of the call's [`CallIdentity`](crate::store::CallIdentity), or a
    /// [unique](CallId::unique) id.
    pub fn from_decision(id: CallId, decision: &Decision<'_>) -> Self {
        let charges = decision.charges_with_costs().map(|(charge, cost)| ReservedCharge {
            charge: Charge { hit_index: 0, ..charge.clone() },
            cost: match cost {
                // A request in flight takes one permit, whatever its cost, so an actual cost does not change this
                // charge.
                _ if charge.limit.is_concurrent() => ReservedCostKind::Constant,
                Some(RuleCost::Constant(_)) => ReservedCostKind::Constant,
                Some(RuleCost::Named(name)) => ReservedCostKind::Named(name.clone()),
                Some(RuleCost::Request) | None => ReservedCostKind::Request,
            },
        });
        Self { id, charges: charges.collect() }
    }

    /// Returns the id of the call.
    pub fn id(&self) -> CallId {
        self.id
    }

    /// Returns whether the call has no charges, because no limit applies to it.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Returns the names of the costs that the call has been charged, in the order of its charges. A name can occur
    /// several times.
    pub fn cost_names(&self) -> impl Iterator<Item = &str> + Clone {
        self.charges.iter().filter_map(|reserved| match &reserved.cost {
            ReservedCostKind::Named(name) => Some(&**name),
            ReservedCostKind::Constant | ReservedCostKind::Request => None,
        })
    }

    /// Returns `true` if rules that do not state a cost have charged the call.
    pub fn has_unnamed_cost(&self) -> bool {
        self.charges.iter().any(|reserved| reserved.cost == ReservedCostKind::Request)
    }

    /// Returns the record of the charges.
    pub fn receipt(&self) -> Receipt {
        self.charges.iter().map(|reserved| reserved.charge.clone()).collect()
    }

    /// Returns the permit of the call, which a cancellation releases; `None` if it has none. `is_degraded` is `true` if
    /// the charges were made without the store.
    pub fn permit(&self, is_degraded: bool) -> Option<Permit> {
        Permit::from_receipt(&self.receipt(), is_degraded)
    }

    /// Returns the settlement that corrects the charges to the actual costs. `ttl` is the time for which it can be
    /// repeated.
    pub fn settlement(&self, actual: &ActualCosts<'_>, ttl: Duration) -> CallSettlement {
        let (mut reverted, mut added) = (Vec::new(), Vec::new());
        for ReservedCharge { charge, cost } in &self.charges {
            let Some(adjustment) = actual.adjustment(cost) else { continue };
            let receipt: Receipt = std::iter::once(charge.clone()).collect();
            reverted.extend(receipt.charges_to_revert(adjustment));
            added.extend(receipt.additional_charges(adjustment));
        }
        let owner = self.charges.first().map(|reserved| reserved.charge.counter.clone());
        CallSettlement { id: self.id, owner, value_digest: actual.digest(), ttl, reverted, added }
    }
}

#[cfg(test)]
mod tests {
    mod serialized;

    use super::*;
    use crate::gate::Gate;
    use crate::policy::Policy;
    use crate::request::{Descriptor, Request};
    use crate::store::memory::MemoryStore;

    const POLICY: &str = "
rules:
  - { name: requests, limits: [10/h], cost: 1 }
  - { name: units, limits: [1000/h] }
  - { name: tokens, limits: [1000/h], cost: tokens }
";

    fn reserve() -> ReservedCall {
        let gate = Gate::new(Policy::from_yaml(POLICY).unwrap(), MemoryStore::new());
        let estimate = Descriptor::new([]).cost(50).with_cost("tokens", 700);
        let decision = gate.check(&Request::new("default", estimate));
        ReservedCall::from_decision(CallId::unique(), &decision)
    }

    /// Returns the units that a settlement reverts and adds, for each rule of the policy.
    fn changes(actual: &ActualCosts<'_>) -> [i64; 3] {
        let call = reserve();
        let settlement = call.settlement(actual, Duration::ZERO);
        let mut changes = [0; 3];
        for (change, reserved) in changes.iter_mut().zip(&call.charges) {
            let units = |charges: &[Charge]| {
                let own = charges.iter().filter(|one| one.counter == reserved.charge.counter);
                own.map(|one| one.cost as i64).sum::<i64>()
            };
            *change = units(&settlement.added) - units(&settlement.reverted);
        }
        changes
    }

    #[test]
    fn settlement_changes_only_costs_that_are_set() {
        let costs = ActualCosts::new;
        for (actual, expected) in [
            (costs(), [0, 0, 0]),
            (costs().cost(50), [0, 0, 0]),
            (costs().cost(30), [0, -20, 0]),
            (costs().cost(0), [0, -50, 0]),
            (costs().with_cost("tokens", 900), [0, 0, 200]),
            (costs().cost(60).with_cost("tokens", 0), [0, 10, -700]),
            (costs().cost(0).with_cost("tokens", 1), [0, -50, -699]),
            (costs().with_cost("other", 1), [0, 0, 0]),
            (ActualCosts::cancelled(), [-1, -50, -700]),
        ] {
            assert_eq!(changes(&actual), expected, "{actual:?}");
        }
    }

    #[test]
    fn number_settles_only_cost_of_decision() {
        let tokens = "{ name: a, limits: [1000/h], cost: tokens }";
        let more_tokens = "{ name: b, limits: [1000/d], cost: tokens }";
        let units = "{ name: c, limits: [1000/h] }";
        let images = "{ name: d, limits: [1000/h], cost: images }";
        let constant = "{ name: e, limits: [1000/h], cost: 1 }";
        let in_flight = "{ name: f, limits: [{ concurrent: 5, permit_ttl: 60s }] }";
        let named = || ActualCosts::new().with_cost("tokens", 200);
        for (rules, expected) in [
            (vec![tokens], named()),
            (vec![constant, tokens, more_tokens, in_flight], named()),
            (vec![tokens, units], ActualCosts::from(200)),
            (vec![tokens, images], ActualCosts::from(200)),
            (vec![units], ActualCosts::from(200)),
            (vec![constant], ActualCosts::from(200)),
        ] {
            let policy = Policy::from_yaml(&format!("rules: [{}]", rules.join(", "))).unwrap();
            let gate = Gate::new(policy, MemoryStore::new());
            let estimate = Descriptor::new([]).with_cost("tokens", 700).with_cost("images", 7);
            let decision = gate.check(&Request::new("default", estimate));
            assert_eq!(ActualCosts::from(200).for_decision(&decision), expected, "{rules:?}");
            let settled = ActualCosts::new().with_cost("images", 5).cost(200);
            assert_eq!(settled.clone().for_decision(&decision), settled);
        }
    }

    #[test]
    fn costs_have_same_digest_in_any_order() {
        let costs = ActualCosts::new().cost(1);
        let digest = costs.clone().with_cost("a", 1).with_cost("b", 2).digest();
        assert_eq!(digest, costs.clone().with_cost("b", 2).with_cost("a", 1).digest());
        for other in [
            costs.clone(),
            costs.clone().with_cost("a", 1),
            costs.clone().with_cost("a", 2).with_cost("b", 1),
            costs.clone().cost(2).with_cost("a", 1).with_cost("b", 2),
            ActualCosts::new().with_cost("a", 1).with_cost("b", 2),
        ] {
            assert_ne!(digest, other.digest(), "{other:?}");
        }
    }
}
