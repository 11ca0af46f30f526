//! Counts requests and denials per key, and finds the keys with the most denials.
//!
//! The requests of all keys are counted from the start, because the number of requests of a denied key includes the
//! requests before its first denial. Each key is identified by a 64-bit hash and takes 24 bytes. At most as many
//! keys are counted as the store can hold. Attribute names and values are stored only for denied keys.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use serde::Serialize;

/// A map from the hash of a key to a value.
pub type KeyHashMap<T> = HashMap<u64, T, foldhash::fast::RandomState>;

/// The numbers of requests and denials of each key, up to a maximum number of keys.
#[derive(Debug, Default)]
pub struct KeyCounts {
    max_keys: usize,
    hasher: RandomState,
    counts: KeyHashMap<KeyCount>,
    denied: KeyHashMap<RuleKey>,
    /// The number of keys of each rule, indexed by the position of the rule in the policy.
    keys_of_rules: Vec<u64>,
    uncounted_requests: u64,
}

/// The numbers of requests and denials of one key.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct KeyCount {
    #[serde(rename = "asked")]
    pub requests: u64,
    pub denied: u64,
}

/// A key of a rule: the position of the rule in the policy, and the attribute names and values of the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    pub rule: usize,
    pub values: Box<[(Box<str>, Box<str>)]>,
}

impl KeyCounts {
    /// Creates counts of requests and denials, without any keys. At most `max_keys` keys can be counted.
    pub fn new(max_keys: usize) -> Self {
        Self { max_keys, ..Self::default() }
    }

    /// Counts one request of a key, which is given by its rule and its attribute names and values. Returns the hash of
    /// the key, or `None` if the key is new and the maximum number of keys is reached.
    pub fn count_request<'v>(
        &mut self,
        rule: usize,
        values: impl Iterator<Item = (&'v str, Cow<'v, str>)>,
    ) -> Option<u64> {
        let mut hasher = self.hasher.build_hasher();
        rule.hash(&mut hasher);
        values.for_each(|value| value.hash(&mut hasher));
        let hash = hasher.finish();
        if self.counts.len() >= self.max_keys && !self.counts.contains_key(&hash) {
            self.uncounted_requests += 1;
            return None;
        }
        let count = self.counts.entry(hash).or_default();
        count.requests += 1;
        if count.requests == 1 {
            self.keys_of_rules.resize(self.keys_of_rules.len().max(rule + 1), 0);
            self.keys_of_rules[rule] += 1;
        }
        Some(hash)
    }

    /// Counts one denial of a key. `hash` is the result of `count_request` for the same key.
    pub fn count_denial<'v>(
        &mut self,
        hash: u64,
        rule: usize,
        values: impl Iterator<Item = (&'v str, Cow<'v, str>)>,
    ) {
        self.counts.entry(hash).or_default().denied += 1;
        let to_owned_pair = |(name, value): (&str, Cow<'_, str>)| (name.into(), value.into());
        self.denied
            .entry(hash)
            .or_insert_with(|| RuleKey { rule, values: values.map(to_owned_pair).collect() });
    }

    /// Returns the `max_keys` keys with the most denials, sorted by denials. Among equal numbers, the key with more
    /// requests comes first.
    pub fn most_denied(&self, max_keys: usize) -> Vec<(&RuleKey, KeyCount)> {
        let mut denied: Vec<_> =
            self.denied.iter().map(|(hash, key)| (key, self.counts[hash])).collect();
        denied.sort_unstable_by_key(|&(key, count)| {
            (Reverse(count.denied), Reverse(count.requests), key)
        });
        denied.truncate(max_keys);
        denied
    }

    /// Returns the number of keys of a rule, and the number of keys with a denial.
    pub fn count_keys_and_denied_keys(&self, rule: usize) -> (u64, u64) {
        let keys = self.keys_of_rules.get(rule).copied().unwrap_or_default();
        (keys, self.denied.values().filter(|key| key.rule == rule).count() as u64)
    }

    /// Returns the number of requests that were not counted, because their keys exceeded the maximum number of keys.
    pub fn uncounted_requests(&self) -> u64 {
        self.uncounted_requests
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count_decided_request(keys: &mut KeyCounts, rule: usize, values: &[&str], denied: bool) {
        let values = || values.iter().map(|&value| ("a", Cow::Borrowed(value)));
        if let Some(hash) = keys.count_request(rule, values())
            && denied
        {
            keys.count_denial(hash, rule, values());
        }
    }

    #[test]
    fn most_denied_keys_are_sorted_by_denials() {
        let mut keys = KeyCounts::new(100);
        for (rule, value, denied) in [
            (0, "b", true),
            (0, "b", false),
            (1, "a", true),
            (1, "a", true),
            (0, "a", true),
            (0, "c", false),
        ] {
            count_decided_request(&mut keys, rule, &[value], denied);
        }
        let most_denied = keys.most_denied(2);
        let denials = most_denied
            .iter()
            .map(|(key, count)| (key.rule, &*key.values[0].1, count.denied, count.requests));
        assert_eq!(denials.collect::<Vec<_>>(), [(1, "a", 2, 2), (0, "b", 1, 2)]);
        assert_eq!(
            [0, 1, 2].map(|rule| keys.count_keys_and_denied_keys(rule)),
            [(3, 2), (1, 1), (0, 0)]
        );
    }

    #[test]
    fn keys_beyond_max_keys_are_not_counted() {
        let mut keys = KeyCounts::new(1);
        for value in ["a", "b", "a", "b", "b"] {
            count_decided_request(&mut keys, 0, &[value], true);
        }
        assert_eq!(keys.most_denied(9).len(), 1);
        assert_eq!((keys.most_denied(9)[0].1.requests, keys.uncounted_requests()), (2, 3));
    }

    #[test]
    fn keys_with_equal_concatenated_values_are_distinct() {
        let mut keys = KeyCounts::new(100);
        count_decided_request(&mut keys, 0, &["ab", "c"], true);
        count_decided_request(&mut keys, 0, &["a", "bc"], true);
        assert_eq!(keys.most_denied(9).len(), 2);
    }
}
