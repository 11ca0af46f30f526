//! Counts that a client evades by inventing values, where no other rule limits the same requests.
//!
//! A rule is warned about if there is a request to which it applies, whose value the client invents, and to which no
//! rule applies that enforces a limit and counts by something else. Such a request is searched for and held against
//! the policy itself, so a warning is never wrong about what the policy does.

use super::super::deserialize::Field;
use super::witness::{self, Witness};
use super::{Advice, SourceSpan, Written, is_address, is_client_chosen};
use crate::policy::matched::Match;
use crate::policy::mode::Mode;
use crate::policy::rule::{Override, Rule, RuleSettings, When};

impl Advice<'_> {
    /// Warns of each rule of a domain whose counts can be evaded.
    pub(super) fn evasions(&mut self, domain: &[Written<'_>]) {
        let rules = || domain.iter().map(|one| one.rule);
        let nothing_is_replaced = rules().all(|rule| rule.replaces.is_empty());
        if nothing_is_replaced && rules().any(limits_all) {
            return;
        }
        // Envoy sends the address in a descriptor of its own, whatever else it sends.
        let has_address = rules().any(counts_by_address);
        if has_address && rules().any(|rule| rule.descriptor.is_some() && counts_by_address(rule)) {
            return;
        }
        let sent = rules().flat_map(chosen_names).filter(|name| *name != "path");
        let sent: Vec<&str> = sent.take(witness::MAX_VALUES).collect();
        let steps = rules().map(weight).sum();
        for one in domain {
            let name = match &one.rule.descriptor {
                Some(_) if has_address => None,
                Some(_) => evaded_in_descriptor(one.rule),
                None => self.evaded(one, &sent, steps),
            };
            if let Some(name) = name {
                let by_route = match name {
                    "path" => "count by `route`, or ",
                    _ => "",
                };
                let message = format_args!(
                    "the client chooses `{name}`, so each value that it invents has a count of its own, and nothing else limits these requests; {by_route}add a rule for them with `per: [ip]` (`remote_address` from Envoy)"
                );
                self.warn(place(one, name), message);
            }
        }
    }

    /// The attribute by which the rule can be evaded. `sent` is what the domain's rules count by besides.
    fn evaded<'a>(&mut self, one: &Written<'a>, sent: &[&str], steps: usize) -> Option<&'a str> {
        if self.patience < steps {
            return None;
        }
        chosen_names(one.rule).find(|name| {
            witness::requests(self.policy, one.rule, sent, name)
                .any(|request| self.has_patience(steps) && self.evades(one.nth, &request, name))
        })
    }

    /// Whether a request is limited by a rule that counts the value that its client invents, and by nothing else.
    fn evades(&self, rule: u32, request: &Witness<'_>, name: &str) -> bool {
        request.with(|request| {
            let applied = self.policy.apply(request);
            let Some(own) = applied.matches().find(|one| one.nth() == rule) else { return false };
            let counts_invented = own.identity().any(|(counted, _)| counted == name)
                && !is_pinned(&own.rule().when, chosen(own).map(|other| &other.when), name);
            let settings = chosen(own).map_or(&own.rule().settings, |other| &other.settings);
            let mut others = applied.matches().filter(|one| one.nth() != rule);
            counts_invented && can_be_evaded(settings) && !others.any(limits_inventors)
        })
    }
}

/// The attribute by which a rule for certain descriptors can be evaded, if nothing else limits those.
fn evaded_in_descriptor(rule: &Rule) -> Option<&str> {
    let base = (&rule.settings, None);
    let overrides = rule.overrides.iter().map(|other| (&other.settings, Some(&other.when)));
    let settings: Vec<(&RuleSettings, Option<&When>)> = overrides.chain([base]).collect();
    let evades = |name: &&str| {
        let mut settings = settings.iter();
        settings
            .any(|(settings, own)| can_be_evaded(settings) && !is_pinned(&rule.when, *own, name))
    };
    chosen_names(rule).find(evades)
}

