//! The logs of decisions: each decision at the level `trace`, and a limited number of denials per second and rule, each
//! with its limit, key and retry time.

use std::fmt::{self, Write};
use std::time::Duration;

use slidegate::policy::{Match, MatchedRules, Rule};
use slidegate::{Decision, LimitStatus, Policy, Reason, Timestamp};
use tracing::{info, trace};

use super::denial_budget::DenialLogBudgets;
use super::log_throttle::LogThrottle;
use super::redact::{RedactedValue, Redactor};
use crate::client_text::excerpt;
use crate::durations::ceil_millis;

/// Maximum number of bytes of an attribute value in the log. Longer values are cut.
const MAX_LOGGED_VALUE_BYTES: usize = 128;

/// A log of all decisions.
pub struct DecisionLog {
    redactor: Redactor,
}

impl DecisionLog {
    /// Creates a log whose keys are redacted if necessary.
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor }
    }

    /// Logs a decision at the level `trace`.
    pub fn log(&self, domain: &str, matched_rules: &MatchedRules<'_>, decision: &Decision<'_>) {
        let binding = decision.binding();
        let rule_match = binding.and_then(|status| status.find_match(matched_rules));
        let key = rule_match.map(|found| redacted_key(&self.redactor, found).to_string());
        trace!(
            domain = excerpt(domain),
            allowed = decision.is_allowed(),
            rule = binding.map(|status| status.rule_name()),
            limit = binding.map(|status| status.id()),
            key = key.filter(|key| !key.is_empty()),
            remaining = binding.map(|status| status.remaining()),
            degraded = decision.is_degraded(),
            "decided"
        );
    }
}

/// A log of denied requests, with a limited number of lines per second and rule.
pub struct DenialLog {
    max_per_second: u16,
    /// The budget of denials that no rule decides, because the store is unavailable.
    without_rule: LogThrottle,
    redactor: Redactor,
}

impl DenialLog {
    /// Creates a log of at most `max_per_second` lines per second for each [budget](DenialLogBudgets). Returns `None` if
    /// `max_per_second` is 0.
    pub fn new(max_per_second: u16, redactor: Redactor) -> Option<Self> {
        let without_rule = LogThrottle::new(max_per_second, Duration::from_secs(1));
        (max_per_second > 0).then_some(Self { max_per_second, without_rule, redactor })
    }

    /// Logs a decision that denies the request. `now` is the present time.
    pub fn log_denied_request(
        &self,
        budgets: &DenialLogBudgets,
        matched_rules: &MatchedRules<'_>,
        decision: &Decision<'_>,
        now: Timestamp,
    ) {
        let degraded = decision.is_degraded();
        if let Some(status) = decision.binding() {
            return self.log_exceeded_limit(budgets, &status, matched_rules, degraded, now);
        }
        let Some(unlogged) = self.without_rule.try_acquire(now) else { return };
        let domain = matched_rules.matches().next().map(|first| first.rule().domain());
        let is_unavailable = decision.reason() == Some(Reason::StoreUnavailable);
        let reason = is_unavailable.then_some("the store is unavailable");
        info!(domain, because = reason, degraded, unlogged, "denied");
    }

    /// Logs an exceeded limit, unless the budget of its rule is used up. `now` is the present time.
    pub fn log_exceeded_limit(
        &self,
        budgets: &DenialLogBudgets,
        status: &LimitStatus<'_>,
        matched_rules: &MatchedRules<'_>,
        degraded: bool,
        now: Timestamp,
    ) {
        let Some(rule_match) = status.find_match(matched_rules) else { return };
        let is_observed = status.is_observed();
        let settings = (self.max_per_second, &self.redactor);
        let Some(unlogged) = budgets.try_take_log_line(rule_match, is_observed, settings, now)
        else {
            return;
        };
        let key = Some(redacted_key(&self.redactor, rule_match).to_string());
        info!(
            domain = rule_match.rule().domain(),
            rule = rule_match.rule().name(),
            limit = status.id(),
            key = key.filter(|key| !key.is_empty()),
            cost = status.find_hit(matched_rules).map(|hit| hit.cost),
            retry_after_ms = status.retry_after().map(ceil_millis),
            reset_after_ms = ceil_millis(status.reset_after()),
            observed = is_observed,
            degraded,
            unlogged = unlogged.count,
            unlogged_keys = unlogged.keys,
            "{}",
            if is_observed { "would have been denied" } else { "denied" }
        );
    }
}

