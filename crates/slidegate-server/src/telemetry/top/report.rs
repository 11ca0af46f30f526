//! What is told of who is limited most.

use std::cmp::Reverse;

use serde::{Serialize, Serializer};
use slidegate::Timestamp;

use super::label::Label;
use super::minutes::{MINUTES, SECONDS};
use super::summary::Counted;
use super::{TopList, TopKeys, RuleLists};

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
    /// What was counted in the last minutes, for each rule the `most` keys that came most.
    pub fn report(&self, most: usize, now: Timestamp) -> TopReport {
        let told = |watched: &RuleLists| self.rule(watched, most, now);
        let shards = self.shards.iter();
        let mut rules: Vec<RuleTopKeys> = shards
            .flat_map(|shard| shard.read().values().filter_map(told).collect::<Vec<_>>())
            .collect();
        rules.sort_unstable_by(|one, other| one.rank().cmp(&other.rank()));
        TopReport { since_seconds: self.since(now), rules }
    }

    /// Seconds back to where the oldest minute begins, or to the start.
    fn since(&self, now: Timestamp) -> u64 {
        let now = now.as_micros();
        let lived = now.saturating_sub(self.started.as_micros());
        let kept = (MINUTES - 1) * SECONDS * 1_000_000 + now % (SECONDS * 1_000_000);
        lived.min(kept).div_ceil(1_000_000)
    }

    /// None if nothing was counted.
    fn rule(&self, watched: &RuleLists, most: usize, now: Timestamp) -> Option<RuleTopKeys> {
        let of = |kind: TopList| {
            let minutes = watched.kinds[kind as usize].lock();
            let merged = minutes.merged(now, self.capacity);
            let keys = merged.counted().into_iter().take(most).map(TopKey::from);
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
    fn rank(&self) -> impl Ord {
        (Reverse(self.totals), &self.domain, &self.rule)
    }
}

impl From<Counted<&Label>> for TopKey {
    fn from(counted: Counted<&Label>) -> Self {
        let key = counted.label.pairs().map(|(name, value)| (name.into(), value.into()));
        Self { key: key.collect(), count: counted.count, max_overcount: counted.error }
    }
}
