//! Comparison of the names of a layer with the names of its policy. A rule that needs an attribute that no extractor
//! provides applies to no request, so a misspelt name means no limit.
//!
//! An extractor that no rule uses is no problem on its own: a policy changes without a build.

use std::collections::BTreeMap;

use slidegate::Policy;
use slidegate::policy::{Condition, DomainNames, Mode, Rule, WhenMissing, most_similar_word};
use thiserror::Error;

use crate::costs::CostSource;
use crate::extract::Attributes;
use crate::request_options::RequestOptions;

const RULE_NEVER_APPLIES: &str = "the rule never applies";
const DENIES_EACH_REQUEST: &str = "the rule denies each request";
const ATTRIBUTE_NEVER_COUNTED: &str = "the rule never counts by it";
const OVERRIDE_NEVER_APPLIES: &str = "an override of the rule never applies";
const EACH_REQUEST_MEETS_CONDITION: &str = "each request meets the condition `not`";

/// The names of a layer that do not fit the policy, so that a limit never applies. Returned by
/// [`RateLimitLayer::try_new`](crate::RateLimitLayer::try_new) and
/// [`check_names`](crate::RateLimitLayer::check_names).
///
/// The [`Display`](std::fmt::Display) form has one line for each problem. It lists the names that exist, and suggests a
/// similar one.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.join("\n"))]
pub struct NamesError(Vec<String>);

impl NamesError {
    /// Returns the problems, each as one line.
    pub fn problems(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|problem| &**problem)
    }

    /// Returns an error with these problems, if there are any.
    pub(crate) fn from_problems(problems: Vec<String>) -> Result<(), Self> {
        if problems.is_empty() { Ok(()) } else { Err(Self(problems)) }
    }

    /// Logs a warning for each problem.
    pub(crate) fn log(&self) {
        for problem in self.problems() {
            tracing::warn!(problem, "a name of a rate limit layer does not fit its policy");
        }
    }
}

/// Compares the names of a layer with the names of a policy.
///
/// # Errors
/// If a rule never applies, or a cost has no effect, because a name does not exist.
pub fn check_names(
    policy: &Policy,
    attributes: &Attributes,
    options: &RequestOptions,
) -> Result<(), NamesError> {
    let domain = attributes.policy_domain();
    let domains: Vec<&str> = policy.domains().collect();
    let Some(names) = policy.domain_names(domain) else {
        let remedy = format_remedy("domains", &domains, most_similar_name(domain, &domains));
        let problem =
            format!("domain `{domain}`: no rule has this domain, so no limit applies{remedy}");
        // A policy without any rule is no problem, because no name is misspelt.
        return NamesError::from_problems(if domains.is_empty() { vec![] } else { vec![problem] });
    };
    let extractors: Vec<&str> = attributes.names().collect();
    let unused = extractors.iter().copied().filter(|name| !names.uses_attribute(name)).collect();
    let checker = AttributeChecker { policy, extractors, unused };
    let mut problems = checker.find_problems(domain);
    problems.extend(find_cost_problems(names, attributes, options));
    NamesError::from_problems(problems)
}

/// Returns the extractors without whose values a rule does not apply to a request, or denies it, as
/// [bits](Attributes::attribute_bit). Of alternatives such as `user|ip`, only the last one that is provided is needed.
pub fn find_needed_extractors(policy: &Policy, attributes: &Attributes, domain: &str) -> u64 {
    let bits_of_name = |name: &str| {
        let own = (0..).zip(attributes.names()).filter(|(_, own)| *own == name);
        own.fold(0, |bits, (index, _)| bits | Attributes::attribute_bit(index))
    };
    let mut needed = 0;
    for rule in enforced_rules(policy, domain) {
        for entry in rule.per().entries() {
            needed |= entry.names().map(bits_of_name).filter(|bits| *bits != 0).last().unwrap_or(0);
        }
        let conditions = rule.when().conditions().filter(|(_, condition)| !condition.is_negated());
        needed |= conditions.fold(0, |bits, (name, _)| bits | bits_of_name(name));
    }
    needed
}

/// Returns the rules of a domain that may apply to a request of a layer: not rules whose mode is always `off`, nor
/// rules for limits that a request states.
fn enforced_rules<'p>(policy: &'p Policy, domain: &str) -> impl Iterator<Item = &'p Rule> {
    let is_off = |rule: &Rule| {
        let overrides = rule.overrides().iter().map(|own| own.settings());
        overrides.chain([rule.settings()]).all(|settings| settings.mode() == Mode::Off)
    };
    let rules = policy.rules().iter().filter(move |rule| *rule.domain() == *domain);
    rules.filter(move |rule| !rule.is_for_requested_limits() && !is_off(rule))
}

/// A search for attributes that rules use and no extractor provides.
struct AttributeChecker<'c> {
    policy: &'c Policy,
    /// The names of all extractors.
    extractors: Vec<&'c str>,
    /// The names of the extractors that no rule uses.
    unused: Vec<&'c str>,
}

/// The rules that use an attribute that no extractor provides, and the consequence for the first of them.
type UnprovidedAttributeUses<'c> = (Vec<&'c str>, &'static str);

