//! Converts descriptors to rules: one rule for each limit. A rule applies to exactly the requests for which Envoy's
//! reference rate limit server would use the limit.
//!
//! The reference server walks down a tree of descriptors, one level for each entry of a request's descriptor, and never
//! backtracks. On each level, an exact value takes precedence over wildcards, an earlier wildcard over a later one, and
//! both over a key without a value. The rules of a policy are independent of each other, so each rule lists the values
//! for which another descriptor takes precedence, and is off for them.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::path::Path;

use serde_saphyr::{FlowMap, FlowSeq};
use slidegate::{Algorithm, Limit, Quota};

use super::converted_rule::{
    ClockAlignedQuota, Conditions, ConvertedCondition, ConvertedLimits, ConvertedOverride,
    ConvertedRule,
};
use super::finding::Findings;
use super::parse::{ConfigDescriptor, ConfigDomain, ConfigLimit, ConfigQuota};
use super::rule_names::{REQUESTED_LIMITS_RULE_NAME, RuleNames};
use super::wildcard;
use crate::policy::LimitSupportCheck;

/// Options of a conversion. They apply to every limit of the policy.
#[derive(Clone, Copy)]
pub struct ConversionOptions {
    pub algorithm: Algorithm,
    /// A function that rejects the limits that the store does not support.
    pub supports: LimitSupportCheck,
}

/// The maximum number of excluded values in all rules of a domain, about the maximum that a policy may contain. A rule
/// is off for its excluded values.
const MAX_EXCLUDED_VALUES_PER_DOMAIN: usize = 500_000;

/// The maximum length of the key of a descriptor, in bytes.
const MAX_DESCRIPTOR_KEY_BYTES: usize = 128;

/// A set of values of an attribute: exact values and wildcards.
#[derive(Clone, Debug, Default)]
struct ValueSet {
    literals: Vec<String>,
    wildcards: Vec<String>,
}

/// Converts the descriptors of a domain to rules.
pub fn convert_domain(
    path: &Path,
    domain: &ConfigDomain,
    options: ConversionOptions,
    findings: &mut Findings,
) -> Vec<ConvertedRule> {
    let mut collector =
        LimitCollector { path, options, findings, limit_paths: Vec::new(), excluded_count: 0 };
    collector.collect_limits(&domain.descriptors, &mut Vec::new());
    let limit_paths = collector.limit_paths;
    let mut names = RuleNames::new();
    names.assign(limit_paths.iter().map(|limit| (&*limit.config.name, &*limit.path_text)));
    let mut rules_by_limit_name: HashMap<&str, Vec<&str>> = HashMap::new();
    for (limit, rule_name) in limit_paths.iter().zip(names.assigned()) {
        // Unlimited descriptors are left out, because they cannot be replaced.
        if limit.config.quota.is_some() && !limit.config.name.is_empty() {
            rules_by_limit_name.entry(&limit.config.name).or_default().push(rule_name);
        }
    }
    let rules = limit_paths.iter().zip(names.assigned()).map(|(limit, rule_name)| {
        let mut replaces = BTreeSet::new();
        for (position, replaced) in &limit.config.replaces {
            match rules_by_limit_name.get(&**replaced) {
                Some(rules) => replaces.extend(rules.iter().map(|rule| (*rule).to_owned())),
                None => {
                    let message = format_args!(
                        "this entry of `replaces` has no effect: no limit of the domain is named `{replaced}`"
                    );
                    findings.push_note(path, *position, message);
                }
            }
        }
        limit.new_rule(rule_name, &domain.name, replaces.into_iter().collect())
    });
    let requested = ConvertedRule {
        limits: ConvertedLimits::Word("requested"),
        ..ConvertedRule::new(REQUESTED_LIMITS_RULE_NAME, &domain.name)
    };
    rules.chain([requested]).collect()
}

/// One descriptor on the path from the root of the descriptor tree to a limit.
#[derive(Clone, Debug)]
struct DescriptorPathStep<'e> {
    /// The name of the attribute for the descriptor's key: the key itself, or `key#n` for the n-th descriptor with this
    /// key.
    name: String,
    descriptor: &'e ConfigDescriptor,
    /// The values that match this descriptor, but for which another descriptor takes precedence.
    excluded: ValueSet,
}

