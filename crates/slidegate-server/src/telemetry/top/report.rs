//! The report of the keys that are limited most often, which `/v1/top` returns.

use std::cmp::Reverse;

use serde::{Serialize, Serializer};
use slidegate::Timestamp;

use super::label::KeyLabel;
use super::minutes::{SECONDS_PER_MINUTE, WINDOW_MINUTES};
use super::summary::TopEntry;
use super::{RuleTopLists, TopKeys, TopList};
use crate::telemetry::rule_use::UnusedRule;

/// The keys of all rules that are limited most often. The rule with the most denials comes first.
#[derive(Clone, Debug, Serialize)]
pub struct TopReport {
    /// Number of seconds that the report covers, up to now.
    pub since_seconds: u64,
    /// The rules with at least one counted key.
    pub rules: Vec<RuleTopKeys>,
    /// The rules that have not applied to any request, in domains that had many requests.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rules_never_applied: Vec<UnusedRule>,
}

/// The keys of one rule that are limited most often.
#[derive(Clone, Debug, Serialize)]
pub struct RuleTopKeys {
    /// The domain of the rule.
    pub domain: Box<str>,
    /// The name of the rule.
    pub rule: Box<str>,
    /// The keys with the most denials.
    pub denied: Vec<TopKey>,
    /// The keys with the most allowed requests after which little of a limit remained.
    pub near: Vec<TopKey>,
    /// The keys with the most requests that an observing rule would have denied.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<TopKey>,
    /// Exact totals of denials, of observed denials, and of allowed requests after which little of a limit remained.
    /// The report sorts the rules by these totals, in this order.
    #[serde(skip)]
    totals: [u64; 3],
}

/// A key with its approximate count in one list of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopKey {
    /// The attribute names and values of the key, in the order of the rule.
    #[serde(serialize_with = "serialize_pairs_as_map")]
    pub key: Vec<(String, String)>,
    /// Upper bound of the true count of the key.
    pub count: u64,
    /// Maximum difference between `count` and the true count: the true count is at least `count - max_overcount`.
    pub max_overcount: u64,
}

fn serialize_pairs_as_map<S: Serializer>(
    pairs: &[(String, String)],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

impl TopKeys {
    /// Returns the report of the last five minutes, with at most `max_keys` keys per list.
    pub fn report(&self, max_keys: usize, now: Timestamp) -> TopReport {
        let report_rule =
            |rule_lists: &RuleTopLists| self.build_rule_report(rule_lists, max_keys, now);
        let shards = self.shards.iter();
        let mut rules: Vec<RuleTopKeys> = shards
            .flat_map(|shard| shard.read().values().filter_map(report_rule).collect::<Vec<_>>())
            .collect();
        rules.sort_unstable_by(|left, right| left.rank_in_report().cmp(&right.rank_in_report()));
        TopReport {
            since_seconds: self.covered_seconds(now),
            rules,
            rules_never_applied: Vec::new(),
        }
    }

    /// Returns the number of seconds that the report covers: the time since the start of its oldest minute, or since
    /// the start of the process if that is later.
    fn covered_seconds(&self, now: Timestamp) -> u64 {
        let now = now.as_micros();
        let uptime_us = now.saturating_sub(self.started.as_micros());
        let window_us = (WINDOW_MINUTES - 1) * SECONDS_PER_MINUTE * 1_000_000
            + now % (SECONDS_PER_MINUTE * 1_000_000);
        uptime_us.min(window_us).div_ceil(1_000_000)
    }

    /// Returns the top keys of a rule, or `None` if no key of the rule was counted in the last minutes.
    fn build_rule_report(
        &self,
        rule_lists: &RuleTopLists,
        max_keys: usize,
        now: Timestamp,
    ) -> Option<RuleTopKeys> {
        let report_list = |list: TopList| {
            let minutes = rule_lists.lists[list as usize].lock();
            let merged = minutes.merged(now, self.capacity);
            let keys = merged.top_entries().into_iter().take(max_keys).map(TopKey::from);
            (keys.collect::<Vec<_>>(), merged.total())
        };
        let [(denied, denials), (near, nears), (observed, observations)] =
            TopList::ALL_LISTS.map(report_list);
        let totals = [denials, observations, nears];
        totals.iter().any(|total| *total > 0).then(|| {
            let (domain, rule) = (rule_lists.domain.clone(), rule_lists.rule.clone());
            RuleTopKeys { domain, rule, denied, near, observed, totals }
        })
    }
}

impl RuleTopKeys {
    fn rank_in_report(&self) -> impl Ord {
        (Reverse(self.totals), &self.domain, &self.rule)
    }
}

impl From<TopEntry<&KeyLabel>> for TopKey {
    fn from(entry: TopEntry<&KeyLabel>) -> Self {
        let key = entry.label.pairs().map(|(name, value)| (name.into(), value.into()));
        Self { key: key.collect(), count: entry.count, max_overcount: entry.max_overcount }
    }
}