fn chosen<'r>(one: &Match<'r>) -> Option<&'r Override> {
    one.chosen_override().map(|(_, other)| other)
}

/// The client-chosen names that the rule may count by. Behind an address, which is always there, none is reached.
fn chosen_names(rule: &Rule) -> impl Iterator<Item = &str> {
    let reached = rule
        .per
        .entries()
        .iter()
        .flat_map(|entry| entry.names().take_while(|name| !is_address(name)));
    reached.filter(|name| is_client_chosen(rule, name))
}

/// Whether these terms deny some requests of a key and not all: what denies all is not evaded.
fn can_be_evaded(settings: &RuleSettings) -> bool {
    let denies = match settings.mode {
        Mode::Enforce | Mode::Jointly => true,
        Mode::EnforceFor(share) => !share.is_none(),
        Mode::Observe | Mode::Off => false,
    };
    let denies_all = settings.limits.iter().any(|limit| limit.limit.capacity() == 0);
    denies && !settings.limits.is_empty() && !denies_all
}

fn enforces(settings: &RuleSettings) -> bool {
    let always = match settings.mode {
        Mode::Enforce => true,
        Mode::EnforceFor(share) => share.is_whole(),
        // Another limit in this mode may let the request pass.
        Mode::Jointly | Mode::Observe | Mode::Off => false,
    };
    always && !settings.limits.is_empty()
}

/// Whether a rule that applies limits a client whatever it invents.
fn limits_inventors(one: &Match<'_>) -> bool {
    let (rule, other) = (one.rule(), chosen(one));
    let is_invented =
        |name| is_client_chosen(rule, name) && !is_pinned(&rule.when, other.map(|o| &o.when), name);
    enforces(other.map_or(&rule.settings, |other| &other.settings))
        && (one.lacks_attribute() || !one.identity().any(|(name, _)| is_invented(name)))
}

/// Whether a rule limits every request of its domain by its address, or all of them together. This is common, and
/// saves the search.
fn limits_all(rule: &Rule) -> bool {
    let has_address = rule.per.entries().iter().all(|entry| entry.names().all(is_address));
    let mut settings = rule.overrides.iter().map(|other| &other.settings).chain([&rule.settings]);
    has_address
        && rule.when.0.is_empty()
        && rule.descriptor.is_none()
        && !rule.requested
        && settings.all(enforces)
}

/// Whether a rule enforces a limit for each address, at least where no override holds.
fn counts_by_address(rule: &Rule) -> bool {
    let mut names = rule.per.entries().iter().flat_map(|entry| entry.names());
    enforces(&rule.settings) && names.any(is_address) && chosen_names(rule).next().is_none()
}

/// Whether `when` leaves only values of an attribute that the policy itself lists.
fn is_pinned(rule: &When, own: Option<&When>, name: &str) -> bool {
    let mut conditions = rule.0.iter().chain(own.into_iter().flat_map(|when| &when.0));
    conditions.any(|(attribute, wanted)| {
        let one_address = |network: &ipnet::IpNet| network.prefix_len() == network.max_prefix_len();
        **attribute == *name
            && !wanted.is_negated()
            && wanted.globs().is_empty()
            && wanted.networks().iter().all(one_address)
    })
}

/// Steps that it takes to apply a rule to a request.
fn weight(rule: &Rule) -> usize {
    let whens = rule.overrides.iter().map(|other| &other.when).chain([&rule.when]);
    let globs = whens.flat_map(|when| &when.0).map(|(_, wanted)| 1 + wanted.globs().len());
    1 + rule.overrides.len() + globs.sum::<usize>()
}

/// The place of the attribute in `per`.
fn place(one: &Written<'_>, name: &str) -> SourceSpan {
    let entries = one.entry.per.get().into_iter().flatten().filter_map(Field::given);
    let mut names = entries.filter(|(text, _)| text.split('|').any(|own| own.trim() == name));
    names.next().map_or(one.at, |(_, at)| at)
}
