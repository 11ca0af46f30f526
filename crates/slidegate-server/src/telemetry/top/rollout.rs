//! Counts the keys that an observing rule would have denied since its roll-out began.
//!
//! The counts begin with the first such request, and end when the rule observes no more or the server stops. They hold
//! many more keys than a [list](super::TopList) of the last minutes, so that a long roll-out leaves out no client.

use std::collections::HashSet;

use serde::Serialize;
use slidegate::policy::{Mode, Rule};
use slidegate::{Policy, Timestamp};

use super::key_budget::{KeyBudget, KeyBudgetGuard};
use super::label::KeyLabel;
use super::report::TopKey;
use super::summary::{MergedSummary, Summary};
use super::{RuleTopLists, TopKeys};

/// Maximum number of keys of one rule. All rules together share a budget of [`MAX_KEYS`](super::key_budget::MAX_KEYS).
pub const MAX_ROLLOUT_KEYS_PER_RULE: usize = 10_000;

/// The keys of one rule since its roll-out began.
#[derive(Debug)]
pub struct Rollout {
    since: Timestamp,
    summary: Summary<KeyLabel>,
    budget_guard: KeyBudgetGuard,
}

/// The keys that rules with one name would have denied, for each domain that has such a rule.
#[derive(Clone, Debug, Serialize)]
pub struct RolloutReport {
    pub rules: Vec<RuleRollout>,
}

/// The keys that an observing rule would have denied since its roll-out began.
#[derive(Clone, Debug, Serialize)]
pub struct RuleRollout {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The name of the rule.
    pub rule: Box<str>,
    /// Number of seconds since the first request that the rule would have denied.
    pub since_seconds: u64,
    /// Exact number of requests that the rule would have denied.
    pub total: u64,
    /// Upper bound of the count of each key that is not listed.
    pub max_unlisted: u64,
    /// The keys, with the most requests first.
    pub observed: Vec<TopKey>,
}

/// The number of keys that an observing rule would have denied since its roll-out began.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedKeyCount {
    pub domain: Box<str>,
    pub rule: Box<str>,
    pub keys: usize,
}

impl Rollout {
    /// Creates counts without keys.
    pub fn new(since: Timestamp, key_budget: &KeyBudget) -> Self {
        Self { since, summary: Summary::default(), budget_guard: key_budget.guard() }
    }

    /// Adds `amount` to the count of a key. `write_label` is called only for a new key.
    pub fn record(&mut self, key: u64, amount: u64, write_label: impl FnOnce(&mut KeyLabel)) {
        let Self { summary, budget_guard, .. } = self;
        let can_grow = |keys| keys < MAX_ROLLOUT_KEYS_PER_RULE && budget_guard.try_take();
        summary.add(key, amount, can_grow, write_label);
    }

    fn report(&self, lists: &RuleTopLists, max_keys: usize, now: Timestamp) -> RuleRollout {
        let merged = MergedSummary::from(&self.summary);
        let entries = merged.top_entries();
        let omitted = entries.get(max_keys).map_or(0, |entry| entry.count);
        RuleRollout {
            domain: lists.domain.clone(),
            rule: lists.rule.clone(),
            since_seconds: now.as_micros().saturating_sub(self.since.as_micros()) / 1_000_000,
            total: merged.total(),
            max_unlisted: merged.max_untracked_count().max(omitted),
            observed: entries.into_iter().take(max_keys).map(TopKey::from).collect(),
        }
    }
}

impl TopKeys {
    /// Ends the counts of rules that do not observe in this policy.
    pub fn end_finished_rollouts(&self, policy: &Policy) {
        let observing: HashSet<(&str, &str)> = observing_rules(policy).collect();
        for shard in &self.shards {
            for lists in shard.read().values() {
                if !observing.contains(&(&*lists.domain, &*lists.rule)) {
                    *lists.rollout.lock() = None;
                }
            }
        }
    }

    /// Returns the keys that rules with this name would have denied, at most `max_keys` for each of them.
    pub fn rollout_report(&self, rule: &str, max_keys: usize, now: Timestamp) -> RolloutReport {
        let report = |lists: &RuleTopLists| {
            let rollout = lists.rollout.lock();
            rollout.as_ref().map(|rollout| rollout.report(lists, max_keys, now))
        };
        let mut rules: Vec<RuleRollout> = Vec::new();
        for shard in &self.shards {
            let shard = shard.read();
            rules.extend(shard.values().filter(|lists| *lists.rule == *rule).filter_map(report));
        }
        rules.sort_unstable_by(|left, right| left.domain.cmp(&right.domain));
        RolloutReport { rules }
    }

