//! Names of a request that have no effect, because no rule of its domain uses them. They are probably misspelt: without
//! these checks, a misspelt cost or attribute would mean that the request is not limited.

use super::Policy;
use super::domain_names::DomainNames;
use super::rule::NoMatchReason;
use crate::request::{Descriptor, DescriptorCosts, Request};
use crate::reserved_call::{ActualCosts, ReservedCall};

/// A cost of a request that no rule of its domain charges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnknownCost<'r> {
    /// The name of a cost that no rule of the domain charges.
    Named(&'r str),
    /// The unnamed cost of a request, in units. The rules of the domain charge only named and constant costs, and the
    /// request has no named cost.
    Unnamed(u64),
}

impl Policy {
    /// Returns the first cost of a request that no rule of its domain charges, although rules of the domain count
    /// units. The caller has probably misspelt it, and the request would not be charged as intended.
    ///
    /// Returns `None` for an unknown domain, and for a domain that counts no units because all of its requests are
    /// unlimited, denied or limited only by their number in flight.
    ///
    /// ```
    /// use slidegate::policy::UnknownCost;
    /// use slidegate::{Descriptor, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("
    /// rules: [{ name: tokens, per: [user], limits: [1000/h], cost: tokens }]
    /// ")?;
    /// let descriptor = || Descriptor::new([("user", "ann")]);
    /// let unknown = |descriptor| policy.unknown_cost(&Request::new("default", descriptor));
    /// assert_eq!(unknown(descriptor().with_cost("token", 700)), Some(UnknownCost::Named("token")));
    /// assert_eq!(unknown(descriptor().cost(700)), Some(UnknownCost::Unnamed(700)));
    /// assert_eq!(unknown(descriptor().with_cost("tokens", 700)), None);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn unknown_cost<'r>(&self, request: &Request<'r>) -> Option<UnknownCost<'r>> {
        if !request.descriptors.iter().any(|descriptor| descriptor.costs.has_own_costs()) {
            return None;
        }
        let names = self.domain_names(request.domain)?;
        request.descriptors.iter().find_map(|descriptor| {
            let DescriptorCosts { plain, named, .. } = &descriptor.costs;
            let named = named.iter().map(|(name, _)| *name);
            names.unknown_cost(*plain, named)
        })
    }

    /// Returns the first actual cost of a reserved call that no rule of its domain charges. A call is settled only
    /// once, so a settlement with this cost would leave a charge at its estimate.
    ///
    /// A call does not contain its domain, so a cost is accepted if any domain that has all costs of the call has this
    /// cost. Returns `None` if the call has no charges with a cost that can change.
    pub fn unknown_actual_cost<'c>(
        &self,
        call: &ReservedCall,
        actual: &ActualCosts<'c>,
    ) -> Option<UnknownCost<'c>> {
        let (charged, has_unnamed) = (call.cost_names(), call.has_unnamed_cost());
        if !has_unnamed && charged.clone().next().is_none() {
            return None;
        }
        let names = self.by_domain.iter().map(|(_, domain)| &domain.names);
        let possible: Vec<&DomainNames> = names
            .filter(|names| charged.clone().all(|cost| names.has_cost(cost)))
            .filter(|names| names.counts_request_cost() || !has_unnamed)
            .collect();
        let is_known = |name: &&str| {
            charged.clone().any(|cost| cost == *name)
                || possible.iter().any(|names| names.has_cost(name))
        };
        if let Some(unknown) = actual.names().find(|name| !is_known(name)) {
            return Some(UnknownCost::Named(unknown));
        }
        let has_named = actual.names().next().is_some();
        let units = actual.unnamed().filter(|units| *units > 0 && !has_named)?;
        let is_counted = has_unnamed || possible.iter().any(|names| names.counts_request_cost());
        (!is_counted).then_some(UnknownCost::Unnamed(units))
    }

    /// Returns the attribute names of a request that no rule of its domain uses and that the policy does not declare,
    /// if no rule applies to the request because it lacks an attribute. The caller has probably misspelt a name, and
    /// the request is not limited. The list is empty if the request has no attributes at all.
    ///
    /// Returns `None` if a rule applies, if only the values of attributes prevent that, if all names are known, and for
    /// an unknown domain.
    ///
    /// ```
    /// use slidegate::{Descriptor, Policy, Request};
    ///
    /// let policy = Policy::from_yaml("rules: [{ name: a, per: [user], limits: [9/s] }]")?;
    /// let unused = |name| {
    ///     let request = Request::new("default", Descriptor::new([(name, "ann")]));
    ///     policy.unused_attributes(&request).map(|names| names.join(", "))
    /// };
    /// assert_eq!(unused("usr").as_deref(), Some("usr"));
    /// assert_eq!(unused("user"), None);
    /// # Ok::<(), slidegate::PolicyErrors>(())
    /// ```
    pub fn unused_attributes<'r>(&self, request: &'r Request<'_>) -> Option<Vec<&'r str>> {
        let names = self.domain_names(request.domain)?;
        let sent = || request.descriptors.iter().flat_map(Descriptor::iter).map(|(name, _)| name);
        let mut unused: Vec<&str> = sent().filter(|name| !names.knows_attribute(name)).collect();
        if unused.is_empty() && sent().next().is_some() {
            return None;
        }
        let mut lacks_attribute = false;
        for (_, result) in self.explain(request) {
            match result {
                // A rule that is replaced or off would otherwise apply, so the attribute names are not considered
                // misspelt.
                Ok(_) | Err(NoMatchReason::Replaced(_) | NoMatchReason::Off) => return None,
                Err(reason) => lacks_attribute |= is_due_to_missing_attribute(&reason),
            }
        }
        unused.sort_unstable();
        unused.dedup();
        lacks_attribute.then_some(unused)
    }
}

