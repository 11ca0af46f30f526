//! Index of the rules of a domain, for a fast search for the few rules that may apply to a request.
//!
//! The index stores each rule under one or more *anchors*. An anchor is a condition on one attribute, and the rule
//! applies only to requests that meet at least one of its anchors. If several sets of anchors are possible for a rule,
//! the index selects the set that the rule shares with as few other rules as possible. One lookup for each attribute of
//! a request finds the anchors that the request meets. Only the rules of these anchors are checked.
//!
//! An anchor that is equivalent to a pattern of a condition in the `when` of the rule proves that the request meets the
//! condition. A candidate rule comes with this condition, so that it is not checked a second time.

mod nested;

use std::collections::HashMap;
use std::hash::Hash;

use ipnet::IpNet;
use smallvec::SmallVec;

use nested::NestedKeyMap;

use super::NameMap;
use super::attributes::DescriptorAttributes;
use super::mode::WhenMissing;
use super::pattern::Condition;
use super::rule::Rule;
use crate::network::parse_address;

/// If an index has at most this many attributes, each of them is looked up in the request. Otherwise, each attribute of
/// the request is looked up in the index.
const MAX_LOOKED_UP_ATTRIBUTES: usize = 4;

/// The largest domain, in rules, for which no index is built. Checking so few rules is as fast as a lookup.
const MAX_RULES_WITHOUT_INDEX: usize = 2;

/// The rules of one domain, grouped by anchor. An anchor is a condition on one attribute. A rule applies only to
/// requests that meet at least one of its anchors.
#[derive(Clone, Debug, Default)]
pub(crate) struct RuleIndex {
    /// The rules without an anchor. They are candidates for every request.
    unanchored: Vec<CandidateRule>,
    by_attribute: NameMap<AttributeIndex>,
}

/// A rule that may apply to a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CandidateRule {
    /// Index of the rule in the policy.
    pub(crate) rule_index: u32,
    /// Index of a condition in the `when` of the rule that the descriptor is known to meet, so that it is not checked
    /// again; `None` if no condition is known to be met.
    pub(crate) met_condition: Option<u16>,
}

/// The candidate rules of one descriptor. If they all come from one list of the index, as usual, this list is borrowed
/// and not copied.
#[derive(Debug, Default)]
pub(crate) struct CandidateRules<'c> {
    /// The first list of the index that was found. It contains all candidates if `merged` is empty.
    first: &'c [CandidateRule],
    /// A copy of the rules of all lists that were found. Empty if at most one list was found.
    merged: SmallVec<[CandidateRule; 16]>,
}

/// The rules whose anchors are conditions on the same attribute, grouped by the value that the condition requires.
#[derive(Clone, Debug, Default)]
struct AttributeIndex {
    /// Rules that require the attribute to be present, with any value.
    present: Vec<CandidateRule>,
    literals: NameMap<Vec<CandidateRule>>,
    /// Rules whose condition contains a glob, by the text of the glob before its first `*`.
    prefixes: NestedKeyMap<Box<str>, CandidateRule>,
    networks: NestedKeyMap<IpNet, CandidateRule>,
}

/// A condition on one attribute by which a rule is indexed. A rule applies only to requests that meet at least one of
/// its anchors.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct IndexedCondition<'p> {
    attribute: &'p str,
    condition: IndexedPattern<'p>,
}

#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum IndexedPattern<'p> {
    Present,
    Literal(&'p str),
    Prefix(&'p str),
    Network(IpNet),
}

/// An anchor of a rule. Every request that meets the anchor also meets the condition with the index `met_condition` in
/// the `when` of the rule. If `met_condition` is `None`, the anchor proves no condition.
struct IndexedRuleCondition<'p> {
    anchor: IndexedCondition<'p>,
    met_condition: Option<u16>,
}