impl<'c> AttributeChecker<'c> {
    /// Returns one problem for each attribute that rules use and no extractor provides.
    fn find_problems(&self, domain: &str) -> Vec<String> {
        let mut unprovided: BTreeMap<String, UnprovidedAttributeUses<'_>> = BTreeMap::new();
        for rule in enforced_rules(self.policy, domain) {
            for (name, effect) in self.find_unprovided_attributes(rule) {
                let (rules, _) = unprovided.entry(name).or_insert((Vec::new(), effect));
                if rules.last() != Some(&rule.name()) {
                    rules.push(rule.name());
                }
            }
        }
        unprovided.iter().map(|(name, uses)| self.format_problem(name, uses)).collect()
    }

    fn format_problem(&self, name: &str, (rules, effect): &UnprovidedAttributeUses<'_>) -> String {
        let rule = rules.first().unwrap_or(&"");
        let others = match rules.len() {
            0 | 1 => String::new(),
            count => format!(" and {} more", count - 1),
        };
        let names = || name.split('|').filter(|name| !self.has_extractor(name));
        let similar = names()
            .find_map(|name| most_similar_name(name, &self.unused))
            .or_else(|| names().find_map(|name| most_similar_name(name, &self.extractors)));
        let remedy = format_remedy("extractors", &self.extractors, similar);
        let unused = match &*self.unused {
            [] => String::new(),
            unused => format!("; no rule uses {}", format_list(unused)),
        };
        format!(
            "rule `{rule}`{others}: no extractor provides `{name}`, so {effect}{remedy}{unused}"
        )
    }

    /// Returns the attributes that a rule uses and no extractor provides, each with the consequence.
    fn find_unprovided_attributes(&self, rule: &'c Rule) -> Vec<(String, &'static str)> {
        let entries = rule.per().entries().iter().filter_map(|entry| {
            let is_any_provided = entry.names().any(|name| self.has_extractor(name));
            let effect = match rule.when_missing() {
                _ if is_any_provided && entry.names().any(|name| self.is_misspelt(name)) => {
                    ATTRIBUTE_NEVER_COUNTED
                }
                _ if is_any_provided => return None,
                WhenMissing::Skip => RULE_NEVER_APPLIES,
                WhenMissing::Deny => DENIES_EACH_REQUEST,
            };
            Some((entry.to_string(), effect))
        });
        let own = rule
            .when()
            .conditions()
            .map(|condition| condition_name_and_effect(condition, RULE_NEVER_APPLIES));
        let of_overrides = rule.overrides().iter().flat_map(|other| other.when().conditions());
        let of_overrides = of_overrides
            .map(|condition| condition_name_and_effect(condition, OVERRIDE_NEVER_APPLIES));
        let of_descriptor =
            rule.descriptor().into_iter().flatten().map(|name| (name, RULE_NEVER_APPLIES));
        let names = own.chain(of_overrides).chain(of_descriptor);
        let names = names.filter(|(name, _)| !self.has_extractor(name));
        entries.chain(names.map(|(name, effect)| (name.to_owned(), effect))).collect()
    }

    fn has_extractor(&self, name: &str) -> bool {
        let derives_route =
            || self.extractors.contains(&"path") && self.policy.routes().next().is_some();
        self.extractors.contains(&name) || (name == "route" && derives_route())
    }

    /// Returns whether an alternative of `per` is probably misspelt: no extractor provides it, but an extractor that no
    /// rule uses has a similar name. An alternative without a similar extractor may belong to another service.
    fn is_misspelt(&self, name: &str) -> bool {
        !self.has_extractor(name) && most_similar_name(name, &self.unused).is_some()
    }
}

/// Returns the name of a condition with the consequence if no request has the attribute.
fn condition_name_and_effect<'r>(
    (name, condition): (&'r str, &Condition),
    effect_if_unmet: &'static str,
) -> (&'r str, &'static str) {
    (name, if condition.is_negated() { EACH_REQUEST_MEETS_CONDITION } else { effect_if_unmet })
}

/// Returns the costs of a layer that no rule of its domain charges.
fn find_cost_problems(
    names: &DomainNames,
    attributes: &Attributes,
    options: &RequestOptions,
) -> Vec<String> {
    let costs: Vec<&str> = names.costs().collect();
    let unknown = attributes.cost_names().filter(|cost| !names.has_cost(cost));
    let mut problems: Vec<String> = unknown
        .map(|cost| {
            let remedy = format_remedy("costs", &costs, most_similar_name(cost, &costs));
            format!("cost `{cost}`: no rule charges it, so it has no effect{remedy}")
        })
        .collect();
    if !matches!(options.cost, CostSource::One) && !names.counts_request_cost() {
        let remedy = format_remedy("costs", &costs, None);
        problems.push(format!(
            "no rule charges the cost of a request without a name, so it has no effect{remedy}"
        ));
    }
    problems
}

fn most_similar_name<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    most_similar_word(word, known.iter().copied())
}

/// Formats the end of a problem: a suggestion, if there is one, and the names that exist.
fn format_remedy(kind: &str, known: &[&str], suggestion: Option<&str>) -> String {
    match (suggestion, known) {
        (_, []) => format!("; there are no {kind}"),
        (None, _) => format!("; the {kind} are {}", format_list(known)),
        (Some(similar), _) => {
            format!("; did you mean `{similar}`? the {kind} are {}", format_list(known))
        }
    }
}

fn format_list(names: &[&str]) -> String {
    let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
    quoted.join(", ")
}
