//! Finds counters that a client evades by inventing values, if no other rule limits the same requests.
//!
//! A rule gets a warning if a request exists to which it applies, whose value the client invents, and to which no rule
//! applies that enforces a limit and counts by something else. Such a request is generated and matched against the
//! policy itself, so a warning is always correct.

use super::super::deserialize::Field;
use super::sample_requests::{self, SampleRequest};
use super::{RuleSource, SourceSpan, WarningCollector, is_address, is_client_chosen};
use crate::policy::matched::Match;
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, Rule, RuleSettings, When};

impl WarningCollector<'_> {
    /// Warns of each rule of a domain whose counters can be evaded.
    pub(super) fn check_evasions(&mut self, domain: &[RuleSource<'_>]) {
        let rules = || domain.iter().map(|source| source.rule);
        let has_no_replacements = rules().all(|rule| rule.replaces.is_empty());
        if has_no_replacements && rules().any(limits_all_requests) {
            return;
        }
        // Envoy sends the address in a separate descriptor with every request.
        let has_address = rules().any(counts_by_address);
        if has_address && rules().any(|rule| rule.descriptor.is_some() && counts_by_address(rule)) {
            return;
        }
        let sent = rules().flat_map(client_chosen_keys).filter(|name| *name != "path");
        let sent: Vec<&str> = sent.take(sample_requests::MAX_VALUES).collect();
        let steps = rules().map(match_steps).sum();
        for source in domain {
            let name = match &source.rule.descriptor {
                Some(_) if has_address => None,
                Some(_) => evaded_descriptor_attribute(source.rule),
                None => self.evaded_attribute(source, &sent, steps),
            };
            if let Some(name) = name {
                let route_remedy = match name {
                    "path" => "count by `route`, or ",
                    _ => "",
                };
                let message = format_args!(
                    "the client chooses `{name}`, so each value that it invents has a count of its own, and nothing else limits these requests; {route_remedy}add a rule for them with `per: [ip]` (`remote_address` from Envoy)"
                );
                self.warn(key_span(source, name), message);
            }
        }
    }

    /// Returns the attribute by which the rule can be evaded. `sent` has the other attributes that the rules of the
    /// domain count by.
    fn evaded_attribute<'a>(
        &mut self,
        source: &RuleSource<'a>,
        sent: &[&str],
        steps: usize,
    ) -> Option<&'a str> {
        if self.remaining_steps < steps {
            return None;
        }
        client_chosen_keys(source.rule).find(|name| {
            sample_requests::sample_requests(self.policy, source.rule, sent, name).any(|request| {
                self.take_steps(steps) && self.evades(source.rule_index, &request, name)
            })
        })
    }

    /// Returns whether a request is limited only by a rule that counts by a value that the client invents.
    fn evades(&self, rule: u32, request: &SampleRequest<'_>, name: &str) -> bool {
        request.with_request(|request| {
            let matched_rules = self.policy.apply(request);
            let Some(own_match) =
                matched_rules.matches().find(|rule_match| rule_match.rule_index_u32() == rule)
            else {
                return false;
            };
            let counts_invented_value = own_match.identity().any(|(counted, _)| counted == name)
                && !is_pinned(
                    &own_match.rule().when,
                    active_override(own_match).map(|rule_override| &rule_override.when),
                    name,
                );
            let settings = active_override(own_match)
                .map_or(&own_match.rule().settings, |rule_override| &rule_override.settings);
            let mut others =
                matched_rules.matches().filter(|rule_match| rule_match.rule_index_u32() != rule);
            counts_invented_value && can_be_evaded(settings) && !others.any(limits_invented_keys)
        })
    }
}

/// Returns the attribute by which a rule with `descriptor` can be evaded, if no other rule limits its requests.
fn evaded_descriptor_attribute(rule: &Rule) -> Option<&str> {
    let base = (&rule.settings, None);
    let overrides = rule
        .overrides
        .iter()
        .map(|rule_override| (&rule_override.settings, Some(&rule_override.when)));
    let settings: Vec<(&RuleSettings, Option<&When>)> = overrides.chain([base]).collect();
    let evades = |name: &&str| {
        let mut settings = settings.iter();
        settings
            .any(|(settings, when)| can_be_evaded(settings) && !is_pinned(&rule.when, *when, name))
    };
    client_chosen_keys(rule).find(evades)
}

