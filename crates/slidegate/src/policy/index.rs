//! Finds the few rules that may apply, so that a decision does not look at every rule of its domain.
//!
//! Each rule hangs on one *anchor*: something that must be true of a request for the rule to apply, and
//! that is true of as few other rules as possible. Who has the request's attributes has the anchors that
//! they make true, by a look-up each, and so the rules to look at.

mod nested;

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;
use ipnet::IpNet;
use smallvec::SmallVec;

use nested::Nested;

use super::pattern::Condition;
use super::rule::Rule;
use super::{Attributes, WhenMissing};
use crate::network::parse_address;

/// So few rules are looked at as fast as they are looked up.
const FEW: usize = 4;

/// The keys come from the policy, so nobody can choose them to collide.
type Map<K, V> = HashMap<K, V, FixedState>;

/// The rules of one domain, by their anchors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Index {
    /// Rules without an anchor.
    everywhere: Vec<u32>,
    by_attribute: Map<Box<str>, ByValue>,
}

/// The rules whose anchor is an attribute, by what they want of it.
#[derive(Clone, Debug, Default)]
struct ByValue {
    /// They want it to be there.
    present: Vec<u32>,
    literals: Map<Box<str>, Vec<u32>>,
    /// What globs begin with.
    prefixes: Nested<Box<str>>,
    networks: Nested<IpNet>,
}

