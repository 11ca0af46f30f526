//! Requests that a client could send, to be held against a policy.

use std::collections::BTreeMap;

use super::is_address;
use crate::policy::Policy;
use crate::policy::pattern::Condition;
use crate::policy::rule::{Rule, When};
use crate::request::{Descriptor, Request};

/// A value that no policy has.
const INVENTED: &str = "x7f3c0a9d1e";

/// Public addresses that no documentation uses.
const CLIENTS: [&str; 2] = ["45.77.61.5", "2a0d:77:61::5"];

/// Addresses for rules that are only for networks without those.
const OTHER_CLIENTS: [&str; 3] = ["203.0.113.77", "10.77.61.5", "fd77:61::5"];

const METHODS: [&str; 4] = ["GET", "POST", "PUT", "DELETE"];

/// Values of one attribute that are tried.
pub(super) const MAX_VALUES: usize = 16;

/// Overrides of a rule of which each is tried.
const MAX_OVERRIDES: usize = 16;

/// The attributes of one request.
pub(super) struct Witness<'a> {
    domain: &'a str,
    attributes: BTreeMap<&'a str, String>,
}

/// Values of an attribute; `None` if it is absent.
type Values = Vec<Option<String>>;

impl Witness<'_> {
    /// Calls a function with the request.
    pub(super) fn with<T>(&self, call: impl FnOnce(&Request<'_>) -> T) -> T {
        let attributes = self.attributes.iter().map(|(name, value)| (*name, value.as_str()));
        call(&Request::new(self.domain, Descriptor::new(attributes)))
    }
}

/// Requests that a rule may apply to and count by an invented value of an attribute. It need not apply to all of them.
///
/// A client may send all that anything counts by, or none of it: `sent` are the names of that.
pub(super) fn requests<'a>(
    policy: &'a Policy,
    rule: &'a Rule,
    sent: &'a [&'a str],
    invented: &'a str,
) -> impl Iterator<Item = Witness<'a>> + use<'a> {
    let overrides = rule.overrides.iter().take(MAX_OVERRIDES).map(|other| Some(&other.when));
    [None].into_iter().chain(overrides).flat_map(move |other| {
        let space = Space::new(policy, rule, other, invented);
        let few = space.points();
        let many = space.with(sent).points();
        few.chain(many).map(|attributes| Witness { domain: &rule.domain, attributes })
    })
}

/// The values that each attribute of a request may have.
#[derive(Clone)]
struct Space<'a>(BTreeMap<&'a str, Values>);

impl<'a> Space<'a> {
    fn new(policy: &Policy, rule: &'a Rule, other: Option<&'a When>, invented: &'a str) -> Self {
        let mut wanted: BTreeMap<&str, Vec<&Condition>> = BTreeMap::new();
        let conditions = rule.when.0.iter().chain(other.into_iter().flat_map(|when| &when.0));
        for (name, condition) in conditions {
            wanted.entry(name).or_default().push(condition);
        }
        for name in ["ip", "remote_address", "masked_remote_address", "method", "path", "host"] {
            wanted.entry(name).or_default();
        }
        // Each entry of `per` needs a value; of the one that counts what is invented, the first that is present.
        for entry in rule.per.entries() {
            let mut names = entry.names();
            let needed = match entry.names().any(|name| name == invented) {
                true => Some(invented),
                false if entry.names().any(|name| wanted.contains_key(name)) => None,
                false => names.next(),
            };
            wanted.extend(needed.map(|name| (name, wanted.get(name).cloned().unwrap_or_default())));
        }
        let needs_route = wanted.contains_key("route") && !policy.routes.is_empty();
        let mut values: BTreeMap<&str, Values> =
            wanted.iter().map(|(name, wanted)| (*name, values(name, wanted, rule))).collect();
        if needs_route {
            // The path gives it.
            let holds =
                |route: &&str| wanted["route"].iter().all(|wanted| wanted.holds(Some(route)));
            let paths = policy.routes().filter(holds).take(MAX_VALUES);
            let paths: Values = paths.map(|route| Some(path_of(route))).collect();
            let wanted = &wanted["path"];
            let holds = |path: &Option<String>| wanted.iter().all(|w| w.holds(path.as_deref()));
            let own = values.remove("path").unwrap_or_default();
            // A path that the rule itself names may be of the route, too.
            let own = own.into_iter().filter(|_| !wanted.is_empty());
            let paths = own.chain(paths.into_iter().filter(holds)).collect();
            values.remove("route");
            values.insert("path", paths);
        } else if let Some(routes) = values.get("route").filter(|_| wanted["path"].is_empty()) {
            let paths = routes.iter().map(|route| route.as_deref().map(path_of)).collect();
            values.insert("path", paths);
        }
        Self(values)
    }

