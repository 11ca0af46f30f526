//! Logs each decision at the level `trace`.

use slidegate::Decision;
use slidegate::policy::MatchedRules;
use tracing::{Level, enabled, trace};

use super::denial_log::redacted_key;
use super::redact::Redactor;
use crate::client_text::excerpt;

/// A log of all decisions.
pub struct DecisionLog {
    redactor: Redactor,
}

impl DecisionLog {
    /// Creates a log whose keys are redacted if necessary.
    pub fn new(redactor: Redactor) -> Self {
        Self { redactor }
    }

    /// Logs a decision if the level of the log is `trace`.
    pub fn log(&self, domain: &str, matched_rules: &MatchedRules<'_>, decision: &Decision<'_>) {
        if !enabled!(Level::TRACE) {
            return;
        }
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
