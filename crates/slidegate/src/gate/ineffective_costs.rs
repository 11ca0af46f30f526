//! Warnings about costs that have no effect, because no rule charges them. Their names are probably misspelt, and the
//! units are then not limited. A gate warns about each cost once.

use std::collections::BTreeSet;

use parking_lot::Mutex;

use super::Gate;
use crate::decision::Decision;
use crate::policy::{DomainNames, Policy, RuleCost};
use crate::request::Request;
use crate::reserved_call::ActualCosts;
use crate::similar::most_similar_word;
use crate::store::Charge;

/// The maximum number of costs about which a gate warns until its policy is replaced. A bound is needed because the
/// names may come from clients.
const MAX_WARNED_COSTS: usize = 16;

/// The costs about which a gate has warned since its policy was replaced. `None` is the cost without a name.
#[derive(Debug, Default)]
pub(super) struct WarnedCosts(Mutex<Vec<Option<Box<str>>>>);

impl WarnedCosts {
    /// Adds a cost. Returns whether it is new, so that a warning is due.
    fn insert(&self, cost: Option<&str>) -> bool {
        let mut warned = self.0.lock();
        let is_new =
            warned.len() < MAX_WARNED_COSTS && !warned.iter().any(|known| known.as_deref() == cost);
        if is_new {
            warned.push(cost.map(Into::into));
        }
        is_new
    }

    /// Removes all costs, because another policy may charge other costs.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

impl<S> Gate<S> {
    /// Warns about the named costs of a request that no rule of its domain charges.
    pub(super) fn warn_about_unknown_costs(&self, policy: &Policy, request: &Request<'_>) {
        if request.descriptors.iter().any(|descriptor| !descriptor.costs.named.is_empty()) {
            self.warn_about_each_unknown_cost(policy, request);
        }
    }

    fn warn_about_each_unknown_cost(&self, policy: &Policy, request: &Request<'_>) {
        let Some(names) = policy.domain_names(request.domain) else { return };
        for (cost, _) in request.descriptors.iter().flat_map(|descriptor| &descriptor.costs.named) {
            if !names.has_cost(cost) {
                self.warn_about_unknown_cost(cost, &[names]);
            }
        }
    }

    /// Warns about the costs to which the charges of an allowed request are settled, but which no rule charges: a named
    /// cost that no rule of the policy charges, and the unnamed cost if all rules that apply charge other costs.
    pub(super) fn warn_about_uncharged_costs(
        &self,
        decision: &Decision<'_>,
        actual: &ActualCosts<'_>,
    ) {
        let policy = self.policy.load();
        let names: Vec<&DomainNames> =
            policy.domains().filter_map(|domain| policy.domain_names(domain)).collect();
        for cost in actual.names() {
            if !names.iter().any(|names| names.has_cost(cost)) {
                self.warn_about_unknown_cost(cost, &names);
            }
        }
        // An unnamed cost of 0 causes no warning, because it may cancel the request.
        if actual.unnamed().is_none_or(|units| units == 0) {
            return;
        }
        let charges: Vec<_> = decision.charges_with_costs().collect();
        let counted = || charges.iter().filter(|(charge, _)| !is_permit_charge(charge));
        let is_other_cost =
            |cost: &Option<&RuleCost>| cost.is_some_and(|cost| *cost != RuleCost::Request);
        let are_others = counted().all(|(_, cost)| is_other_cost(cost));
        if counted().next().is_some() && are_others && self.warned_costs.insert(None) {
            let charged: BTreeSet<&str> = counted()
                .filter_map(|(_, cost)| match cost {
                    Some(RuleCost::Named(name)) => Some(&**name),
                    _ => None,
                })
                .collect();
            tracing::warn!(
                charged = join(charged),
                "a settled cost without a name has no effect, because the rules that apply charge other costs; settle a named cost"
            );
        }
    }

    /// Warns once about a cost that no rule charges. `names` has the names in the domains that were searched; the
    /// warning suggests a similar one.
    fn warn_about_unknown_cost(&self, cost: &str, names: &[&DomainNames]) {
        if self.warned_costs.insert(Some(cost)) {
            let known: BTreeSet<&str> = names.iter().flat_map(|names| names.costs()).collect();
            tracing::warn!(
                cost,
                did_you_mean = most_similar_word(cost, known.iter().copied()),
                known = join(known),
                "a named cost has no effect, because no rule charges it; correct its name"
            );
        }
    }
}

/// Returns whether a charge is a permit of a request in flight, whatever the request costs.
pub(super) fn is_permit_charge(charge: &Charge) -> bool {
    charge.limit.is_concurrent()
}

fn join(names: BTreeSet<&str>) -> String {
    names.into_iter().collect::<Vec<_>>().join(", ")
}