/// A limit, and the path of descriptors that leads to it.
struct LimitWithDescriptorPath<'e> {
    config: &'e ConfigLimit,
    steps: Vec<DescriptorPathStep<'e>>,
    path_text: String,
    limits: ConvertedLimits,
    mode: Option<&'static str>,
}

/// A collector of the limits of a domain, with the path of descriptors to each limit.
struct LimitCollector<'f, 'e> {
    path: &'f Path,
    options: ConversionOptions,
    findings: &'f mut Findings,
    limit_paths: Vec<LimitWithDescriptorPath<'e>>,
    /// The number of excluded values in all rules so far. A rule is off for its excluded values.
    excluded_count: usize,
}

impl<'e> LimitCollector<'_, 'e> {
    /// Collects the limits of a list of descriptors, and of all descriptors nested in them. `parents` is the path to
    /// the list.
    fn collect_limits(
        &mut self,
        siblings: &'e [ConfigDescriptor],
        parents: &mut Vec<DescriptorPathStep<'e>>,
    ) {
        for (index, descriptor) in siblings.iter().enumerate() {
            if !self.check_descriptor_is_expressible(descriptor) {
                continue;
            }
            let name = attribute_name_for_key(&descriptor.key, parents);
            let excluded = values_taken_by_siblings(siblings, index);
            parents.push(DescriptorPathStep { name, descriptor, excluded });
            if let Some(limit) = &descriptor.limit {
                self.add_limit(limit, parents);
            }
            self.collect_limits(&descriptor.descriptors, parents);
            parents.pop();
        }
    }

    fn add_limit(&mut self, config: &'e ConfigLimit, steps: &[DescriptorPathStep<'e>]) {
        let Some(DescriptorPathStep { descriptor, .. }) = steps.last() else { return };
        let mode = match (descriptor.is_shadow, descriptor.quota_mode_position) {
            (false, None) => None,
            (false, Some(_)) => Some("jointly"),
            (true, None) => Some("observe"),
            (true, Some(position)) => {
                let message = "cannot be converted: with both `quota_mode` and `shadow_mode`, the reference server does not enforce any quota on a request with this descriptor; remove one of them";
                self.findings.push_error(self.path, position, message);
                return;
            }
        };
        let Some(limits) = self.convert_limit_for_policy(config) else { return };
        let previous_count = self.excluded_count;
        self.excluded_count += steps.iter().map(|step| step.excluded.value_count()).sum::<usize>();
        if self.excluded_count > MAX_EXCLUDED_VALUES_PER_DOMAIN {
            if previous_count <= MAX_EXCLUDED_VALUES_PER_DOMAIN {
                let message = format_args!(
                    "cannot be converted: the rules of this file would have more than {MAX_EXCLUDED_VALUES_PER_DOMAIN} exceptions for values that other descriptors match first; use fewer values"
                );
                self.findings.push_error(self.path, descriptor.position, message);
            }
            return;
        }
        self.limit_paths.push(LimitWithDescriptorPath {
            config,
            steps: steps.to_vec(),
            path_text: format_descriptor_path(steps),
            limits,
            mode,
        });
    }

    fn convert_limit_for_policy(&mut self, limit: &ConfigLimit) -> Option<ConvertedLimits> {
        let Some(ConfigQuota { position, max, unit }) = limit.quota else {
            return Some(ConvertedLimits::Word("unlimited"));
        };
        match self.options.check_quota_is_supported(max.into(), unit.window) {
            Ok(()) => Some(self.options.convert_quota(max.into(), unit.window)),
            Err(message) => {
                self.findings.push_error(self.path, position, message);
                None
            }
        }
    }

    /// Returns `true` if a policy can express the key and the value of a descriptor. Otherwise adds an error, unless
    /// the parser has already reported the descriptor.
    fn check_descriptor_is_expressible(&mut self, descriptor: &ConfigDescriptor) -> bool {
        let ConfigDescriptor { position, key, value, value_position, .. } = descriptor;
        // The parser has already reported an empty key.
        if key.is_empty() {
            return false;
        }
        let has_counter_per_value =
            (value.is_empty() || value.contains('*')) && !descriptor.is_shared;
        let key_error = if key.contains('*') {
            "cannot be converted: a key cannot contain `*`; use the wildcard in `value`"
        } else if key.len() > MAX_DESCRIPTOR_KEY_BYTES {
            "cannot be converted: the key is longer than 128 bytes; shorten it"
        } else if is_reserved_for_repeated_key(key) {
            "cannot be converted: a key cannot end in `#` and a number, because slidegate uses such names for repeated keys; rename it"
        } else if key.starts_with("header.") && key.bytes().any(|byte| byte.is_ascii_uppercase()) {
            "cannot be converted: a key that begins with `header.` must be in lower case"
        } else if key.trim() != key {
            "cannot be converted: a key cannot begin or end with a space; remove the space"
        } else if has_counter_per_value && key.contains('|') {
            "cannot be converted: a key with one counter per value cannot contain `|`; rename it"
        } else {
            ""
        };
        if !key_error.is_empty() {
            self.findings.push_error(self.path, *position, key_error);
        }
        let is_network_wildcard = value.contains('*') && wildcard::is_like_network(value);
        if is_network_wildcard {
            let message = "cannot be converted: a value that begins with an IP address and `/` is a network, which cannot contain `*`; write the whole network";
            self.findings.push_error(self.path, *value_position, message);
        }
        key_error.is_empty() && !is_network_wildcard
    }
}

