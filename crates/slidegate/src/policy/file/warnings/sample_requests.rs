//! Generates sample requests that a client could send, in order to match them against a policy.

use std::collections::BTreeMap;

use super::is_address_attribute;
use crate::policy::Policy;
use crate::policy::pattern::Condition;
use crate::policy::rule::{Rule, When};
use crate::request::{Descriptor, Request};

/// An attribute value that a client invents. It is assumed to occur in no policy.
const INVENTED_ATTRIBUTE_VALUE: &str = "x7f3c0a9d1e";

/// Client addresses of sample requests: public addresses outside of the ranges that are reserved for documentation.
const PUBLIC_ADDRESSES: [&str; 2] = ["45.77.61.5", "2a0d:77:61::5"];

/// Client addresses of sample requests for rules whose conditions match none of [`PUBLIC_ADDRESSES`].
const FALLBACK_ADDRESSES: [&str; 3] = ["203.0.113.77", "10.77.61.5", "fd77:61::5"];

const HTTP_METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

/// The maximum number of values of one attribute that are tried in sample requests.
pub(super) const MAX_VALUES_PER_ATTRIBUTE: usize = 16;

/// The maximum number of overrides of one rule that are tried in sample requests.
const MAX_TRIED_OVERRIDES_PER_RULE: usize = 16;

/// A generated request: its domain and its attributes.
pub(super) struct SampleRequest<'a> {
    domain: &'a str,
    attributes: BTreeMap<&'a str, String>,
}

/// The values of an attribute in sample requests. `None` means that the attribute is absent.
type CandidateAttributeValues = Vec<Option<String>>;

impl SampleRequest<'_> {
    /// Calls `use_request` with the request, and returns the result of `use_request`.
    pub(super) fn call_with_request<T>(&self, use_request: impl FnOnce(&Request<'_>) -> T) -> T {
        let attributes = self.attributes.iter().map(|(name, value)| (*name, value.as_str()));
        use_request(&Request::new(self.domain, Descriptor::new(attributes)))
    }
}

/// Returns requests that `rule` probably matches and counts by an invented value of the attribute `invented`. Some of
/// the requests may not match.
///
/// `sent` contains the names of client-chosen attributes by which the rules of the domain count. The requests are
/// generated twice: first without the attributes in `sent` that `rule` does not need, then with an invented value for
/// each of them.
pub(super) fn sample_requests<'a>(
    policy: &'a Policy,
    rule: &'a Rule,
    sent: &'a [&'a str],
    invented: &'a str,
) -> impl Iterator<Item = SampleRequest<'a>> + use<'a> {
    let overrides = rule
        .overrides
        .iter()
        .take(MAX_TRIED_OVERRIDES_PER_RULE)
        .map(|rule_override| Some(&rule_override.when));
    [None].into_iter().chain(overrides).flat_map(move |override_when| {
        let values = ExampleAttributeValues::new(policy, rule, override_when, invented);
        let without_sent = values.generate_request_attributes();
        let with_sent = values.with_invented_values(sent).generate_request_attributes();
        let requests = without_sent.chain(with_sent);
        requests.map(|attributes| SampleRequest { domain: &rule.domain, attributes })
    })
}

/// The values that each attribute may have in sample requests.
#[derive(Clone)]
struct ExampleAttributeValues<'a>(BTreeMap<&'a str, CandidateAttributeValues>);

impl<'a> ExampleAttributeValues<'a> {
    /// Creates attribute values that meet the conditions of a rule and, if given, of one of its overrides.
    fn new(
        policy: &Policy,
        rule: &'a Rule,
        override_when: Option<&'a When>,
        invented: &'a str,
    ) -> Self {
        let mut by_name: BTreeMap<&str, Vec<&Condition>> = BTreeMap::new();
        let override_conditions = override_when.into_iter().flat_map(|when| &when.0);
        for (name, condition) in rule.when.0.iter().chain(override_conditions) {
            by_name.entry(name).or_default().push(condition);
        }
        for name in ["ip", "remote_address", "masked_remote_address", "method", "path", "host"] {
            by_name.entry(name).or_default();
        }
        // Each entry of `per` needs a value. The entry that contains `invented` must use that attribute.
        for entry in rule.per.entries() {
            let mut names = entry.names();
            let needed = match entry.names().any(|name| name == invented) {
                true => Some(invented),
                false if entry.names().any(|name| by_name.contains_key(name)) => None,
                false => names.next(),
            };
            by_name
                .extend(needed.map(|name| (name, by_name.get(name).cloned().unwrap_or_default())));
        }
        let needs_route = by_name.contains_key("route") && !policy.routes.is_empty();
        let mut values: BTreeMap<&str, CandidateAttributeValues> = by_name
            .iter()
            .map(|(name, conditions)| (*name, candidate_values(name, conditions, rule)))
            .collect();
        if needs_route {
            // The path determines the route, so paths are generated for the routes that the conditions allow.
            let is_route_allowed =
                |route: &&str| by_name["route"].iter().all(|c| c.matches(Some(route)));
            let paths = policy.routes().filter(is_route_allowed).take(MAX_VALUES_PER_ATTRIBUTE);
            let paths: CandidateAttributeValues =
                paths.map(|route| Some(sample_path_for_template(route))).collect();
            let path_conditions = &by_name["path"];
            let is_path_allowed = |path: &Option<String>| {
                path_conditions.iter().all(|condition| condition.matches(path.as_deref()))
            };
            let named_paths = values.remove("path").unwrap_or_default();
            // A path in a condition of the rule may also have an allowed route, so such paths come first.
            let named_paths = named_paths.into_iter().filter(|_| !path_conditions.is_empty());
            let paths = named_paths.chain(paths.into_iter().filter(is_path_allowed)).collect();
            values.remove("route");
            values.insert("path", paths);
        } else if let Some(routes) = values.get("route").filter(|_| by_name["path"].is_empty()) {
            let paths =
                routes.iter().map(|route| route.as_deref().map(sample_path_for_template)).collect();
            values.insert("path", paths);
        }
        Self(values)
    }