impl RuleIndex {
    /// Creates an index of the rules of one domain. Each rule in `rules` comes with its index in the policy.
    pub(crate) fn new(rules: &[(u32, &Rule)]) -> Self {
        let mut index = Self::default();
        if rules.len() <= MAX_RULES_WITHOUT_INDEX {
            let unanchored = rules.iter().map(|(rule_index, _)| CandidateRule::new(*rule_index));
            index.unanchored = unanchored.collect();
            return index;
        }
        let choices: Vec<_> =
            rules.iter().map(|(_, rule)| possible_indexed_condition_sets(rule)).collect();
        let mut rules_per_anchor: HashMap<&IndexedCondition<'_>, usize> = HashMap::new();
        for IndexedRuleCondition { anchor, .. } in choices.iter().flatten().flatten() {
            *rules_per_anchor.entry(anchor).or_default() += 1;
        }
        for ((rule_index, _), choices) in rules.iter().zip(&choices) {
            let max_sharing_rules = |anchors: &&Vec<IndexedRuleCondition<'_>>| {
                anchors.iter().map(|of_rule| rules_per_anchor[&of_rule.anchor]).max()
            };
            match choices.iter().min_by_key(max_sharing_rules) {
                Some(anchors) => anchors.iter().for_each(|of_rule| {
                    let met_condition = of_rule.met_condition;
                    let rule = CandidateRule { rule_index: *rule_index, met_condition };
                    index.insert(&of_rule.anchor, rule);
                }),
                None => index.unanchored.push(CandidateRule::new(*rule_index)),
            }
        }
        for attribute in index.by_attribute.values_mut() {
            attribute.prefixes.sort_and_link_keys::<str>();
            attribute.networks.sort_and_link_keys::<IpNet>();
        }
        index
    }

    fn insert(&mut self, anchor: &IndexedCondition<'_>, rule: CandidateRule) {
        let index = self.by_attribute.entry(anchor.attribute.into()).or_default();
        match anchor.condition {
            IndexedPattern::Present => index.present.push(rule),
            IndexedPattern::Literal(text) => {
                index.literals.entry(text.into()).or_default().push(rule)
            }
            IndexedPattern::Prefix(text) => index.prefixes.insert(text.into(), rule),
            IndexedPattern::Network(network) => index.networks.insert(network, rule),
        }
    }

    /// Returns the rules that may apply to a descriptor with these attributes, in the order of the policy. `found` must
    /// be empty; it holds the rules if they are from several lists of the index.
    pub(crate) fn find_candidate_rules<'c>(
        &'c self,
        attributes: &DescriptorAttributes<'_, '_>,
        found: &'c mut CandidateRules<'c>,
    ) -> &'c [CandidateRule] {
        found.add(&self.unanchored);
        if self.by_attribute.len() <= MAX_LOOKED_UP_ATTRIBUTES {
            for (name, index) in &self.by_attribute {
                index.collect_matching_rules(attributes.get(name), found);
            }
        } else {
            for name in attributes.names() {
                if let Some(index) = self.by_attribute.get(name) {
                    index.collect_matching_rules(attributes.get(name), found);
                }
            }
        }
        found.sorted_rules()
    }
}

impl<'c> CandidateRules<'c> {
    /// Adds the rules of one list of the index.
    fn add(&mut self, rules: &'c [CandidateRule]) {
        if rules.is_empty() {
            return;
        }
        if self.first.is_empty() {
            self.first = rules;
        } else {
            self.add_to_merged_rules(rules);
        }
    }

    fn add_to_merged_rules(&mut self, rules: &[CandidateRule]) {
        if self.merged.is_empty() {
            self.merged.extend_from_slice(self.first);
        }
        self.merged.extend_from_slice(rules);
    }

    /// Returns the rules in the order of the policy, without duplicates.
    fn sorted_rules(&mut self) -> &[CandidateRule] {
        if self.merged.is_empty() { self.first } else { self.sort_merged_rules() }
    }

    /// Sorts the merged rules in the order of the policy, and removes duplicates. A rule occurs several times if the
    /// request meets several of its anchors.
    fn sort_merged_rules(&mut self) -> &[CandidateRule] {
        self.merged.sort_unstable_by_key(|candidate| candidate.rule_index);
        self.merged.dedup_by(|next, previous| {
            let is_same = next.rule_index == previous.rule_index;
            if is_same {
                // All anchors under which a rule is indexed result from one condition, so the duplicates cannot name
                // two conditions.
                previous.met_condition = previous.met_condition.or(next.met_condition);
            }
            is_same
        });
        &self.merged
    }
}