    /// The same with more attributes that are invented.
    fn with(mut self, names: &[&'a str]) -> Self {
        for name in names {
            self.0.entry(name).or_insert_with(|| vec![Some(INVENTED.to_owned())]);
        }
        self
    }

    /// The first value of every attribute, and then each other value of one of them.
    fn points(&self) -> impl Iterator<Item = BTreeMap<&'a str, String>> + use<'a> {
        let space = self.0.clone();
        let first: BTreeMap<&str, usize> = space.keys().map(|name| (*name, 0)).collect();
        let mut choices = vec![first.clone()];
        for (name, values) in &space {
            for nth in 1..values.len().min(MAX_VALUES) {
                let mut other = first.clone();
                other.insert(name, nth);
                // A route goes with its path.
                if *name == "route" && space.get("path").is_some_and(|paths| paths.len() > nth) {
                    other.insert("path", nth);
                }
                choices.push(other);
            }
        }
        choices.into_iter().map(move |choice| {
            let value =
                |(name, nth): (&'a str, usize)| Some((name, space.get(name)?.get(nth)?.clone()?));
            choice.into_iter().filter_map(value).collect()
        })
    }
}

/// Values of an attribute that meet all conditions.
fn values(name: &str, wanted: &[&Condition], rule: &Rule) -> Values {
    let holds = |value: &Option<String>| wanted.iter().all(|w| w.holds(value.as_deref()));
    let named = wanted.iter().filter(|wanted| !wanted.is_negated()).flat_map(|wanted| {
        let literals = wanted.literals().iter().map(|literal| literal.to_string());
        let globs = wanted.globs().iter().map(|glob| glob.text().replace('*', INVENTED));
        let networks = wanted.networks().iter().filter_map(|network| network.hosts().next());
        literals.chain(globs).chain(networks.map(|address| address.to_string()))
    });
    let named = named.map(Some).filter(holds).take(MAX_VALUES);
    let usual: Vec<&str> = match name {
        "ip" | "remote_address" | "masked_remote_address" => CLIENTS.to_vec(),
        "method" => METHODS.to_vec(),
        _ => vec![],
    };
    let spare: &[&str] = if is_address(name) { &OTHER_CLIENTS } else { &[] };
    let text = |text: &&str| Some((*text).to_owned());
    let mut values: Values = named.chain(usual.iter().map(text).filter(holds)).collect();
    if values.is_empty() {
        values.extend(spare.iter().map(text).find(holds));
    }
    if values.is_empty() {
        let invented = match name {
            "path" | "route" => format!("/{INVENTED}"),
            "host" => format!("{INVENTED}.example"),
            _ => INVENTED.to_owned(),
        };
        let mut names = rule.per.entries().iter().flat_map(|entry| entry.names());
        let is_usual = ["path", "host"].contains(&name);
        let is_optional = !wanted.is_empty() && !is_usual && !names.any(|own| own == name);
        let (present, absent) = (Some(invented), None);
        let both = if is_optional { [absent, present] } else { [present, absent] };
        values.extend(both.into_iter().filter(holds).take(1));
    }
    values
}

/// A path that a template is for.
fn path_of(template: &str) -> String {
    let mut path = String::new();
    for (nth, part) in template.split('{').enumerate() {
        let rest = part.split_once('}').filter(|_| nth > 0).map(|(_, rest)| rest);
        path.push_str(&rest.map_or(part.to_owned(), |rest| format!("{INVENTED}{rest}")));
    }
    path
}
