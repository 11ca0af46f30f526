//! Finds rules that never apply, which usually have a misspelt name or value.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde::Serialize;
use slidegate::Policy;
use slidegate::policy::{MatchedRules, Mode, Rule};
use tracing::warn;

/// Number of requests of a domain after which the rules that have not applied to any of them are reported.
const MIN_REQUESTS_TO_REPORT_UNUSED: u32 = 1_000;

/// Maximum number of rules in the log message of a domain.
const MAX_LOGGED_RULES: usize = 20;

/// The rules of one policy that have applied to a request since the policy was loaded.
pub struct RuleUse {
    rules: Box<[RuleWithUsage]>,
    domains: Box<[DomainRequestCount]>,
}

struct RuleWithUsage {
    name: Box<str>,
    /// Index of the domain of the rule.
    domain: usize,
    /// Whether the rule has applied to a request. After that, the value is only read, so that threads do not contend.
    has_applied: AtomicBool,
}

struct DomainRequestCount {
    name: Box<str>,
    /// Number of requests, up to about [`MIN_REQUESTS_TO_REPORT_UNUSED`].
    requests: AtomicU32,
}

/// A rule that has not applied to any request, although its domain had many.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UnusedRule {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The name of the rule.
    pub rule: Box<str>,
}

impl RuleUse {
    /// Creates the state of a policy of which no rule has applied yet.
    pub fn new(policy: &Policy) -> Self {
        let domains = policy.domains();
        let domains: Box<[DomainRequestCount]> = domains
            .map(|name| DomainRequestCount { name: name.into(), requests: AtomicU32::new(0) })
            .collect();
        let names = domains.iter().map(|domain| &*domain.name);
        let index_by_name: HashMap<&str, usize> = names.zip(0..).collect();
        let rules = policy.rules().iter().map(|rule| RuleWithUsage {
            name: rule.name().into(),
            // Every rule has a domain of the policy, so the default index is never used.
            domain: index_by_name.get(rule.domain()).copied().unwrap_or_default(),
            has_applied: AtomicBool::new(!is_expected_to_apply(rule)),
        });
        Self { rules: rules.collect(), domains }
    }

    /// Returns the indexes of the domains, with their names.
    pub fn domains(&self) -> impl Iterator<Item = (usize, &str)> {
        self.domains.iter().map(|domain| &*domain.name).enumerate()
    }

    /// Records a request to which rules apply.
    pub fn record_matched_request(&self, matched_rules: &MatchedRules<'_>) {
        let mut domain = None;
        for rule_match in matched_rules.matches() {
            let Some(rule) = self.rules.get(rule_match.rule_index()) else { continue };
            if !rule.has_applied.load(Ordering::Relaxed) {
                rule.has_applied.store(true, Ordering::Relaxed);
            }
            domain = Some(rule.domain);
        }
        if let Some(domain) = domain {
            self.record_request(domain);
        }
    }

    /// Records a request of the domain with this index. Logs the rules that have not applied once the domain has had
    /// [`MIN_REQUESTS_TO_REPORT_UNUSED`] requests.
    pub fn record_request(&self, domain: usize) {
        let Some(DomainRequestCount { name, requests }) = self.domains.get(domain) else { return };
        if requests.load(Ordering::Relaxed) >= MIN_REQUESTS_TO_REPORT_UNUSED
            || requests.fetch_add(1, Ordering::Relaxed) + 1 != MIN_REQUESTS_TO_REPORT_UNUSED
        {
            return;
        }
        let of_domain = self.never_applied_rules().filter(|rule| rule.domain == domain);
        let unused: Vec<&str> = of_domain.map(|rule| &*rule.name).collect();
        if !unused.is_empty() {
            let listed =
                unused.iter().take(MAX_LOGGED_RULES).copied().collect::<Vec<_>>().join(", ");
            warn!(
                domain = &**name,
                rules = listed,
                more = unused.len().checked_sub(MAX_LOGGED_RULES).filter(|more| *more > 0),
                requests = MIN_REQUESTS_TO_REPORT_UNUSED,
                "rules have not applied to any request of their domain; check the names and values in `when` and `per`"
            );
        }
    }

