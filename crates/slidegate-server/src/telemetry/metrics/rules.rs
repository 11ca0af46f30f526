//! The metric of rules that never apply.

use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::DomainLabels;
use crate::telemetry::rule_use::RuleUse;

/// The gauges whose values are copied from [`RuleUse`] for each scrape.
pub struct RuleGauges {
    never_applied: Family<DomainLabels, Gauge>,
}

impl RuleGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let never_applied = Family::default();
        registry.register(
            "rules_never_applied",
            "Rules that have not applied to any request since the policy was loaded, in domains with 1000 requests",
            never_applied.clone(),
        );
        Self { never_applied }
    }

    /// Removes the domains of an earlier policy.
    pub fn reset(&self) {
        self.never_applied.clear();
    }

    /// Copies the values of the active policy.
    pub fn update(&self, rule_use: &RuleUse) {
        for (domain, unused) in rule_use.unused_rule_counts() {
            let gauge =
                self.never_applied.get_or_create(&DomainLabels { domain: domain.to_owned() });
            gauge.set(i64::try_from(unused).unwrap_or(i64::MAX));
        }
    }
}
