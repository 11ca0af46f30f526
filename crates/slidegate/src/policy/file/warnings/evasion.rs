//! Finds rules that a client can evade by sending a new value of an attribute with each request.
//!
//! If a rule counts by an attribute that the client chooses, such as `header.x-api-key`, each invented value has its
//! own counter. A rule gets a warning if a sample request proves that a client can evade it. The rule counts this
//! request by an invented value, and no other rule limits the request with a counter that is independent of invented
//! values. The sample request is generated and matched against the policy itself, so a warning is always correct.

use super::super::deserialize::Field;
use super::sample_requests::{self, SampleRequest};
use super::{
    RuleWithSource, SourceSpan, WarningCollector, is_address_attribute, is_value_chosen_by_client,
};
use crate::policy::matched::Match;
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, Rule, RuleSettings, When};

impl WarningCollector<'_> {
    /// Adds a warning for each rule of a domain that a client can evade by inventing values of an attribute.
    pub(super) fn warn_about_evadable_rules(&mut self, domain: &[RuleWithSource<'_>]) {
        let rules = || domain.iter().map(|source| source.rule);
        let has_no_replacements = rules().all(|rule| rule.replaces.is_empty());
        if has_no_replacements && rules().any(limits_all_requests) {
            return;
        }
        // Envoy sends the client address in a separate descriptor with every request, so a rule for this descriptor
        // limits all requests of a client.
        let has_address = rules().any(rule_counts_by_client_address);
        if has_address
            && rules().any(|rule| rule.descriptor.is_some() && rule_counts_by_client_address(rule))
        {
            return;
        }
        let sent = rules().flat_map(client_chosen_attribute_names).filter(|name| *name != "path");
        let sent: Vec<&str> = sent.take(sample_requests::MAX_VALUES_PER_ATTRIBUTE).collect();
        let steps = rules().map(count_match_steps).sum();
        for source in domain {
            let name = match &source.rule.descriptor {
                Some(_) if has_address => None,
                Some(_) => find_evaded_descriptor_attribute(source.rule),
                None => self.find_evaded_attribute(source, &sent, steps),
            };
            if let Some(name) = name {
                let route_remedy = match name {
                    "path" => "count by `route`, or ",
                    _ => "",
                };
                let message = format_args!(
                    "the client chooses `{name}` and can evade this limit with a new value in each request, because no other rule limits these requests; {route_remedy}add a rule with `per: [ip]` (`remote_address` from Envoy)"
                );
                self.add_warning(per_entry_span(source, name), message);
            }
        }
    }

    /// Returns an attribute whose values a client can invent to evade the rule; `None` if no such attribute is found.
    /// `sent` contains the client-chosen attributes by which the rules of the domain count. `steps` is the number of
    /// steps for matching one request against all rules of the domain.
    fn find_evaded_attribute<'a>(
        &mut self,
        source: &RuleWithSource<'a>,
        sent: &[&str],
        steps: usize,
    ) -> Option<&'a str> {
        if self.remaining_steps < steps {
            return None;
        }
        client_chosen_attribute_names(source.rule).find(|name| {
            sample_requests::sample_requests(self.policy, source.rule, sent, name).any(|request| {
                self.spend_search_steps(steps)
                    && self.is_limited_only_by_invented_value(source.rule_index, &request, name)
            })
        })
    }

    /// Returns `true` if the rule with index `rule` counts the request by an invented value of the attribute `name`,
    /// and no other rule limits the request with a counter that is independent of invented values.
    fn is_limited_only_by_invented_value(
        &self,
        rule: u32,
        request: &SampleRequest<'_>,
        name: &str,
    ) -> bool {
        request.call_with_request(|request| {
            let matched_rules = self.policy.apply(request);
            let Some(own_match) =
                matched_rules.matches().find(|rule_match| rule_match.rule_index_u32() == rule)
            else {
                return false;
            };
            let counts_invented_value = own_match.identity().any(|(counted, _)| counted == name)
                && !is_restricted_to_listed_values(
                    &own_match.rule().when,
                    active_override(own_match).map(|rule_override| &rule_override.when),
                    name,
                );
            let settings = active_override(own_match)
                .map_or(&own_match.rule().settings, |rule_override| &rule_override.settings);
            let mut others =
                matched_rules.matches().filter(|rule_match| rule_match.rule_index_u32() != rule);
            counts_invented_value
                && settings_can_be_evaded(settings)
                && !others.any(limits_independently_of_invented_values)
        })
    }
}

/// Returns an attribute whose values a client can invent to evade a rule with the field `descriptor`. The caller must
/// have checked that no other rule limits the same requests.
fn find_evaded_descriptor_attribute(rule: &Rule) -> Option<&str> {
    let base = (&rule.settings, None);
    let overrides = rule
        .overrides
        .iter()
        .map(|rule_override| (&rule_override.settings, Some(&rule_override.when)));
    let settings: Vec<(&RuleSettings, Option<&When>)> = overrides.chain([base]).collect();
    let evades = |name: &&str| {
        let mut settings = settings.iter();
        settings.any(|(settings, when)| {
            settings_can_be_evaded(settings)
                && !is_restricted_to_listed_values(&rule.when, *when, name)
        })
    };
    client_chosen_attribute_names(rule).find(evades)
}