impl ConversionOptions {
    fn convert_quota(&self, max: u64, window: &'static str) -> ConvertedLimits {
        match self.algorithm {
            Algorithm::FixedWindow { .. } => {
                let quota = ClockAlignedQuota { max, window, align: "clock" };
                ConvertedLimits::ClockAligned(FlowSeq([quota]))
            }
            _ => ConvertedLimits::Quota(FlowSeq([format!("{max}/{window}")])),
        }
    }

    /// Checks that the algorithm and the store support a quota. Returns a message for the user as the error.
    fn check_quota_is_supported(&self, max: u64, window: &str) -> Result<(), String> {
        let inexpressible = |error: &dyn fmt::Display| format!("cannot be converted: {error}");
        let quota: Quota =
            format!("{max}/{window}").parse().map_err(|error| inexpressible(&error))?;
        let limit = Limit::new(quota, self.algorithm).map_err(|error| inexpressible(&error))?;
        (self.supports)(&limit).map_err(|reason| format!("{reason} (--ratelimit-algorithm)"))
    }
}

impl LimitWithDescriptorPath<'_> {
    /// Creates the rule that enforces this limit.
    fn new_rule(&self, name: &str, domain: &str, replaces: Vec<String>) -> ConvertedRule {
        let with_value = self.steps.iter().filter(|step| !step.descriptor.value.is_empty());
        let counted_by = self.steps.iter().filter(|step| step.has_counter_per_value());
        let with_excluded = self.steps.iter().filter(|step| step.excluded.value_count() > 0);
        let conditions: Vec<_> = with_value
            .map(|step| {
                (step.name.clone(), ValueSet::from_value(&step.descriptor.value).to_condition())
            })
            .collect();
        let overrides = with_excluded.flat_map(|step| {
            step.excluded.to_conditions().into_iter().map(|condition| {
                let when = Conditions(vec![(step.name.clone(), condition)]);
                FlowMap(ConvertedOverride { when, mode: "off" })
            })
        });
        ConvertedRule {
            descriptor: FlowSeq(self.steps.iter().map(|step| step.name.clone()).collect()),
            when: (!conditions.is_empty()).then_some(FlowMap(Conditions(conditions))),
            per: FlowSeq(counted_by.map(|step| step.name.clone()).collect()),
            limits: self.limits.clone(),
            mode: self.mode,
            replaces: FlowSeq(replaces),
            overrides: overrides.collect(),
            ..ConvertedRule::new(name, domain)
        }
    }
}

