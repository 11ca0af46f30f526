//! The active policy, with everything that depends on it.

use std::sync::Arc;

use slidegate::Policy;

use crate::telemetry::rule_use::RuleUse;
use crate::telemetry::{PolicyMetrics, Telemetry};

/// The policy with the metrics of its limits. A reload replaces both together.
pub struct ActivePolicy {
    pub policy: Arc<Policy>,
    pub metrics: PolicyMetrics,
    /// The attributes of the policy whose names begin with `header.`, such as `header.x-api-key`.
    pub header_attributes: Box<[Box<str>]>,
}

impl ActivePolicy {
    /// Creates the metrics of a policy, and finds its headers.
    pub fn new(policy: Arc<Policy>, telemetry: &Telemetry) -> Self {
        let metrics = telemetry.policy_metrics(&policy);
        let attributes = policy.attribute_names();
        let headers = attributes.iter().filter(|name| name.starts_with("header."));
        let header_attributes = headers.map(|name| (*name).into()).collect();
        Self { policy, metrics, header_attributes }
    }

    /// Logs the denials that were not logged, because their rules had used up their budgets of log lines.
    pub fn log_unlogged_denials(&self) {
        self.metrics.log_unlogged_denials(&self.policy);
    }

    /// Returns the rules that have applied to requests since the policy was loaded.
    pub fn rule_use(&self) -> &RuleUse {
        self.metrics.rule_use()
    }
}
