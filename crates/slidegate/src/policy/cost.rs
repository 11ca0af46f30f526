//! The charge that a rule makes for a request: the cost, the minimum number of free units, and whether denied requests
//! are charged too.

use crate::request::Descriptor;

/// The cost that a rule charges for a request.
///
/// ```
/// use slidegate::Policy;
/// use slidegate::policy::RuleCost;
///
/// let policy = Policy::from_yaml("
/// rules:
///   - { name: requests, per: [user], limits: [10/s], cost: 1 }
///   - { name: tokens, per: [user], limits: [90000/h], cost: tokens }
/// ")?;
/// let costs: Vec<&RuleCost> = policy.rules().iter().map(|rule| rule.cost()).collect();
/// assert_eq!(costs, [&RuleCost::Constant(1), &RuleCost::Named("tokens".into())]);
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RuleCost {
    /// The cost of the request, set with [`Descriptor::cost`]; 1 by default.
    #[default]
    Request,
    /// The same number of units for each request.
    Constant(u64),
    /// The cost with this name, one of the named costs of the request. A request without this cost is checked and not
    /// charged.
    Named(Box<str>),
}

/// The settings of a rule that determine the charge for a request.
#[derive(Clone, Debug)]
pub(crate) struct ChargeSettings {
    pub(crate) cost: RuleCost,
    /// The minimum number of units that must be free to allow a request. If the cost of the request is higher, as many
    /// units as the cost must be free.
    pub(crate) required: u64,
    /// Whether denied requests are charged too.
    pub(crate) charges_always: bool,
}

impl Default for ChargeSettings {
    fn default() -> Self {
        Self { cost: RuleCost::Request, required: 1, charges_always: false }
    }
}

/// The charge of a rule for one descriptor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuleCharge {
    pub(crate) cost: u64,
    pub(crate) required: u64,
    pub(crate) charges_always: bool,
    /// Whether the request has consumed the units already; see [`Descriptor::consumed`].
    pub(crate) is_consumed: bool,
    /// Whether the descriptor specifies the cost. A report of consumed units charges only costs that the descriptor
    /// specifies.
    pub(crate) is_in_descriptor: bool,
}

impl ChargeSettings {
    /// Returns the charge of the rule for a descriptor.
    pub(crate) fn charge_for_descriptor(&self, descriptor: &Descriptor<'_>) -> RuleCharge {
        let costs = &descriptor.costs;
        let own_cost = match &self.cost {
            RuleCost::Request => costs.any.or(costs.plain),
            RuleCost::Named(name) => costs.any.or_else(|| costs.get(name)),
            RuleCost::Constant(_) => None,
        };
        let cost = own_cost.unwrap_or(match &self.cost {
            RuleCost::Request => 1,
            RuleCost::Named(_) => 0,
            RuleCost::Constant(_) if costs.is_consumed => 0,
            RuleCost::Constant(cost) => *cost,
        });
        RuleCharge {
            cost,
            required: cost.max(self.required),
            charges_always: self.charges_always || costs.is_consumed,
            is_consumed: costs.is_consumed,
            is_in_descriptor: own_cost.is_some(),
        }
    }
}
