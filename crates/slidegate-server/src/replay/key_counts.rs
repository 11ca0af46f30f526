//! Which keys are denied most.
//!
//! How often a key asked is known only if it is counted from its first request on, long before it is
//! denied. So all keys are counted, by a 64-bit hash, as the store itself knows them: 24 bytes each, and
//! no more of them than the store holds. Only keys that are denied keep their values.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::quality::RandomState;
use serde::Serialize;

/// What is known of keys, by their hashes.
pub type ByHash<T> = HashMap<u64, T, foldhash::fast::RandomState>;

#[derive(Default)]
pub struct KeyCounts {
    max_keys: usize,
    hasher: RandomState,
    counts: ByHash<KeyCount>,
    denied: ByHash<RuleKey>,
    uncounted: u64,
}

/// How often a key asked, and how often it was denied.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct KeyCount {
    pub asked: u64,
    pub denied: u64,
}

/// The rule's place in the policy, and what it counts by: names and values.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleKey {
    pub rule: usize,
    pub values: Box<[(Box<str>, Box<str>)]>,
}

impl KeyCounts {
    /// Counts at most `max_keys` keys.
    pub fn new(max_keys: usize) -> Self {
        Self { max_keys, ..Self::default() }
    }

    /// Counts one request of a key, and tells the key's hash; none if there are too many keys to count it.
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
            self.uncounted += 1;
            return None;
        }
        self.counts.entry(hash).or_default().asked += 1;
        Some(hash)
    }

    /// Counts that a key was denied.
    pub fn count_denial<'v>(
        &mut self,
        hash: u64,
        rule: usize,
        values: impl Iterator<Item = (&'v str, Cow<'v, str>)>,
    ) {
        self.counts.entry(hash).or_default().denied += 1;
        let own = |(name, value): (&str, Cow<'_, str>)| (name.into(), value.into());
        self.denied
            .entry(hash)
            .or_insert_with(|| RuleKey { rule, values: values.map(own).collect() });
    }

    /// The keys that were denied most; of keys that were denied alike, those that asked most.
    pub fn most_denied(&self, max_keys: usize) -> Vec<(&RuleKey, KeyCount)> {
        let mut denied: Vec<_> =
            self.denied.iter().map(|(hash, key)| (key, self.counts[hash])).collect();
        denied.sort_unstable_by_key(|&(key, count)| {
            (Reverse(count.denied), Reverse(count.asked), key)
        });
        denied.truncate(max_keys);
        denied
    }

    /// Requests of keys that came when there were too many.
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(keys: &mut KeyCounts, rule: usize, values: &[&str], denied: bool) {
        let values = || values.iter().map(|&value| ("a", Cow::Borrowed(value)));
        if let Some(hash) = keys.count_request(rule, values())
            && denied
        {
            keys.count_denial(hash, rule, values());
        }
    }

    #[test]
    fn the_most_denied_come_first() {
        let mut keys = KeyCounts::new(100);
        for (rule, value, denied) in [
            (0, "b", true),
            (0, "b", false),
            (1, "a", true),
            (1, "a", true),
            (0, "a", true),
            (0, "c", false),
        ] {
            count(&mut keys, rule, &[value], denied);
        }
        let most_denied = keys.most_denied(2);
        let told = most_denied
            .iter()
            .map(|(key, count)| (key.rule, &*key.values[0].1, count.denied, count.asked));
        assert_eq!(told.collect::<Vec<_>>(), [(1, "a", 2, 2), (0, "b", 1, 2)]);
    }

    #[test]
    fn keys_beyond_the_bound_are_not_counted() {
        let mut keys = KeyCounts::new(1);
        for value in ["a", "b", "a", "b", "b"] {
            count(&mut keys, 0, &[value], true);
        }
        assert_eq!(keys.most_denied(9).len(), 1);
        assert_eq!((keys.most_denied(9)[0].1.asked, keys.uncounted()), (2, 3));
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let mut keys = KeyCounts::new(100);
        count(&mut keys, 0, &["ab", "c"], true);
        count(&mut keys, 0, &["a", "bc"], true);
        assert_eq!(keys.most_denied(9).len(), 2);
    }
}