impl DescriptorPathStep<'_> {
    /// Returns `true` if each value of the attribute has its own counter. Returns `false` if all matching values share
    /// one counter, or if the descriptor has an exact value and therefore needs only one counter.
    fn has_counter_per_value(&self) -> bool {
        let ConfigDescriptor { value, is_shared, .. } = self.descriptor;
        value.is_empty() || (value.contains('*') && !is_shared)
    }
}

impl ValueSet {
    /// Creates a set that contains one value or wildcard.
    fn from_value(value: &str) -> Self {
        let mut values = Self::default();
        values.add_value(value);
        values
    }

    fn add_value(&mut self, value: &str) {
        let list = if value.contains('*') { &mut self.wildcards } else { &mut self.literals };
        list.push(value.to_owned());
    }

    fn value_count(&self) -> usize {
        self.literals.len() + self.wildcards.len()
    }

    /// Returns one condition for these values, or two if one condition cannot contain both the literals and the
    /// wildcards: the form `{ literal: … }` would treat a wildcard as plain text.
    fn to_conditions(&self) -> Vec<ConvertedCondition> {
        if !self.needs_literal_form() || self.wildcards.is_empty() {
            return vec![self.to_condition()];
        }
        let literals = Self { literals: self.literals.clone(), ..Self::default() };
        let wildcards = Self { wildcards: self.wildcards.clone(), ..Self::default() };
        vec![literals.to_condition(), wildcards.to_condition()]
    }

    /// Returns the condition for these values in the `when` of a policy rule.
    fn to_condition(&self) -> ConvertedCondition {
        let mut values: Vec<String> =
            self.literals.iter().chain(&self.wildcards).cloned().collect();
        match values.len() {
            _ if self.needs_literal_form() => ConvertedCondition::Literal { literal: values },
            1 => ConvertedCondition::Value(values.remove(0)),
            _ => ConvertedCondition::Values(values),
        }
    }

    /// Returns `true` if a policy would interpret any of the literals as an address or a network.
    fn needs_literal_form(&self) -> bool {
        self.literals.iter().any(|literal| wildcard::is_like_network(literal))
    }
}

/// Returns the values that match the descriptor at `index`, but for which one of its siblings takes precedence.
fn values_taken_by_siblings(siblings: &[ConfigDescriptor], index: usize) -> ValueSet {
    let descriptor = &siblings[index];
    let mut excluded = ValueSet::default();
    let is_bare = descriptor.value.is_empty();
    if !is_bare && !descriptor.value.contains('*') {
        return excluded;
    }
    let others = siblings
        .iter()
        .enumerate()
        .filter(|(other_index, other)| *other_index != index && other.key == descriptor.key);
    for (other_index, other) in others {
        let is_wildcard = other.value.contains('*');
        let has_precedence = match (is_bare, is_wildcard) {
            (true, _) => !other.value.is_empty(),
            (false, true) => {
                other_index < index && wildcard::may_overlap(&descriptor.value, &other.value)
            }
            (false, false) => {
                !other.value.is_empty()
                    && wildcard::matches_wildcard(&descriptor.value, &other.value)
            }
        };
        if has_precedence {
            excluded.add_value(&other.value);
        }
    }
    excluded
}

/// Returns the attribute name for a key: the key itself, or `key#n` if it is the n-th descriptor with this key on the
/// path.
fn attribute_name_for_key(key: &str, parents: &[DescriptorPathStep<'_>]) -> String {
    match parents.iter().filter(|step| step.descriptor.key == key).count() {
        0 => key.to_owned(),
        count => format!("{key}#{}", count + 1),
    }
}

/// Returns `true` if a key ends in `#` and a number, such as `key#2`. Such names are reserved for repeated keys.
fn is_reserved_for_repeated_key(key: &str) -> bool {
    key.rsplit_once('#').is_some_and(|(_, number)| {
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

/// Formats a path of descriptors as text, such as `plan_free.user`: `_` joins key and value, and `.` joins the
/// descriptors.
fn format_descriptor_path(steps: &[DescriptorPathStep<'_>]) -> String {
    let texts =
        steps.iter().map(|DescriptorPathStep { descriptor, .. }| match &*descriptor.value {
            "" => descriptor.key.clone(),
            value => format!("{}_{value}", descriptor.key),
        });
    texts.collect::<Vec<_>>().join(".")
}
