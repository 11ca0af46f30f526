//! Index of the rules of a domain, for a fast search for the few rules that may apply to a request.
//!
//! The index stores each rule under one or more *anchors*. An anchor is a condition on one attribute, and the rule
//! applies only to requests that meet at least one of its anchors. If several sets of anchors are possible for a rule,
//! the index selects the set that the rule shares with as few other rules as possible. One lookup for each attribute of
//! a request finds the anchors that the request meets. Only the rules of these anchors are checked completely.

mod nested;

use std::collections::HashMap;
use std::hash::Hash;

use foldhash::fast::FixedState;
use ipnet::IpNet;
use smallvec::SmallVec;

use nested::NestedKeyMap;

use super::attributes::DescriptorAttributes;
use super::mode::WhenMissing;
use super::pattern::Condition;
use super::rule::Rule;
use crate::network::parse_address;

/// The largest domain, in rules, for which no index is built. Checking so few rules is as fast as a lookup.
const MAX_RULES_WITHOUT_INDEX: usize = 4;

/// A hash map whose hash function has a fixed seed. The keys come from the policy, so a client cannot choose keys that
/// collide.
type FixedSeedHashMap<K, V> = HashMap<K, V, FixedState>;

/// The rules of one domain, grouped by anchor. An anchor is a condition on one attribute. A rule applies only to
/// requests that meet at least one of its anchors.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleIndex {
    /// Indexes of the rules without an anchor. They are candidates for every request.
    unanchored: Vec<u32>,
    by_attribute: FixedSeedHashMap<Box<str>, AttributeIndex>,
}

/// The rules whose anchors are conditions on the same attribute, grouped by the value that the condition requires.
#[derive(Clone, Debug, Default)]
struct AttributeIndex {
    /// Rules that require the attribute to be present, with any value.
    present: Vec<u32>,
    literals: FixedSeedHashMap<Box<str>, Vec<u32>>,
    /// Rules whose condition contains a glob, by the text of the glob before its first `*`.
    prefixes: NestedKeyMap<Box<str>>,
    networks: NestedKeyMap<IpNet>,
}

/// A condition on one attribute by which a rule is indexed. A rule applies only to requests that meet at least one of
/// its anchors.
#[derive(Clone, PartialEq, Eq, Hash)]
struct RuleAnchor<'p> {
    attribute: &'p str,
    condition: AnchorCondition<'p>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum AnchorCondition<'p> {
    Present,
    Literal(&'p str),
    Prefix(&'p str),
    Network(IpNet),
}

impl RuleIndex {
    /// Creates an index of the rules of one domain. Each rule in `rules` comes with its index in the policy.
    pub(crate) fn new(rules: &[(u32, &Rule)]) -> Self {
        let mut index = Self::default();
        if rules.len() <= MAX_RULES_WITHOUT_INDEX {
            index.unanchored = rules.iter().map(|(rule_index, _)| *rule_index).collect();
            return index;
        }
        let choices: Vec<_> = rules.iter().map(|(_, rule)| possible_anchor_sets(rule)).collect();
        let mut rules_per_anchor: HashMap<&RuleAnchor<'_>, usize> = HashMap::new();
        for anchor in choices.iter().flatten().flatten() {
            *rules_per_anchor.entry(anchor).or_default() += 1;
        }
        for ((rule_index, _), choices) in rules.iter().zip(&choices) {
            let max_sharing_rules = |anchors: &&Vec<RuleAnchor<'_>>| {
                anchors.iter().map(|anchor| rules_per_anchor[anchor]).max()
            };
            match choices.iter().min_by_key(max_sharing_rules) {
                Some(anchors) => {
                    anchors.iter().for_each(|anchor| index.insert(anchor, *rule_index))
                }
                None => index.unanchored.push(*rule_index),
            }
        }
        for index in index.by_attribute.values_mut() {
            index.prefixes.sort_and_link_keys::<str>();
            index.networks.sort_and_link_keys::<IpNet>();
        }
        index
    }

    fn insert(&mut self, anchor: &RuleAnchor<'_>, rule: u32) {
        let index = self.by_attribute.entry(anchor.attribute.into()).or_default();
        match anchor.condition {
            AnchorCondition::Present => index.present.push(rule),
            AnchorCondition::Literal(text) => {
                index.literals.entry(text.into()).or_default().push(rule)
            }
            AnchorCondition::Prefix(text) => index.prefixes.insert(text.into(), rule),
            AnchorCondition::Network(network) => index.networks.insert(network, rule),
        }
    }

    /// Returns the indexes of the rules that may apply to a descriptor with these attributes, in the order of the
    /// policy.
    pub(crate) fn candidate_rules(
        &self,
        attributes: &DescriptorAttributes<'_, '_>,
    ) -> SmallVec<[u32; 16]> {
        let mut found = SmallVec::from_slice(&self.unanchored);
        if self.by_attribute.is_empty() {
            return found;
        }
        for (name, value) in attributes.iter() {
            if let Some(index) = self.by_attribute.get(name) {
                index.collect_matching_rules(value, &mut found);
            }
        }
        // A rule is found several times if several of its patterns match.
        found.sort_unstable();
        found.dedup();
        found
    }
}

impl AttributeIndex {
    fn collect_matching_rules(&self, value: &str, found: &mut SmallVec<[u32; 16]>) {
        found.extend_from_slice(&self.present);
        found.extend_from_slice(self.literals.get(value).map_or(&[], |rules| rules));
        self.prefixes.for_each_containing_key(value, |rules| found.extend_from_slice(rules));
        if let Some(address) = parse_address(value).filter(|_| !self.networks.is_empty()) {
            self.networks.for_each_containing_key(&IpNet::from(address), |rules| {
                found.extend_from_slice(rules)
            });
        }
    }
}

/// Returns the sets of anchors under which a rule can be indexed. Every request that the rule applies to meets at least
/// one anchor of each set, so one set is enough for the index.
fn possible_anchor_sets(rule: &Rule) -> Vec<Vec<RuleAnchor<'_>>> {
    let conditions = rule.when().conditions().filter(|(_, condition)| !condition.is_negated());
    let when_choices = conditions.map(|(attribute, condition)| {
        anchor_conditions(condition)
            .into_iter()
            .map(|condition| RuleAnchor { attribute, condition })
            .collect()
    });
    let per_is_required = rule.when_missing() == WhenMissing::Skip && rule.always_counts();
    let per = rule.per().entries().iter().filter(|_| per_is_required);
    let per_choices = per.map(|alternatives| {
        alternatives
            .names()
            .map(|attribute| RuleAnchor { attribute, condition: AnchorCondition::Present })
            .collect()
    });
    let names = rule.descriptor().into_iter().flatten();
    let descriptor_choices =
        names.map(|attribute| vec![RuleAnchor { attribute, condition: AnchorCondition::Present }]);
    when_choices.chain(per_choices).chain(descriptor_choices).collect()
}

fn anchor_conditions(condition: &Condition) -> Vec<AnchorCondition<'_>> {
    let prefixes = || condition.globs().iter().map(|glob| glob.prefix());
    if prefixes().any(str::is_empty) {
        return vec![AnchorCondition::Present];
    }
    let literals = condition.literals().iter().map(|literal| AnchorCondition::Literal(literal));
    let networks = condition.networks().iter().map(|network| AnchorCondition::Network(*network));
    literals.chain(prefixes().map(AnchorCondition::Prefix)).chain(networks).collect()
}