    /// Returns the number of keys of each observing rule of a policy.
    pub fn observed_key_counts(&self, policy: &Policy) -> Vec<ObservedKeyCount> {
        let count = |(domain, rule): (&str, &str)| {
            let keys = self.read_rule_lists(domain, rule, |lists| {
                lists.rollout.lock().as_ref().map_or(0, |rollout| rollout.summary.keys())
            });
            ObservedKeyCount { domain: domain.into(), rule: rule.into(), keys: keys.unwrap_or(0) }
        };
        observing_rules(policy).map(count).collect()
    }
}

/// Returns the domain and the name of each rule that observes some of its requests.
fn observing_rules(policy: &Policy) -> impl Iterator<Item = (&str, &str)> {
    let observes = |rule: &&Rule| {
        let overrides = rule.overrides().iter().map(|other| other.settings());
        let mut settings = overrides.chain([rule.settings()]);
        settings.any(|settings| matches!(settings.mode(), Mode::Observe | Mode::EnforceFor(_)))
    };
    policy.rules().iter().filter(observes).map(|rule| (rule.domain(), rule.name()))
}

#[cfg(test)]
mod tests {
    use slidegate::store::Value;

    use super::super::TopList;
    use super::*;
    use crate::telemetry::Redactor;

    fn policy(mode: &str) -> Policy {
        let rules = format!("rules: [{{ name: a, per: [tenant], limits: [1/s], mode: {mode} }}]");
        Policy::from_yaml(&rules).unwrap()
    }

    fn record(top_keys: &TopKeys, policy: &Policy, tenant: &str, at_s: u64) {
        let attributes = || [("tenant", Value::from(tenant))].into_iter();
        let now = Timestamp::from_secs(at_s);
        top_keys.record(TopList::Observed, &policy.rules()[0], attributes, 1, now);
    }

    #[test]
    fn rollout_keeps_keys_until_rule_observes_no_more() {
        let observing = policy("observe");
        let top_keys = TopKeys::new(2, Redactor::default(), Timestamp::from_secs(0));
        for nth in 0..1_000 {
            record(&top_keys, &observing, &nth.to_string(), 100);
        }
        record(&top_keys, &observing, "7", 90_000);
        let report = |max_keys| {
            top_keys.rollout_report("a", max_keys, Timestamp::from_secs(90_100)).rules.pop()
        };
        let all = report(MAX_ROLLOUT_KEYS_PER_RULE).unwrap();
        assert_eq!((all.since_seconds, all.total, all.max_unlisted), (90_000, 1_001, 0));
        assert_eq!((all.observed.len(), all.observed[0].count), (1_000, 2));
        assert_eq!(all.observed[0].key, [("tenant".to_owned(), "7".to_owned())]);
        assert_eq!(report(1).unwrap().max_unlisted, 1);
        let keys = |policy: &Policy| top_keys.observed_key_counts(policy).pop().map(|it| it.keys);
        assert_eq!((keys(&observing), keys(&policy("enforce"))), (Some(1_000), None));
        top_keys.end_finished_rollouts(&policy("{ enforce: 5% }"));
        assert!(report(1).is_some());
        top_keys.end_finished_rollouts(&policy("enforce"));
        assert!(report(1).is_none());
        assert_eq!(keys(&observing), Some(0));
    }

    #[test]
    fn rollout_keys_are_bounded() {
        let observing = policy("observe");
        let top_keys = TopKeys::new(2, Redactor::default(), Timestamp::from_secs(0));
        for nth in 0..MAX_ROLLOUT_KEYS_PER_RULE + 100 {
            record(&top_keys, &observing, &nth.to_string(), 100);
        }
        let report = top_keys.rollout_report("a", usize::MAX, Timestamp::from_secs(100));
        let rule = &report.rules[0];
        assert_eq!(rule.observed.len(), MAX_ROLLOUT_KEYS_PER_RULE);
        assert!(rule.max_unlisted > 0 && rule.total == (MAX_ROLLOUT_KEYS_PER_RULE + 100) as u64);
    }
}