    /// Adds an invented value for each attribute in `names` that has no values yet.
    fn with_invented_values(mut self, names: &[&'a str]) -> Self {
        for name in names {
            self.0.entry(name).or_insert_with(|| vec![Some(INVENTED_ATTRIBUTE_VALUE.to_owned())]);
        }
        self
    }

    /// Returns the attributes of sample requests. The first request has the first value of every attribute. Each
    /// further request differs from the first in the value of one attribute, or in a route and its path.
    fn generate_request_attributes(
        &self,
    ) -> impl Iterator<Item = BTreeMap<&'a str, String>> + use<'a> {
        let candidate_values = self.0.clone();
        let first: BTreeMap<&str, usize> = candidate_values.keys().map(|name| (*name, 0)).collect();
        let mut choices = vec![first.clone()];
        for (name, values) in &candidate_values {
            for index in 1..values.len().min(MAX_VALUES_PER_ATTRIBUTE) {
                let mut choice = first.clone();
                choice.insert(name, index);
                // A route and its path change together.
                let has_path = |paths: &CandidateAttributeValues| paths.len() > index;
                if *name == "route" && candidate_values.get("path").is_some_and(has_path) {
                    choice.insert("path", index);
                }
                choices.push(choice);
            }
        }
        choices.into_iter().map(move |choice| {
            let attribute = |(name, index): (&'a str, usize)| {
                Some((name, candidate_values.get(name)?.get(index)?.clone()?))
            };
            choice.into_iter().filter_map(attribute).collect()
        })
    }
}

/// Returns values of the attribute `name` that meet all conditions: first values that the conditions list, then typical
/// values. If there are none, returns one invented value, or `None`, which means that the attribute is absent.
fn candidate_values(
    name: &str,
    conditions: &[&Condition],
    rule: &Rule,
) -> CandidateAttributeValues {
    let is_allowed = |value: &Option<String>| {
        conditions.iter().all(|condition| condition.matches(value.as_deref()))
    };
    let positive = conditions.iter().filter(|condition| !condition.is_negated());
    let named = positive.flat_map(|condition| {
        let literals = condition.literals().iter().map(|literal| literal.to_string());
        let globs =
            condition.globs().iter().map(|glob| glob.text().replace('*', INVENTED_ATTRIBUTE_VALUE));
        let networks = condition.networks().iter().filter_map(|network| network.hosts().next());
        literals.chain(globs).chain(networks.map(|address| address.to_string()))
    });
    let named = named.map(Some).filter(is_allowed).take(MAX_VALUES_PER_ATTRIBUTE);
    let typical: Vec<&str> = match name {
        "ip" | "remote_address" | "masked_remote_address" => PUBLIC_ADDRESSES.to_vec(),
        "method" => HTTP_METHODS.to_vec(),
        _ => vec![],
    };
    let fallback: &[&str] = if is_address_attribute(name) { &FALLBACK_ADDRESSES } else { &[] };
    let to_value = |text: &&str| Some((*text).to_owned());
    let mut values: CandidateAttributeValues =
        named.chain(typical.iter().map(to_value).filter(is_allowed)).collect();
    if values.is_empty() {
        values.extend(fallback.iter().map(to_value).find(is_allowed));
    }
    if values.is_empty() {
        let invented = match name {
            "path" | "route" => format!("/{INVENTED_ATTRIBUTE_VALUE}"),
            "host" => format!("{INVENTED_ATTRIBUTE_VALUE}.example"),
            _ => INVENTED_ATTRIBUTE_VALUE.to_owned(),
        };
        let mut key_names = rule.per.entries().iter().flat_map(|entry| entry.names());
        let is_always_sent = ["path", "host"].contains(&name);
        let is_optional =
            !conditions.is_empty() && !is_always_sent && !key_names.any(|own| own == name);
        let (present, absent) = (Some(invented), None);
        let both = if is_optional { [absent, present] } else { [present, absent] };
        values.extend(both.into_iter().filter(is_allowed).take(1));
    }
    values
}

/// Returns a path that matches a route template: each parameter is replaced by an invented value.
fn sample_path_for_template(template: &str) -> String {
    let mut path = String::new();
    for (index, part) in template.split('{').enumerate() {
        let rest = part.split_once('}').filter(|_| index > 0).map(|(_, rest)| rest);
        path.push_str(
            &rest.map_or(part.to_owned(), |rest| format!("{INVENTED_ATTRIBUTE_VALUE}{rest}")),
        );
    }
    path
}
