//! The metrics of rules that never apply, and of rules that observe.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::DomainLabels;
use crate::telemetry::rule_use::RuleUse;
use crate::telemetry::top::ObservedKeyCount;

/// The gauges whose values are copied from [`RuleUse`] for each scrape.
pub struct RuleGauges {
    never_applied: Family<DomainLabels, Gauge>,
    observed_keys: Family<RuleLabels, Gauge>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuleLabels {
    domain: String,
    rule: String,
}

impl RuleGauges {
    pub(super) fn register(registry: &mut Registry) -> Self {
        let never_applied = Family::default();
        registry.register(
            "rules_never_applied",
            "Rules that have not applied to any request since the policy was loaded, in domains with 1000 requests",
            never_applied.clone(),
        );
        let observed_keys = Family::default();
        registry.register(
            "observed_keys",
            "Keys that an observing rule would have denied since its roll-out began, at most 10000",
            observed_keys.clone(),
        );
        Self { never_applied, observed_keys }
    }

    /// Removes the domains and rules of an earlier policy.
    pub fn reset(&self) {
        self.never_applied.clear();
        self.observed_keys.clear();
    }

    /// Copies the values of the active policy.
    pub fn update(&self, rule_use: &RuleUse, observed: Vec<ObservedKeyCount>) {
        for ObservedKeyCount { domain, rule, keys } in observed {
            let labels = RuleLabels { domain: domain.into(), rule: rule.into() };
            let gauge = self.observed_keys.get_or_create(&labels);
            gauge.set(i64::try_from(keys).unwrap_or(i64::MAX));
        }
        for (domain, unused) in rule_use.count_unused_rules() {
            let gauge =
                self.never_applied.get_or_create(&DomainLabels { domain: domain.to_owned() });
            gauge.set(i64::try_from(unused).unwrap_or(i64::MAX));
        }
    }
}
