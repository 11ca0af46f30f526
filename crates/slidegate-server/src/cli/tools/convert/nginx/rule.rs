//! The rules of the converted policy, as they are printed.

use serde::Serialize;
use serde_saphyr::{FlowMap, FlowSeq};

use super::condition::{ValueCondition, matches_pattern};
use super::hosts::ServedHosts;
use super::key::KeyFilter;
use super::servers::{LimitedPaths, Server};
use super::settings::ZoneLimit;
use super::zone::{Rate, Zone};
use crate::policy::ratelimit_config::{Conditions, ConvertedOverride};

/// A rule of the converted policy.
#[derive(Serialize)]
pub struct ConvertedRule {
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    when: Option<FlowMap<Conditions>>,
    #[serde(skip_serializing_if = "is_empty_list")]
    per: FlowSeq<Vec<String>>,
    limits: FlowSeq<[ConvertedBucket; 1]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deny_status: Option<u16>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<FlowMap<ConvertedOverride>>,
}

#[derive(Serialize)]
struct ConvertedBucket {
    max: u64,
    window: &'static str,
    algorithm: &'static str,
    burst: u64,
}

/// The requests to which a rule applies.
struct RuleScope {
    /// The conditions on attributes, all of which must match.
    when: Vec<(String, ValueCondition)>,
    /// Conditions with the mode for requests that they match. The first match counts.
    overrides: Vec<(Vec<(String, ValueCondition)>, &'static str)>,
}

impl ConvertedRule {
    /// Returns whether the rule has a condition on the path, or counts by it.
    pub fn uses_path(&self) -> bool {
        let is_path = |name: &str| name == "path";
        let overrides = self.overrides.iter().map(|other| &other.0.when);
        let conditions = self.when.iter().map(|when| &when.0).chain(overrides);
        conditions.flat_map(|when| &when.0).any(|(name, _)| is_path(name))
            || self.per.0.iter().any(|name| is_path(name))
    }
}

fn is_empty_list(list: &FlowSeq<Vec<String>>) -> bool {
    list.0.is_empty()
}

/// Converts a limit to one rule for all servers in which it applies to the same paths.
pub fn convert_limit(zone: &Zone, limit: &ZoneLimit, servers: &[Server]) -> Vec<ConvertedRule> {
    let mut groups: Vec<(LimitedPaths, Vec<&Server>)> = Vec::new();
    for server in servers.iter().filter(|server| server.is_reachable()) {
        let Some(limited_paths) = server.limited_paths(limit) else { continue };
        match groups.iter_mut().find(|(other, _)| *other == limited_paths) {
            Some((_, same)) => same.push(server),
            None => groups.push((limited_paths, vec![server])),
        }
    }
    let scopes = groups.into_iter().filter_map(|(limited_paths, in_servers)| {
        let hosts = ServedHosts::for_group(&in_servers, servers);
        let mut scope = RuleScope::new(hosts, limited_paths, limit);
        let is_empty = zone.key.filter.as_ref().is_some_and(|filter| !scope.restrict(filter));
        (!is_empty).then_some(scope)
    });
    scopes.map(|scope| new_rule(zone, limit, scope)).collect()
}

fn new_rule(zone: &Zone, limit: &ZoneLimit, scope: RuleScope) -> ConvertedRule {
    let Rate { max, window } = zone.rate;
    let overrides = scope
        .overrides
        .into_iter()
        .map(|(when, mode)| FlowMap(ConvertedOverride { when: printed_conditions(when), mode }));
    ConvertedRule {
        name: limit.zone.clone(),
        when: (!scope.when.is_empty()).then(|| FlowMap(printed_conditions(scope.when))),
        per: FlowSeq(zone.key.per.clone()),
        limits: FlowSeq([ConvertedBucket {
            max,
            window,
            algorithm: "token_bucket",
            // nginx admits one request and `burst` more at once, so the bucket holds one unit more than `burst`.
            burst: limit.burst.saturating_add(1),
        }]),
        mode: limit.observes.then_some("observe"),
        deny_status: limit.deny_status,
        overrides: overrides.collect(),
    }
}

fn printed_conditions(conditions: Vec<(String, ValueCondition)>) -> Conditions {
    let print = |(name, condition): (String, ValueCondition)| (name, condition.into_converted());
    Conditions(conditions.into_iter().map(print).collect())
}

fn host_condition(names: Vec<String>) -> (String, ValueCondition) {
    ("host".to_owned(), ValueCondition::any_of(names))
}

fn path_condition(paths: Vec<String>) -> (String, ValueCondition) {
    ("path".to_owned(), ValueCondition::any_of(paths))
}

impl RuleScope {
    /// Creates the scope of a limit that applies to the same paths of some hosts.
    fn new(hosts: ServedHosts, limited_paths: LimitedPaths, limit: &ZoneLimit) -> Self {
        let mode_when_on = if limit.observes { "observe" } else { "enforce" };
        let host = hosts.condition.map(|condition| ("host".to_owned(), condition));
        let when = host.into_iter().chain(limited_paths.paths.map(path_condition)).collect();
        let exceptions = limited_paths.exceptions.into_iter().map(|(path, is_limited)| {
            (path_condition(vec![path]), if is_limited { mode_when_on } else { "off" })
        });
        let exceptions: Vec<_> = exceptions.collect();
        let mut overrides = Vec::new();
        if !hosts.own.is_empty() {
            // The names of these servers that a pattern of another server also matches come first.
            for (path, mode) in &exceptions {
                overrides.push((vec![host_condition(hosts.own.clone()), path.clone()], *mode));
            }
            overrides.push((vec![host_condition(hosts.own)], mode_when_on));
        }
        if !hosts.foreign.is_empty() {
            overrides.push((vec![host_condition(hosts.foreign)], "off"));
        }
        overrides.extend(exceptions.into_iter().map(|(path, mode)| (vec![path], mode)));
        Self { when, overrides }
    }

    /// Restricts the scope to requests that have a key. Returns whether any request is left.
    fn restrict(&mut self, filter: &KeyFilter) -> bool {
        let KeyFilter { attribute, condition } = filter;
        self.remove_overrides_without_key(filter);
        let mut conditions = self.when.iter_mut();
        let Some((_, present)) = conditions.find(|(name, _)| name == attribute) else {
            self.when.push((attribute.clone(), condition.clone()));
            return true;
        };
        let mut values = condition.values.clone();
        values.retain(|value| present.matches(value));
        if !condition.is_negated {
            let has_values = !values.is_empty();
            *present = ValueCondition::any_of(values);
            return has_values;
        }
        if present.is_negated {
            present.values.extend(values);
        } else if !values.is_empty() {
            let without_key = (attribute.clone(), ValueCondition::any_of(values));
            self.overrides.insert(0, (vec![without_key], "off"));
        }
        true
    }

    /// Removes overrides that only match requests without a key, because an override that never applies is an error.
    fn remove_overrides_without_key(&mut self, filter: &KeyFilter) {
        let ValueCondition { values: keys, is_negated } = &filter.condition;
        let has_key = |pattern: &String| {
            if *is_negated {
                !keys.contains(pattern)
            } else {
                keys.iter().any(|key| matches_pattern(pattern, key))
            }
        };
        for (conditions, _) in &mut self.overrides {
            for (_, condition) in
                conditions.iter_mut().filter(|(name, _)| *name == filter.attribute)
            {
                condition.values.retain(has_key);
            }
        }
        self.overrides.retain(|(conditions, _)| {
            conditions.iter().all(|(_, condition)| !condition.values.is_empty())
        });
    }
}