fn active_override<'r>(rule_match: &Match<'r>) -> Option<&'r Override> {
    rule_match.active_override().map(|(_, other)| other)
}

/// Returns the attributes that clients choose and by which the rule may count. If an entry of `per` contains an
/// address, the names after it are left out: the address is always present, so these names are never used.
fn client_chosen_attribute_names(rule: &Rule) -> impl Iterator<Item = &str> {
    let reached = rule
        .per
        .entries()
        .iter()
        .flat_map(|entry| entry.names().take_while(|name| !is_address_attribute(name)));
    reached.filter(|name| is_value_chosen_by_client(rule, name))
}

/// Returns `true` if the settings deny some requests of a key, but not all. If all are denied, a client cannot evade
/// the rule with another key.
fn settings_can_be_evaded(settings: &RuleSettings) -> bool {
    let denies = match settings.mode {
        Mode::Enforce | Mode::Jointly => true,
        Mode::EnforceFor(percentage) => !percentage.is_zero(),
        Mode::Observe | Mode::Off => false,
    };
    let denies_all = settings.limits.iter().any(|limit| limit.limit.capacity() == 0);
    denies && !settings.limits.is_empty() && !denies_all
}

fn settings_always_enforce(settings: &RuleSettings) -> bool {
    let always = match settings.mode {
        Mode::Enforce => true,
        Mode::EnforceFor(percentage) => percentage.is_hundred_percent(),
        // In mode `jointly`, another joint limit may let the request pass. The modes `observe` and `off` never deny.
        Mode::Jointly | Mode::Observe | Mode::Off => false,
    };
    always && !settings.limits.is_empty()
}

/// Returns `true` if the rule of a match enforces a limit and its counter does not depend on values that the client
/// invents.
fn limits_independently_of_invented_values(rule_match: &Match<'_>) -> bool {
    let (rule, rule_override) = (rule_match.rule(), active_override(rule_match));
    let is_invented = |name| {
        is_value_chosen_by_client(rule, name)
            && !is_restricted_to_listed_values(&rule.when, rule_override.map(|o| &o.when), name)
    };
    settings_always_enforce(
        rule_override.map_or(&rule.settings, |rule_override| &rule_override.settings),
    ) && (rule_match.is_attribute_missing()
        || !rule_match.identity().any(|(name, _)| is_invented(name)))
}

/// Returns `true` if a rule limits every request of its domain, either per address or with one counter for all
/// requests. If a domain has such a rule, and none of its rules has `replaces`, the domain needs no evasion warnings.
fn limits_all_requests(rule: &Rule) -> bool {
    let has_address =
        rule.per.entries().iter().all(|entry| entry.names().all(is_address_attribute));
    let mut settings =
        rule.overrides.iter().map(|rule_override| &rule_override.settings).chain([&rule.settings]);
    has_address
        && rule.when.0.is_empty()
        && rule.descriptor.is_none()
        && !rule.is_for_requested_limits
        && settings.all(settings_always_enforce)
}

/// Returns `true` if a rule enforces limits per client address and counts by no attribute that a client chooses.
/// Overrides are ignored.
fn rule_counts_by_client_address(rule: &Rule) -> bool {
    let mut names = rule.per.entries().iter().flat_map(|entry| entry.names());
    settings_always_enforce(&rule.settings)
        && names.any(is_address_attribute)
        && client_chosen_attribute_names(rule).next().is_none()
}

/// Returns `true` if a client cannot invent values of the attribute `name`, because a condition allows only values that
/// the policy lists. The condition may be in the `when` of the rule or of its override.
fn is_restricted_to_listed_values(rule: &When, override_when: Option<&When>, name: &str) -> bool {
    let mut conditions = rule.0.iter().chain(override_when.into_iter().flat_map(|when| &when.0));
    conditions.any(|(attribute, expected)| {
        let one_address = |network: &ipnet::IpNet| network.prefix_len() == network.max_prefix_len();
        **attribute == *name
            && !expected.is_negated()
            && expected.globs().is_empty()
            && expected.networks().iter().all(one_address)
    })
}

/// Returns the number of steps for matching a rule against one request.
fn count_match_steps(rule: &Rule) -> usize {
    let whens = rule.overrides.iter().map(|rule_override| &rule_override.when).chain([&rule.when]);
    let globs = whens.flat_map(|when| &when.0).map(|(_, expected)| 1 + expected.globs().len());
    1 + rule.overrides.len() + globs.sum::<usize>()
}

/// Returns the source position of the entry of `per` that contains an attribute, or of the rule if no entry contains
/// it.
fn per_entry_span(source: &RuleWithSource<'_>, name: &str) -> SourceSpan {
    let entries = source.spec.per.get().into_iter().flatten().filter_map(Field::value_and_span);
    let mut names = entries.filter(|(text, _)| text.split('|').any(|own| own.trim() == name));
    names.next().map_or(source.at, |(_, at)| at)
}