fn active_override<'r>(rule_match: &Match<'r>) -> Option<&'r Override> {
    rule_match.active_override().map(|(_, other)| other)
}

/// Returns the client-chosen attributes that the rule may count by. Names after an address are never used, since an
/// address is always present.
fn client_chosen_keys(rule: &Rule) -> impl Iterator<Item = &str> {
    let reached = rule
        .per
        .entries()
        .iter()
        .flat_map(|entry| entry.names().take_while(|name| !is_address(name)));
    reached.filter(|name| is_client_chosen(rule, name))
}

/// Returns whether the settings deny some requests of a key, but not all: a rule that denies all cannot be evaded.
fn can_be_evaded(settings: &RuleSettings) -> bool {
    let denies = match settings.mode {
        Mode::Enforce | Mode::Jointly => true,
        Mode::EnforceFor(percentage) => !percentage.is_zero(),
        Mode::Observe | Mode::Off => false,
    };
    let denies_all = settings.limits.iter().any(|limit| limit.limit.capacity() == 0);
    denies && !settings.limits.is_empty() && !denies_all
}

fn enforces(settings: &RuleSettings) -> bool {
    let always = match settings.mode {
        Mode::Enforce => true,
        Mode::EnforceFor(percentage) => percentage.is_full(),
        // Another limit in this mode may let the request pass.
        Mode::Jointly | Mode::Observe | Mode::Off => false,
    };
    always && !settings.limits.is_empty()
}

/// Returns whether a matching rule limits a client independent of the values that it invents.
fn limits_invented_keys(rule_match: &Match<'_>) -> bool {
    let (rule, rule_override) = (rule_match.rule(), active_override(rule_match));
    let is_invented = |name| {
        is_client_chosen(rule, name) && !is_pinned(&rule.when, rule_override.map(|o| &o.when), name)
    };
    enforces(rule_override.map_or(&rule.settings, |rule_override| &rule_override.settings))
        && (rule_match.is_attribute_missing()
            || !rule_match.identity().any(|(name, _)| is_invented(name)))
}

/// Returns whether a rule limits every request of its domain by its address, or all of them together. Such a rule is
/// common and makes the search unnecessary.
fn limits_all_requests(rule: &Rule) -> bool {
    let has_address = rule.per.entries().iter().all(|entry| entry.names().all(is_address));
    let mut settings =
        rule.overrides.iter().map(|rule_override| &rule_override.settings).chain([&rule.settings]);
    has_address
        && rule.when.0.is_empty()
        && rule.descriptor.is_none()
        && !rule.is_for_requested_limits
        && settings.all(enforces)
}

/// Returns whether a rule enforces a limit for each address, at least for requests that no override matches.
fn counts_by_address(rule: &Rule) -> bool {
    let mut names = rule.per.entries().iter().flat_map(|entry| entry.names());
    enforces(&rule.settings) && names.any(is_address) && client_chosen_keys(rule).next().is_none()
}

/// Returns whether `when` allows only values of an attribute that the policy lists.
fn is_pinned(rule: &When, override_when: Option<&When>, name: &str) -> bool {
    let mut conditions = rule.0.iter().chain(override_when.into_iter().flat_map(|when| &when.0));
    conditions.any(|(attribute, expected)| {
        let one_address = |network: &ipnet::IpNet| network.prefix_len() == network.max_prefix_len();
        **attribute == *name
            && !expected.is_negated()
            && expected.globs().is_empty()
            && expected.networks().iter().all(one_address)
    })
}

/// Returns the number of steps to match a rule against a request.
fn match_steps(rule: &Rule) -> usize {
    let whens = rule.overrides.iter().map(|rule_override| &rule_override.when).chain([&rule.when]);
    let globs = whens.flat_map(|when| &when.0).map(|(_, expected)| 1 + expected.globs().len());
    1 + rule.overrides.len() + globs.sum::<usize>()
}

/// Returns the position of the attribute in `per`.
fn key_span(source: &RuleSource<'_>, name: &str) -> SourceSpan {
    let entries = source.spec.per.get().into_iter().flatten().filter_map(Field::spanned);
    let mut names = entries.filter(|(text, _)| text.split('|').any(|own| own.trim() == name));
    names.next().map_or(source.at, |(_, at)| at)
}