/// Logs the denials of each rule that were not logged since its last line.
pub fn log_unlogged_denials(budgets: &DenialLogBudgets, policy: &Policy) {
    for (rule, observed, unlogged) in budgets.take_unlogged_denials() {
        let rule = policy.rules().get(rule);
        info!(
            domain = rule.map(Rule::domain),
            rule = rule.map(Rule::name),
            observed,
            unlogged = unlogged.count,
            unlogged_keys = unlogged.keys,
            "denials were not logged"
        );
    }
}

/// Formats the key of a matching rule for the log, such as `tenant=acme,ip=192.0.2.7`. Values are redacted if necessary.
pub(super) fn redacted_key(redactor: &Redactor, rule_match: &Match<'_>) -> impl fmt::Display {
    fmt::from_fn(move |f| {
        for (index, (name, value)) in rule_match.identity().enumerate() {
            write!(f, "{}{name}=", if index > 0 { "," } else { "" })?;
            match redactor.redact(name, value) {
                RedactedValue::Plain(value) => write_escaped_value(f, &value.to_string())?,
                hash @ RedactedValue::Hash(_) => write!(f, "{hash}")?,
            }
        }
        Ok(())
    })
}

/// Writes an attribute value, cut after [`MAX_LOGGED_VALUE_BYTES`] bytes. Percent-encodes commas and percent signs, so
/// that a value cannot look like a second attribute.
fn write_escaped_value(f: &mut fmt::Formatter<'_>, value: &str) -> fmt::Result {
    let shown = &value[..value.floor_char_boundary(MAX_LOGGED_VALUE_BYTES)];
    for char in shown.chars() {
        match char {
            ',' => f.write_str("%2C")?,
            '%' => f.write_str("%25")?,
            _ => f.write_char(char)?,
        }
    }
    if shown.len() < value.len() { f.write_char('…') } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use slidegate::{Descriptor, Policy, Request};

    use super::*;

    fn format_tenant_and_ip_key(redactor: &Redactor, tenant: &str, ip: &str) -> String {
        let policy = Policy::from_yaml("rules: [{ name: a, per: [tenant, ip], limits: [1/s] }]");
        let policy = policy.unwrap();
        let request = Request::new("default", Descriptor::new([("ip", ip), ("tenant", tenant)]));
        let matched_rules = policy.apply(&request);
        redacted_key(redactor, matched_rules.matches().next().unwrap()).to_string()
    }

    #[test]
    fn logged_key_escapes_separators_in_values() {
        assert_eq!(
            format_tenant_and_ip_key(&Redactor::default(), "ac me=ö\n", "192.0.2.7"),
            "tenant=ac me=ö\n,ip=192.0.2.7"
        );
        assert_eq!(
            format_tenant_and_ip_key(&Redactor::default(), "a,ip=1%", "2"),
            "tenant=a%2Cip=1%25,ip=2"
        );
        let long = format!("{}ä", "x".repeat(127));
        assert_eq!(
            format_tenant_and_ip_key(&Redactor::default(), &long, "2"),
            format!("tenant={}…,ip=2", "x".repeat(127))
        );
    }

    #[test]
    fn redacted_value_is_hashed_before_truncation() {
        let redactor = Redactor::new(true);
        let key = |tenant: &str| format_tenant_and_ip_key(&redactor, tenant, "same");
        let (one, other) = ("x".repeat(1024), "x".repeat(1023) + "y");
        assert_eq!(
            key(&one),
            format!(
                "tenant={},ip={}",
                redactor.redact("tenant", (&*one).into()),
                redactor.redact("ip", "same".into())
            )
        );
        assert_ne!(key(&one), key(&other));
    }
}