impl CandidateRule {
    /// Creates a candidate of which no condition is known to be met.
    fn new(rule_index: u32) -> Self {
        Self { rule_index, met_condition: None }
    }
}

impl AttributeIndex {
    /// Adds to `found` the rules with an anchor that the value of the attribute meets. If `value` is `None`, the
    /// attribute is absent, and no rule is added.
    fn collect_matching_rules<'c>(&'c self, value: Option<&str>, found: &mut CandidateRules<'c>) {
        let Some(value) = value else { return };
        found.add(&self.present);
        if let Some(rules) = self.literals.get(value) {
            found.add(rules);
        }
        self.prefixes.for_each_containing_key(value, |rules| found.add(rules));
        if !self.networks.is_empty()
            && let Some(address) = parse_address(value)
        {
            self.networks.for_each_containing_key(&IpNet::from(address), |rules| found.add(rules));
        }
    }
}

/// Returns the sets of anchors under which a rule can be indexed. Every request that the rule applies to meets at least
/// one anchor of each set, so one set is enough for the index.
fn possible_indexed_condition_sets(rule: &Rule) -> Vec<Vec<IndexedRuleCondition<'_>>> {
    let conditions = rule.when().conditions().enumerate();
    let conditions = conditions.filter(|(_, (_, condition))| !condition.is_negated());
    let when_choices = conditions.map(|(index, (attribute, condition))| {
        let of_rule = |(condition, is_exact): (_, bool)| IndexedRuleCondition {
            anchor: IndexedCondition { attribute, condition },
            met_condition: u16::try_from(index).ok().filter(|_| is_exact),
        };
        indexed_patterns(condition).into_iter().map(of_rule).collect()
    });
    let present = |attribute| IndexedRuleCondition {
        anchor: IndexedCondition { attribute, condition: IndexedPattern::Present },
        met_condition: None,
    };
    let per_is_required = rule.when_missing() == WhenMissing::Skip && rule.counts_every_request();
    let per = rule.per().entries().iter().filter(|_| per_is_required);
    let per_choices = per.map(|alternatives| alternatives.names().map(present).collect());
    let names = rule.descriptor().into_iter().flatten();
    let descriptor_choices = names.map(|attribute| vec![present(attribute)]);
    let mut choices: Vec<_> = when_choices.chain(per_choices).chain(descriptor_choices).collect();
    choices.iter_mut().for_each(merge_equal_indexed_conditions);
    choices
}

/// Merges equal anchors of a rule, so that each list of the index contains the rule at most once.
fn merge_equal_indexed_conditions(anchors: &mut Vec<IndexedRuleCondition<'_>>) {
    anchors.sort_by(|left, right| left.anchor.cmp(&right.anchor));
    anchors.dedup_by(|next, previous| {
        let is_same = next.anchor == previous.anchor;
        if is_same {
            previous.met_condition = previous.met_condition.or(next.met_condition);
        }
        is_same
    });
}

/// Returns the anchors of a condition, each with a flag that is `true` if the anchor is exact: every value that meets
/// the anchor also meets the condition.
fn indexed_patterns(condition: &Condition) -> Vec<(IndexedPattern<'_>, bool)> {
    let globs = condition.globs();
    if globs.iter().any(|glob| glob.prefix().is_empty()) {
        return vec![(IndexedPattern::Present, condition.matches_every_value())];
    }
    let literals = condition.literals().iter().map(|literal| IndexedPattern::Literal(literal));
    let networks = condition.networks().iter().map(|network| IndexedPattern::Network(*network));
    let prefixes =
        globs.iter().map(|glob| (IndexedPattern::Prefix(glob.prefix()), glob.is_prefix()));
    literals.chain(networks).map(|anchor| (anchor, true)).chain(prefixes).collect()
}