/// Something that is true of every request that a rule applies to.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Anchor<'p> {
    attribute: &'p str,
    wanted: Wanted<'p>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Wanted<'p> {
    Present,
    Literal(&'p str),
    Prefix(&'p str),
    Network(IpNet),
}

impl Index {
    /// Of rules with their places in the policy.
    pub(crate) fn new(rules: &[(u32, &Rule)]) -> Self {
        let mut index = Self::default();
        if rules.len() <= FEW {
            index.everywhere = rules.iter().map(|(nth, _)| *nth).collect();
            return index;
        }
        let choices: Vec<_> = rules.iter().map(|(_, rule)| choices(rule)).collect();
        let mut shared: HashMap<&Anchor<'_>, usize> = HashMap::new();
        for anchor in choices.iter().flatten().flatten() {
            *shared.entry(anchor).or_default() += 1;
        }
        for ((nth, _), choices) in rules.iter().zip(&choices) {
            let crowd = |anchors: &&Vec<Anchor<'_>>| anchors.iter().map(|a| shared[a]).max();
            match choices.iter().min_by_key(crowd) {
                Some(anchors) => anchors.iter().for_each(|anchor| index.add(anchor, *nth)),
                None => index.everywhere.push(*nth),
            }
        }
        for by_value in index.by_attribute.values_mut() {
            by_value.prefixes.settle::<str>();
            by_value.networks.settle::<IpNet>();
        }
        index
    }

    fn add(&mut self, anchor: &Anchor<'_>, rule: u32) {
        let by_value = self.by_attribute.entry(anchor.attribute.into()).or_default();
        match anchor.wanted {
            Wanted::Present => by_value.present.push(rule),
            Wanted::Literal(text) => by_value.literals.entry(text.into()).or_default().push(rule),
            Wanted::Prefix(text) => by_value.prefixes.add(text.into(), rule),
            Wanted::Network(network) => by_value.networks.add(network, rule),
        }
    }

    /// The rules that may apply, in the order of the policy.
    pub(crate) fn candidates(&self, attributes: &Attributes<'_, '_>) -> SmallVec<[u32; 16]> {
        let mut found = SmallVec::from_slice(&self.everywhere);
        if self.by_attribute.is_empty() {
            return found;
        }
        for (name, value) in attributes.iter() {
            if let Some(by_value) = self.by_attribute.get(name) {
                by_value.collect(value, &mut found);
            }
        }
        // One rule may have been found by several of its patterns.
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl ByValue {
    fn collect(&self, value: &str, found: &mut SmallVec<[u32; 16]>) {
        found.extend_from_slice(&self.present);
        found.extend_from_slice(self.literals.get(value).map_or(&[], |rules| rules));
        self.prefixes.around(value, |rules| found.extend_from_slice(rules));
        if let Some(address) = parse_address(value).filter(|_| !self.networks.is_empty()) {
            self.networks.around(&IpNet::from(address), |rules| found.extend_from_slice(rules));
        }
    }
}

/// What a rule could hang on: of each choice one anchor is true wherever the rule applies.
fn choices(rule: &Rule) -> Vec<Vec<Anchor<'_>>> {
    let wanted = rule.when().conditions().filter(|(_, condition)| !condition.is_negated());
    let of_when = wanted.map(|(attribute, condition)| {
        wants(condition).into_iter().map(|wanted| Anchor { attribute, wanted }).collect()
    });
    let skips = rule.when_missing() == WhenMissing::Skip && rule.always_counts();
    let per = rule.per().entries().iter().filter(|_| skips);
    let of_per = per.map(|alternatives| {
        alternatives
            .names()
            .map(|attribute| Anchor { attribute, wanted: Wanted::Present })
            .collect()
    });
    let names = rule.descriptor().into_iter().flatten();
    let of_descriptor = names.map(|attribute| vec![Anchor { attribute, wanted: Wanted::Present }]);
    of_when.chain(of_per).chain(of_descriptor).collect()
}

fn wants(condition: &Condition) -> Vec<Wanted<'_>> {
    let prefixes = || condition.globs().iter().map(|glob| glob.prefix());
    if prefixes().any(str::is_empty) {
        return vec![Wanted::Present];
    }
    let literals = condition.literals().iter().map(|literal| Wanted::Literal(literal));
    let networks = condition.networks().iter().map(|network| Wanted::Network(*network));
    literals.chain(prefixes().map(Wanted::Prefix)).chain(networks).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::policy::Policy;
    use crate::request::{Descriptor, Request};

    /// A `when` or nothing.
    fn when() -> impl Strategy<Value = String> {
        let value =
            "a|b|abc|a\\*|ab\\*|\\*c|10\\.0\\.0\\.0/8|10\\.1\\.0\\.0/16|10\\.1\\.0\\.1|::/16";
        let entry = ("[xyz]", proptest::collection::vec(value, 1..3), any::<bool>());
        proptest::collection::btree_map("[xyz]", entry, 0..3).prop_map(|entries| {
            let entry = |(name, (_, values, negated)): (&String, &(String, Vec<String>, bool))| {
                let values = values.iter().map(|v| format!("'{v}'")).collect::<Vec<_>>().join(", ");
                if *negated {
                    format!("{name}: {{ not: [{values}] }}")
                } else {
                    format!("{name}: [{values}]")
                }
            };
            match entries.iter().map(entry).collect::<Vec<_>>().join(", ") {
                none if none.is_empty() => none,
                some => format!("when: {{ {some} }},"),
            }
        })
    }

    proptest! {
        /// Each rule alone in a policy is looked at anyway.
        #[test]
        fn no_rule_that_applies_is_overlooked(
            whens in proptest::collection::vec((when(), "(\\[\\])|(\\[x\\])|(\\['y\\|z'\\])"), 5..12),
            values in proptest::array::uniform3("|a|b|ab|abc|10\\.1\\.0\\.[12]|10\\.2\\.0\\.1|::1"),
        ) {
            let rule = |(nth, (when, per)): (usize, &(String, String))| {
                format!("  - {{ name: r{nth}, {when} per: {per}, limits: [1/s] }}\n")
            };
            let rules: Vec<String> = whens.iter().enumerate().map(rule).collect();
            let all = Policy::from_yaml(&format!("rules:\n{}", rules.concat())).unwrap();
            let attributes = ["x", "y", "z"].into_iter().zip(values.iter().map(String::as_str));
            let attributes = attributes.filter(|(_, value)| !value.is_empty());
            let request = Request::new("default", Descriptor::new(attributes));
            let names = |policy: &Policy| -> Vec<String> {
                policy.apply(&request).matches().map(|one| one.rule().name().to_owned()).collect()
            };
            let alone = rules.iter().flat_map(|rule| {
                names(&Policy::from_yaml(&format!("rules:\n{rule}")).unwrap())
            });
            prop_assert_eq!(names(&all), alone.collect::<Vec<_>>());
        }
    }
}