impl DomainNames {
    /// Returns the first cost of a request that no rule of the domain charges; `None` if there is none, or if no limit
    /// counts units. `plain` is the unnamed cost of the request, if any, and `named` are the names of its other costs.
    pub fn unknown_cost<'c>(
        &self,
        plain: Option<u64>,
        mut named: impl Iterator<Item = &'c str> + Clone,
    ) -> Option<UnknownCost<'c>> {
        if !self.counts_units() {
            return None;
        }
        let has_named = named.clone().next().is_some();
        if let Some(unknown) = named.find(|name| !self.has_cost(name)) {
            return Some(UnknownCost::Named(unknown));
        }
        // An unnamed cost of 0 charges nothing, as intended, and an unnamed cost next to a named cost is for other
        // domains. So neither is reported.
        let units = plain.filter(|units| *units > 0 && !has_named)?;
        let is_counted = self.counts_request_cost() || self.costs().len() == 0;
        (!is_counted).then_some(UnknownCost::Unnamed(units))
    }
}

/// Returns `true` if a rule does not apply because the descriptor lacks an attribute, or has attributes of other names.
fn is_due_to_missing_attribute(reason: &NoMatchReason<'_>) -> bool {
    match reason {
        NoMatchReason::ConditionNotMet { found, .. } => found.is_none(),
        NoMatchReason::MissingAttribute(_)
        | NoMatchReason::UnnamedAttribute(_)
        | NoMatchReason::OtherAttributeNames(_) => true,
        NoMatchReason::RequestedLimitsOnly | NoMatchReason::Replaced(_) | NoMatchReason::Off => {
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::CallId;
    use crate::gate::Gate;
    use crate::store::memory::MemoryStore;

    /// Returns the unknown cost of a request with these costs, as text.
    fn unknown_cost(rules: &str, plain: Option<u64>, named: &[&str]) -> Option<String> {
        let policy = Policy::from_yaml(&format!("rules: [{rules}]")).unwrap();
        let mut descriptor = Descriptor::new([("user", "ann")]);
        if let Some(units) = plain {
            descriptor = descriptor.cost(units);
        }
        for name in named {
            descriptor = descriptor.with_cost(name, 5);
        }
        policy.unknown_cost(&Request::new("default", descriptor)).map(|unknown| match unknown {
            UnknownCost::Named(name) => name.to_owned(),
            UnknownCost::Unnamed(units) => units.to_string(),
        })
    }

    /// Rules, the unnamed and the named costs of a request, and the unknown cost.
    type Case<'c> = (&'c [&'c str], Option<u64>, &'c [&'c str], Option<&'c str>);

    #[test]
    fn unknown_cost_is_cost_that_no_rule_charges() {
        let tokens = "{ name: a, limits: [9/s], cost: tokens }";
        let plain = "{ name: b, limits: [9/s] }";
        let constant = "{ name: c, limits: [9/s], cost: 1 }";
        let in_flight = "{ name: d, limits: [{ concurrent: 5, permit_ttl: 60s }] }";
        let unlimited = "{ name: e, when: { user: root }, limits: unlimited }";
        let denied = "{ name: f, when: { user: mallory }, limits: denied }";
        let declaring = "{ name: g, limits: unlimited, cost: images }";
        let cases: &[Case<'_>] = &[
            (&[tokens], None, &["tokens"], None),
            (&[tokens], None, &["token"], Some("token")),
            (&[tokens], None, &["tokens", "token"], Some("token")),
            (&[tokens], Some(4000), &[], Some("4000")),
            (&[tokens], Some(4000), &["tokens"], None),
            (&[tokens], Some(0), &[], None),
            (&[tokens], None, &[], None),
            (&[tokens, plain], Some(4000), &[], None),
            (&[tokens, plain], Some(4000), &["token"], Some("token")),
            (&[tokens, constant], Some(4000), &[], Some("4000")),
            (&[tokens, in_flight, unlimited, denied], Some(4000), &[], Some("4000")),
            (&[plain], Some(4000), &["tokens"], Some("tokens")),
            (&[constant], Some(4000), &[], None),
            (&[constant], None, &["tokens"], Some("tokens")),
            // These domains count no units.
            (&[in_flight], Some(4000), &["tokens"], None),
            (&[unlimited, denied], Some(4000), &["tokens"], None),
            // A rule without limits declares a name.
            (&[tokens, declaring], None, &["images"], None),
        ];
        for (rules, plain, named, expected) in cases {
            let unknown = unknown_cost(&rules.join(", "), *plain, named);
            assert_eq!(unknown.as_deref(), *expected, "{rules:?} {plain:?} {named:?}");
        }
    }

    #[test]
    fn hits_addend_and_unknown_domain_have_known_costs() {
        let policy = Policy::from_yaml("rules: [{ name: a, limits: [9/s], cost: tokens }]");
        let policy = policy.unwrap();
        let addend = Descriptor::new([]).with_hits_addend(7);
        assert_eq!(policy.unknown_cost(&Request::new("default", addend)), None);
        let other = Descriptor::new([]).cost(7).with_cost("token", 7);
        assert_eq!(policy.unknown_cost(&Request::new("other", other)), None);
    }

    #[test]
    fn unknown_actual_cost_is_cost_of_no_possible_domain() {
        let text = "
rules:
  - { name: tokens, per: [user], limits: [9/s], cost: tokens }
  - { name: images, per: [studio], limits: [9/s], cost: images }
  - { name: requests, limits: [9/s], cost: 1 }
  - { name: other, domain: other, limits: [9/s], cost: token }
  - { name: plain, domain: other, limits: [9/s] }
";
        let gate = Gate::new(Policy::from_yaml(text).unwrap(), MemoryStore::new());
        let unknown = |domain: &str, attribute: &str, actual: ActualCosts<'static>| {
            let estimate = Descriptor::new([(attribute, "ann")]);
            let decision = gate.check(&Request::new(domain, estimate));
            let call = ReservedCall::from_decision(CallId::unique(), &decision);
            gate.policy().unknown_actual_cost(&call, &actual)
        };
        let costs = ActualCosts::new;
        let named = |name| Some(UnknownCost::Named(name));
        assert_eq!(unknown("default", "user", costs().with_cost("tokens", 5)), None);
        assert_eq!(unknown("default", "user", costs().with_cost("token", 5)), named("token"));
        let both = costs().with_cost("tokens", 5).with_cost("imgs", 5);
        assert_eq!(unknown("default", "user", both), named("imgs"));
        // A rule of the domain that did not apply.
        assert_eq!(unknown("default", "user", costs().with_cost("images", 5)), None);
        assert_eq!(unknown("default", "user", costs().cost(5)), Some(UnknownCost::Unnamed(5)));
        assert_eq!(unknown("default", "user", costs().cost(5).with_cost("tokens", 5)), None);
        assert_eq!(unknown("default", "user", ActualCosts::cancelled()), None);
        assert_eq!(unknown("other", "user", costs().cost(5).with_cost("token", 5)), None);
        assert_eq!(unknown("other", "user", costs().with_cost("tokens", 5)), named("tokens"));
        // No charge can change.
        assert_eq!(unknown("default", "none", costs().with_cost("token", 5)), None);
        assert_eq!(unknown("unknown", "user", costs().with_cost("token", 5)), None);
    }

    /// Returns the unused names of a request with these attributes.
    fn unused<'a>(policy: &str, attributes: &[(&'a str, &'a str)]) -> Option<Vec<String>> {
        let policy = Policy::from_yaml(policy).unwrap();
        let request = Request::new("default", Descriptor::new(attributes.iter().copied()));
        let names = policy.unused_attributes(&request)?;
        Some(names.into_iter().map(str::to_owned).collect())
    }

    #[test]
    fn unused_attributes_need_rule_that_lacks_attribute() {
        let per_user = "rules: [{ name: a, per: [user], limits: [9/s] }]";
        let names = |names: &[&str]| Some(names.iter().map(|name| (*name).to_owned()).collect());
        assert_eq!(unused(per_user, &[("usr", "ann"), ("b", "1")]), names(&["b", "usr"]));
        assert_eq!(unused(per_user, &[("user", "ann"), ("b", "1")]), None);
        assert_eq!(unused(per_user, &[]), names(&[]));
        // A request that no rule is written for has no missing attribute.
        let login = "rules: [{ name: a, when: { path: /login }, per: [ip], limits: [9/s] }]";
        assert_eq!(unused(login, &[("path", "/"), ("ip", "1.2.3.4"), ("agent", "x")]), None);
        assert_eq!(unused(login, &[("path", "/login"), ("client", "x")]), names(&["client"]));
        assert_eq!(unused(login, &[("pth", "/login"), ("ip", "1.2.3.4")]), names(&["pth"]));
        let routes = "
routes: [/login]
rules: [{ name: a, when: { route: /login }, per: [user], limits: [9/s] }]";
        assert_eq!(unused(routes, &[("path", "/login")]), None);
        let off =
            "rules: [{ name: a, limits: [9/s], mode: off }, { name: b, per: [c], limits: [9/s] }]";
        assert_eq!(unused(off, &[("d", "1")]), None);
        // A declared attribute is known, even if no rule uses it.
        let declared = format!("attributes: [user, agent]\n{per_user}");
        assert_eq!(unused(&declared, &[("agent", "x")]), None);
        assert_eq!(unused(&declared, &[("usr", "x")]), names(&["usr"]));
    }

    #[test]
    fn exact_descriptor_without_rule_has_unused_attributes() {
        let policy = "rules: [{ name: a, per: [user], limits: [9/s] }]";
        let policy = Policy::from_yaml(policy).unwrap();
        let unused = |attributes: &[&[(&'static str, &'static str)]]| {
            let descriptors =
                attributes.iter().map(|pairs| Descriptor::new(pairs.iter().copied()).exact());
            let request = Request::with_descriptors("default", descriptors);
            policy.unused_attributes(&request).map(|names| names.join(","))
        };
        assert_eq!(unused(&[&[("usr", "ann")]]).as_deref(), Some("usr"));
        assert_eq!(unused(&[&[]]).as_deref(), Some(""));
        assert_eq!(unused(&[&[("user", "ann"), ("a", "b")]]).as_deref(), Some("a"));
        assert_eq!(unused(&[&[("user", "ann")], &[("a", "b")]]), None);
        assert_eq!(unused(&[]), None);
    }
}
