//! The names that the rules of a domain use. A caller that sends another name has probably misspelt it.

use super::cost::RuleCost;
use super::rule::Rule;
use crate::rule_limit::RuleLimit;

/// The names of the attributes and costs that the rules of one domain use. Other names of a request have no effect in
/// this domain, so a caller that sends them is probably limited less than intended.
///
/// ```
/// let policy = slidegate::Policy::from_yaml("
/// rules:
///   - { name: requests, when: { method: POST }, per: [user], limits: [10/s], cost: 1 }
///   - { name: tokens, per: [user], limits: [90000/h], cost: tokens }
/// ")?;
/// let names = policy.domain_names("default").unwrap();
/// assert_eq!(names.attributes().collect::<Vec<_>>(), ["method", "user"]);
/// assert_eq!(names.costs().collect::<Vec<_>>(), ["tokens"]);
/// assert!(!names.counts_request_cost());
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DomainNames {
    /// The names of the attributes that the rules use, sorted and without duplicates.
    attributes: Box<[Box<str>]>,
    /// The names of the costs that the rules charge, sorted and without duplicates.
    costs: Box<[Box<str>]>,
    counts_request_cost: bool,
    /// Whether at least one limit counts units. Otherwise no cost has an effect.
    counts_units: bool,
    /// The attributes that the policy declares for this domain, sorted; `None` if it declares none.
    declared: Option<Box<[Box<str>]>>,
    /// Whether a rule counts by all attributes of a descriptor, whatever their names are (`limits: requested`).
    uses_all_attributes: bool,
    /// Whether a rule uses the attribute `route` and the policy has route templates, so that `route` results from
    /// `path`.
    derives_route: bool,
}

impl DomainNames {
    /// Collects the names that the rules of one domain use. `declared` contains the attributes that the policy declares
    /// for the domain, and `has_routes` is whether the policy has route templates.
    pub(super) fn new<'r>(
        rules: impl Iterator<Item = &'r Rule> + Clone,
        declared: Option<&[Box<str>]>,
        has_routes: bool,
    ) -> Self {
        let attributes = rules.clone().flat_map(|rule| &*rule.attribute_names).cloned();
        let costs = rules.clone().filter_map(|rule| match rule.cost() {
            RuleCost::Named(name) => Some(name.clone()),
            RuleCost::Request | RuleCost::Constant(_) => None,
        });
        let attributes = sorted_names(attributes);
        let derives_route = has_routes && contains(&attributes, "route");
        let has_request_cost = |rule: &&Rule| matches!(rule.cost(), RuleCost::Request);
        Self {
            costs: sorted_names(costs),
            counts_request_cost: rules.clone().filter(has_request_cost).any(counts_units),
            counts_units: rules.clone().any(counts_units),
            declared: declared.map(|names| sorted_names(names.iter().cloned())),
            uses_all_attributes: rules.clone().any(Rule::is_for_requested_limits),
            derives_route,
            attributes,
        }
    }

    /// Returns the names of the attributes in `when`, `per`, `overrides`, `descriptor` and `redis`, sorted. If the
    /// policy has [routes](super::Policy::routes), `route` results from the attribute `path`, and a caller need not
    /// send it.
    pub fn attributes(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.attributes.iter().map(|name| &**name)
    }

    /// Returns the names of the costs that rules charge, sorted.
    pub fn costs(&self) -> impl ExactSizeIterator<Item = &str> + Clone {
        self.costs.iter().map(|name| &**name)
    }

    /// Returns `true` if an attribute with this name can have an effect: a rule uses it, or a rule uses the route that
    /// results from it, or a rule counts by all attributes (`limits: requested`).
    pub fn uses_attribute(&self, name: &str) -> bool {
        self.uses_all_attributes
            || (self.derives_route && name == "path")
            || contains(&self.attributes, name)
    }

    /// Returns the names of the attributes that the policy declares for the domain (`attributes` in the file), sorted;
    /// `None` if it declares none.
    pub fn declared_attributes(&self) -> Option<impl ExactSizeIterator<Item = &str> + Clone> {
        self.declared.as_ref().map(|names| names.iter().map(|name| &**name))
    }

    /// Returns `true` if a caller may send an attribute with this name: it can have an effect, or the policy declares
    /// it.
    pub fn knows_attribute(&self, name: &str) -> bool {
        self.uses_attribute(name)
            || self.declared.as_ref().is_some_and(|names| contains(names, name))
    }

    /// Returns `true` if a rule charges the cost with this name.
    pub fn has_cost(&self, name: &str) -> bool {
        contains(&self.costs, name)
    }

    /// Returns `true` if a limit counts the [unnamed cost](crate::Descriptor::cost) of a request. Otherwise this cost
    /// has no effect: rules charge named or constant costs, or limit only requests in flight.
    pub fn counts_request_cost(&self) -> bool {
        self.counts_request_cost
    }

    /// Returns `true` if a limit counts units. Otherwise no cost has an effect: all requests are unlimited or denied,
    /// or rules limit only the requests in flight.
    pub fn counts_units(&self) -> bool {
        self.counts_units
    }
}

/// Returns `true` if a limit of the rule counts units.
fn counts_units(rule: &Rule) -> bool {
    let counts = |limit: &RuleLimit| !limit.limit.is_concurrent() && limit.limit.capacity() > 0;
    rule.is_for_requested_limits() || rule.all_limits().any(counts)
}

fn sorted_names(names: impl Iterator<Item = Box<str>>) -> Box<[Box<str>]> {
    let mut names: Vec<Box<str>> = names.collect();
    names.sort_unstable();
    names.dedup();
    names.into()
}

fn contains(sorted: &[Box<str>], name: &str) -> bool {
    sorted.binary_search_by(|own| (**own).cmp(name)).is_ok()
}

#[cfg(test)]
mod tests {
    use crate::policy::Policy;

    #[test]
    fn domain_names_contain_names_of_all_fields() {
        let policy = Policy::from_yaml(
            "
routes: ['/a']
rules:
  - name: a
    when: { route: /a }
    per: [user|ip]
    limits: [9/s]
    cost: tokens
    overrides: [{ when: { plan: pro }, limits: [99/s] }]
    redis: { split: { by: [shard], into: 2 } }
  - { name: b, per: [user], limits: [9/s], cost: images }
  - { name: c, limits: [{ concurrent: 5, permit_ttl: 60s }] }
  - { name: d, when: { user: root }, limits: unlimited }
  - { name: e, domain: envoy, descriptor: [key, key#2], limits: [9/s] }
  - { name: f, domain: envoy, limits: requested }
",
        )
        .unwrap();
        let names = policy.domain_names("default").unwrap();
        let attributes = ["ip", "plan", "route", "shard", "user"];
        assert_eq!(names.attributes().collect::<Vec<_>>(), attributes);
        assert_eq!(names.costs().collect::<Vec<_>>(), ["images", "tokens"]);
        assert!(names.has_cost("tokens") && !names.has_cost("token"));
        assert!(names.uses_attribute("path") && !names.uses_attribute("usr"));
        // An unlimited rule and a limit on requests in flight count no cost.
        assert!(!names.counts_request_cost());
        let envoy = policy.domain_names("envoy").unwrap();
        assert_eq!(envoy.attributes().collect::<Vec<_>>(), ["key", "key#2"]);
        assert!(envoy.uses_attribute("anything") && envoy.counts_request_cost());
        assert_eq!(policy.domain_names("other"), None);
    }
}
