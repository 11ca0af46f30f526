//! Which keys are denied most.
//!
//! How often a key asked is known only if it is counted from its first request on, long before it is
//! denied. So all keys are counted, by a 64-bit hash, as the store itself knows them: 24 bytes each, and
//! no more of them than the store holds. Only keys that are denied keep their values.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use serde::Serialize;

pub struct Keys {
    most: usize,
    hasher: RandomState,
    counts: HashMap<u64, Count>,
    denied: HashMap<u64, Key>,
    uncounted: u64,
}

/// How often a key asked, and how often it was denied.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Count {
    pub asked: u64,
    pub denied: u64,
}

/// The rule's place in the policy, and the values of its `per` attributes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub rule: usize,
    pub values: Box<[Box<str>]>,
}

impl Keys {
    /// Counts at most `most` keys.
    pub fn new(most: usize) -> Self {
        Self {
            most,
            hasher: RandomState::new(),
            counts: HashMap::new(),
            denied: HashMap::new(),
            uncounted: 0,
        }
    }

    /// Counts one request of a key.
    pub fn count(&mut self, rule: usize, values: &[&str], denied: bool) {
        let hash = self.hasher.hash_one((rule, values));
        if self.counts.len() >= self.most && !self.counts.contains_key(&hash) {
            self.uncounted += 1;
            return;
        }
        let count = self.counts.entry(hash).or_default();
        count.asked += 1;
        if denied {
            count.denied += 1;
            let key = || Key { rule, values: values.iter().copied().map(Box::from).collect() };
            self.denied.entry(hash).or_insert_with(key);
        }
    }

    /// The keys that were denied most; of keys that were denied alike, those that asked most.
    pub fn top(&self, most: usize) -> Vec<(&Key, Count)> {
        let mut denied: Vec<_> =
            self.denied.iter().map(|(hash, key)| (key, self.counts[hash])).collect();
        denied.sort_unstable_by_key(|&(key, count)| {
            (Reverse(count.denied), Reverse(count.asked), key)
        });
        denied.truncate(most);
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

    #[test]
    fn the_most_denied_come_first() {
        let mut keys = Keys::new(100);
        for (rule, value, denied) in [
            (0, "b", true),
            (0, "b", false),
            (1, "a", true),
            (1, "a", true),
            (0, "a", true),
            (0, "c", false),
        ] {
            keys.count(rule, &[value], denied);
        }
        let top = keys.top(2);
        let told =
            top.iter().map(|(key, count)| (key.rule, &*key.values[0], count.denied, count.asked));
        assert_eq!(told.collect::<Vec<_>>(), [(1, "a", 2, 2), (0, "b", 1, 2)]);
    }

    #[test]
    fn keys_beyond_the_bound_are_not_counted() {
        let mut keys = Keys::new(1);
        for value in ["a", "b", "a", "b", "b"] {
            keys.count(0, &[value], true);
        }
        assert_eq!(keys.top(9).len(), 1);
        assert_eq!((keys.top(9)[0].1.asked, keys.uncounted()), (2, 3));
    }

    #[test]
    fn values_do_not_run_into_each_other() {
        let mut keys = Keys::new(100);
        keys.count(0, &["ab", "c"], true);
        keys.count(0, &["a", "bc"], true);
        assert_eq!(keys.top(9).len(), 2);
    }
}