    /// Returns the rules that have not applied, in domains that have had at least [`MIN_REQUESTS_TO_REPORT_UNUSED`]
    /// requests.
    pub fn unused_rules(&self) -> Vec<UnusedRule> {
        let never_applied_rules = self.never_applied_rules().filter_map(|rule| {
            let domain =
                self.domains.get(rule.domain).filter(|domain| domain.has_enough_requests())?;
            Some(UnusedRule { domain: domain.name.clone(), rule: rule.name.clone() })
        });
        never_applied_rules.collect()
    }

    /// Returns the name of each domain, and the number of its rules that have not applied. The number is 0 until the
    /// domain has had [`MIN_REQUESTS_TO_REPORT_UNUSED`] requests.
    pub fn count_unused_rules(&self) -> impl Iterator<Item = (&str, usize)> {
        let mut counts = vec![0; self.domains.len()];
        for rule in self.never_applied_rules() {
            counts[rule.domain] += 1;
        }
        let domains = self.domains.iter().zip(counts);
        domains.map(|(domain, count)| {
            (&*domain.name, if domain.has_enough_requests() { count } else { 0 })
        })
    }

    /// Returns the rules that have not applied, also in domains with fewer than [`MIN_REQUESTS_TO_REPORT_UNUSED`]
    /// requests.
    fn never_applied_rules(&self) -> impl Iterator<Item = &RuleWithUsage> {
        self.rules.iter().filter(|rule| !rule.has_applied.load(Ordering::Relaxed))
    }
}

impl DomainRequestCount {
    /// Returns `true` if the domain has had [`MIN_REQUESTS_TO_REPORT_UNUSED`] requests, so that its unused rules are
    /// reported.
    fn has_enough_requests(&self) -> bool {
        self.requests.load(Ordering::Relaxed) >= MIN_REQUESTS_TO_REPORT_UNUSED
    }
}

/// Returns `true` if the rule is expected to apply: it is not switched off, and not only meant for descriptors that
/// contain a limit.
fn is_expected_to_apply(rule: &Rule) -> bool {
    let overrides = rule.overrides().iter().map(|rule_override| rule_override.settings());
    let mut settings = overrides.chain([rule.settings()]);
    settings.any(|settings| settings.mode() != Mode::Off) && !rule.is_for_requested_limits()
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Request};

    use super::*;

    #[test]
    fn unused_rules_are_reported_after_enough_requests() {
        let policy = Policy::from_yaml(
            "
rules:
  - { name: used, per: [ip], limits: [9/s] }
  - { name: unused, when: { metod: POST }, limits: [9/s] }
  - { name: late, when: { path: /late }, limits: [9/s] }
  - { name: switched-off, limits: [9/s], mode: off }
  - { name: quiet, domain: other, limits: [9/s] }
",
        );
        let policy = policy.unwrap();
        let rule_use = RuleUse::new(&policy);
        let record = |attributes: &[(&str, &str)]| {
            let request = Request::new("default", Descriptor::new(attributes.iter().copied()));
            rule_use.record_matched_request(&policy.apply(&request));
        };
        for _ in 0..MIN_REQUESTS_TO_REPORT_UNUSED - 2 {
            record(&[("ip", "192.0.2.7")]);
        }
        let (default, _) = rule_use.domains().find(|(_, name)| *name == "default").unwrap();
        rule_use.record_request(default);
        assert_eq!(rule_use.unused_rules(), []);
        record(&[("ip", "192.0.2.7")]);
        let unused = || {
            let rules = rule_use.unused_rules().into_iter().map(|unused| unused.rule);
            rules.collect::<Vec<_>>().join(", ")
        };
        assert_eq!(unused(), "unused, late");
        let counts = |domain: &str| {
            rule_use.count_unused_rules().find(|(name, _)| *name == domain).unwrap().1
        };
        assert_eq!((counts("default"), counts("other")), (2, 0));
        record(&[("path", "/late")]);
        assert_eq!(unused(), "unused");
    }
}
