//! The properties that the fuzz targets check. This module checks policies, and [`message`] checks cluster
//! messages.

pub mod message;
pub mod policy_generator;

use slidegate::policy::{Condition, PolicyError, Rule};
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

/// The maximum number of rules of a policy, and of overrides of a rule, for which requests are generated.
const MAX_RULES_WITH_GENERATED_REQUESTS: usize = 16;

/// Parses a policy. If it is valid, decides requests with it, otherwise checks the errors. libFuzzer reports inputs
/// that take too long.
///
/// # Panics
///
/// Panics if a decision or a reported error is inconsistent.
pub fn check_policy(text: &str) {
    match Policy::from_yaml(text) {
        Ok(policy) => check_decisions(policy, text),
        Err(errors) => {
            assert!(!errors.0.is_empty(), "no error is reported");
            assert!(errors.0.len() <= 1_001, "{} errors", errors.0.len());
            errors.0.iter().for_each(|error| check_policy_error(error, text));
            assert!(!errors.to_string().is_empty());
        }
    }
}

/// Checks that an error has a message and a position in the text of the policy, and an excerpt unless the text is
/// empty.
fn check_policy_error(error: &PolicyError, text: &str) {
    let lines = text.lines().count() as u64;
    assert!((1..=lines.max(1)).contains(&error.line), "{}: {}", error.line, error.message);
    assert!(error.column > 0 && !error.message.is_empty() && !error.to_string().is_empty());
    let excerpt_lines = if lines == 0 { 0 } else { 2 };
    assert_eq!(error.excerpt().lines().count(), excerpt_lines, "{:?}", error.excerpt());
}

/// Decides requests that are generated for rules of the policy, and requests with attribute values from the last line
/// of its text.
fn check_decisions(policy: Policy, text: &str) {
    let tail: Vec<&str> = text.lines().next_back().unwrap_or_default().split(' ').collect();
    let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 100));
    let policy = gate.policy();
    let rules = policy.rules();
    let step = rules.len().div_ceil(MAX_RULES_WITH_GENERATED_REQUESTS).max(1);
    for rule in rules.iter().step_by(step) {
        for values in [&[][..], &tail] {
            let descriptor = Descriptor::new(attributes_for_rule(rule, values));
            let costs = [0, 1, u64::MAX].map(|cost| descriptor.clone().cost(cost));
            check_decision(&gate, &Request::new(rule.domain(), descriptor));
            check_decision(&gate, &Request::with_descriptors(rule.domain(), costs));
        }
    }
    let tail_descriptor = Descriptor::new(["path", "ip", "route", "method"].into_iter().zip(tail));
    check_decision(&gate, &Request::new("default", tail_descriptor));
}

/// Decides a request. Checks that the matching rules, the hits and the decision are consistent with each other.
fn check_decision(gate: &Gate<MemoryStore<ManualClock>>, request: &Request<'_>) {
    let policy = gate.policy();
    let matched = policy.apply(request);
    let matching_rules = policy.explain(request).filter(|(_, fit)| fit.is_ok()).count();
    assert_eq!(matched.matches().count(), matching_rules, "the index misses a matching rule");
    let hits: Vec<_> = matched.hits().collect();
    for hit in &hits {
        assert!(!hit.key.to_string().is_empty());
        let values_text = hit.key.values_text().to_string();
        assert_eq!(values_text.matches(['{', '}']).count(), 2, "{values_text}");
        let split = hit.key.redis_options().and_then(|settings| settings.split_into());
        assert_eq!(hit.key.sub_key_index().is_some(), split.is_some(), "{values_text}");
        assert_eq!(hit.key.limit_share().is_some(), split.is_some(), "{values_text}");
    }
    let result = gate.check_matched(&matched);
    assert_eq!(result.limits().count(), hits.len());
    assert!(result.is_allowed() || result.binding().is_some(), "a denial has no binding limit");
    let _ = (result.retry_after(), gate.peek(request));
}

/// Returns the attributes that a rule and its overrides use. The attributes have the given values, or values that match
/// the conditions of the rule if `values` is empty.
fn attributes_for_rule<'r>(rule: &'r Rule, values: &[&'r str]) -> Vec<(&'r str, &'r str)> {
    let overrides = rule
        .overrides()
        .iter()
        .take(MAX_RULES_WITH_GENERATED_REQUESTS)
        .flat_map(|rule_override| rule_override.when().conditions());
    let conditions = rule.when().conditions().chain(overrides);
    let conditions =
        conditions.map(|(name, condition)| (name, value_matching_condition(condition)));
    let per = rule.per().entries().iter().flat_map(|entry| entry.names().take(1));
    let attributes = conditions.chain(per.map(|name| (name, "2001:db8::1")));
    let value = |nth: usize, default_value| {
        values.get(nth % values.len().max(1)).copied().unwrap_or(default_value)
    };
    attributes
        .enumerate()
        .map(|(nth, (name, default_value))| (name, value(nth, default_value)))
        .collect()
}

/// Returns a value that matches the first pattern of a condition. A glob matches itself, and a network contains its own
/// address.
fn value_matching_condition(condition: &Condition) -> &str {
    let pattern = condition.patterns().next().unwrap_or_default();
    pattern
        .rsplit_once('/')
        .filter(|(ip, _)| ip.parse::<std::net::IpAddr>().is_ok())
        .map_or(pattern, |(ip, _)| ip)
}
