//! What is told of who is limited most.

use std::cmp::Reverse;

use serde::{Serialize, Serializer};
use slidegate::Timestamp;

use super::label::KeyLabel;
use super::minutes::{SECONDS_PER_MINUTE, WINDOW_MINUTES};
use super::summary::TopEntry;
use super::{RuleLists, TopKeys, TopList};

/// Who is limited most, by rules; the rule that denies most comes first.
#[derive(Clone, Debug, Serialize)]
pub struct TopReport {
    /// How far back it reaches.
    pub since_seconds: u64,
    /// The rules that anybody was counted of.
    pub rules: Vec<RuleTopKeys>,
}

/// Who is limited most by a rule.
#[derive(Clone, Debug, Serialize)]
pub struct RuleTopKeys {
    /// The rule's domain.
    pub domain: Box<str>,
    /// Its name.
    pub rule: Box<str>,
    /// Who was denied most.
    pub denied: Vec<TopKey>,
    /// Who was allowed, near the end of the limit.
    pub near: Vec<TopKey>,
    /// Who would have been denied most, had the rule been enforced.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<TopKey>,
    /// All that was denied, observed and near, exactly: the order of rules.
    #[serde(skip)]
    totals: [u64; 3],
}

/// A key, and how much of it was counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TopKey {
    /// Names and values, in the rule's order.
    #[serde(serialize_with = "as_map")]
    pub key: Vec<(String, String)>,
    /// Never too low.
    pub count: u64,
    /// By how much the count may be too high.
    pub max_overcount: u64,
}

fn as_map<S: Serializer>(pairs: &[(String, String)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(pairs.iter().map(|(name, value)| (name, value)))
}

impl TopKeys {
    /// What was counted in the last minutes, for each rule the `max_keys` keys that came most.
    pub fn report(&self, max_keys: usize, now: Timestamp) -> TopReport {
        let told = |watched: &RuleLists| self.rule(watched, max_keys, now);
        let shards = self.shards.iter();
        let mut rules: Vec<RuleTopKeys> = shards
            .flat_map(|shard| shard.read().values().filter_map(told).collect::<Vec<_>>())
            .collect();
        rules.sort_unstable_by(|one, other| one.sort_key().cmp(&other.sort_key()));
        TopReport { since_seconds: self.covered_seconds(now), rules }
    }

    /// Seconds back to where the oldest minute begins, or to the start.
    fn covered_seconds(&self, now: Timestamp) -> u64 {
        let now = now.as_micros();
        let lived = now.saturating_sub(self.started.as_micros());
        let kept = (WINDOW_MINUTES - 1) * SECONDS_PER_MINUTE * 1_000_000
            + now % (SECONDS_PER_MINUTE * 1_000_000);
        lived.min(kept).div_ceil(1_000_000)
    }

    /// None if nothing was counted.
    fn rule(&self, watched: &RuleLists, max_keys: usize, now: Timestamp) -> Option<RuleTopKeys> {
        let of = |list: TopList| {
            let minutes = watched.lists[list as usize].lock();
            let merged = minutes.merged(now, self.capacity);
            let keys = merged.top_entries().into_iter().take(max_keys).map(TopKey::from);
            (keys.collect::<Vec<_>>(), merged.total())
        };
        let [(denied, denials), (near, nears), (observed, observations)] = TopList::ALL.map(of);
        let totals = [denials, observations, nears];
        totals.iter().any(|total| *total > 0).then(|| {
            let (domain, rule) = (watched.domain.clone(), watched.rule.clone());
            RuleTopKeys { domain, rule, denied, near, observed, totals }
        })
    }
}

impl RuleTopKeys {
    fn sort_key(&self) -> impl Ord {
        (Reverse(self.totals), &self.domain, &self.rule)
    }
}

impl From<TopEntry<&KeyLabel>> for TopKey {
    fn from(top_entries: TopEntry<&KeyLabel>) -> Self {
        let key = top_entries.label.pairs().map(|(name, value)| (name.into(), value.into()));
        Self {
            key: key.collect(),
            count: top_entries.count,
            max_overcount: top_entries.max_overcount,
        }
    }
}
