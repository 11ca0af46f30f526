//! Counts the most frequent keys of each rule in the last five minutes: keys of denied requests, of requests that
//! nearly reached a limit, and of requests that only an observing rule would have denied.
//!
//! Each [`TopList`] of a rule has one [`summary`] per minute, so that a whole minute expires at once. A report merges
//! the summaries of the last five minutes. Recording a key requires a shared lock on the shard of the rule, and the
//! lock of one list.
//!
//! # Memory
//!
//! Each summary holds at most `capacity` keys. All summaries share a budget of 65,536 keys ([`key_budget`]), and there
//! are at most 16,384 rules. Memory is allocated as keys arrive: about 17 MB when the budget is used up, 52 MB if all
//! values are long, because a key keeps at most 256 bytes of names and values. The keys since the roll-out of observing
//! rules began have a budget of their own ([`rollout`]), of the same size.

mod key_budget;
mod label;
mod minutes;
mod report;
mod rollout;
pub(super) mod summary;

#[cfg(test)]
mod properties;

use std::array;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use slidegate::Timestamp;
use slidegate::policy::Rule;
use slidegate::store::Value;

use super::redact::Redactor;
use key_budget::KeyBudget;
use minutes::{MinuteSummaries, unix_minute};
use rollout::Rollout;

pub use report::TopReport;
pub use rollout::{MAX_ROLLOUT_KEYS_PER_RULE, ObservedKeyCount, RolloutReport};

/// Number of shards into which the rules are divided. Each shard has its own lock.
const RULE_SHARD_COUNT: usize = 64;
/// Maximum number of rules per shard. All shards together hold more than the 10,000 rules of a policy, because rules
/// that a reload has removed stay until their keys expire.
const MAX_RULES_PER_SHARD: usize = 256;

/// A list of the most frequent keys of a rule. Each list counts one kind of result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopList {
    /// The keys of denied requests.
    Denied,
    /// The keys of allowed requests after which little of a limit remained.
    Near,
    /// The keys of requests that an observing rule would have denied, if it enforced its limits.
    Observed,
}

impl TopList {
    const ALL_LISTS: [Self; 3] = [Self::Denied, Self::Near, Self::Observed];
}

/// The approximate counts of the most frequent keys of every rule.
#[derive(Debug)]
pub struct TopKeys {
    capacity: usize,
    redactor: Redactor,
    started: Timestamp,
    /// Secret for the hashes of rules and keys, so that clients cannot choose values whose hashes collide.
    secret: foldhash::quality::RandomState,
    shards: [RwLock<RuleShard>; RULE_SHARD_COUNT],
    key_budget: KeyBudget,
    /// The budget of the keys of all [rollouts](rollout).
    rollout_budget: KeyBudget,
    /// The minute of the current cleanup of expired minutes, and the next shard to clean up, encoded as
    /// `unix_minute * RULE_SHARD_COUNT + shard`.
    cleanup_position: AtomicU64,
}

/// One part of the map of all rules: the key lists of each rule, by the hash of its domain and name. Positions in the
/// policy are not used, because a reload may change them.
type RuleShard = HashMap<u64, RuleTopLists, foldhash::fast::RandomState>;

/// The lists of the most frequent keys of one rule.
#[derive(Debug)]
struct RuleTopLists {
    domain: Box<str>,
    rule: Box<str>,
    lists: [Mutex<MinuteSummaries>; TopList::ALL_LISTS.len()],
    /// The observed keys since the roll-out of the rule began; `None` if it has not observed a key.
    rollout: Mutex<Option<Rollout>>,
}

impl TopKeys {
    /// Creates empty lists with at most `capacity` keys per rule and minute. `redactor` hides secret attribute values
    /// before they are stored.
    pub fn new(capacity: usize, redactor: Redactor, now: Timestamp) -> Self {
        Self::with_key_budget(capacity, redactor, now, KeyBudget::new(key_budget::MAX_KEYS))
    }

    fn with_key_budget(
        capacity: usize,
        redactor: Redactor,
        started: Timestamp,
        key_budget: KeyBudget,
    ) -> Self {
        Self {
            capacity,
            redactor,
            started,
            secret: foldhash::quality::RandomState::default(),
            shards: array::from_fn(|_| RwLock::default()),
            key_budget,
            rollout_budget: KeyBudget::new(key_budget::MAX_KEYS),
            cleanup_position: AtomicU64::new((unix_minute(started) + 1) * RULE_SHARD_COUNT as u64),
        }
    }

    /// Adds `amount` to the count of a key in one list of a rule. `attributes` returns the attribute names and values
    /// of the key.
    pub fn record<'v, I>(
        &self,
        list: TopList,
        rule: &Rule,
        attributes: impl Fn() -> I,
        amount: u64,
        now: Timestamp,
    ) where
        I: Iterator<Item = (&'v str, Value<'v>)>,
    {
        if amount == 0 {
            return;
        }
        let mut hasher = self.secret.build_hasher();
        attributes().for_each(|pair| pair.hash(&mut hasher));
        let key = hasher.finish();
        let write_label = |label: &mut label::KeyLabel| label.write(attributes(), &self.redactor);
        self.update_top_lists_of_rule(rule, |rule_lists| {
            let mut minutes = rule_lists.lists[list as usize].lock();
            minutes.record(now, (key, amount), (self.capacity, &self.key_budget), write_label);
            if list == TopList::Observed {
                let mut rollout = rule_lists.rollout.lock();
                let rollout =
                    rollout.get_or_insert_with(|| Rollout::new(now, &self.rollout_budget));
                rollout.record(key, amount, write_label);
            }
        });
        self.remove_expired_minutes_of_next_shard(now);
    }

    /// Returns the result of `read` for the lists of a rule; `None` if the rule has no lists.
    fn read_rule_lists<T>(
        &self,
        domain: &str,
        rule: &str,
        read: impl FnOnce(&RuleTopLists) -> T,
    ) -> Option<T> {
        let hash = self.secret.hash_one((domain, rule));
        self.shards[hash as usize % RULE_SHARD_COUNT].read().get(&hash).map(read)
    }

    /// Calls `record` with the lists of a rule, and creates the lists if necessary. Does not call `record` if the lists
    /// do not exist and the shard already has [`MAX_RULES_PER_SHARD`] rules.
    fn update_top_lists_of_rule(&self, rule: &Rule, record: impl FnOnce(&RuleTopLists)) {
        let hash = self.secret.hash_one((rule.domain(), rule.name()));
        let shard = &self.shards[hash as usize % RULE_SHARD_COUNT];
        if let Some(rule_lists) = shard.read().get(&hash) {
            return record(rule_lists);
        }
        let mut shard = shard.write();
        if shard.len() < MAX_RULES_PER_SHARD || shard.contains_key(&hash) {
            record(shard.entry(hash).or_insert_with(|| RuleTopLists::new(rule)));
        }
    }

    /// Removes expired minutes from the next shard, unless all shards have been cleaned up in the current minute. Each
    /// call cleans up at most one shard, so that no call takes long.
    fn remove_expired_minutes_of_next_shard(&self, now: Timestamp) {
        let (minute, shards) = (unix_minute(now), RULE_SHARD_COUNT as u64);
        let cleanup_position = self.cleanup_position.load(Ordering::Relaxed);
        let next = cleanup_position.max(minute * shards);
        let try_claim = || {
            self.cleanup_position.compare_exchange(
                cleanup_position,
                next + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
        };
        if next < (minute + 1) * shards && try_claim().is_ok() {
            remove_expired_minutes_of_shard(&self.shards[(next % shards) as usize], minute);
        }
    }
}

fn remove_expired_minutes_of_shard(shard: &RwLock<RuleShard>, minute: u64) {
    let remove_minutes = |rule_lists: &RuleTopLists| {
        rule_lists.lists.iter().for_each(|minutes| minutes.lock().remove_expired(minute));
    };
    shard.read().values().for_each(remove_minutes);
    // The exclusive lock is held only for the check of empty lists, which is fast.
    shard.write().retain(|_, rule_lists| {
        rule_lists.rollout.get_mut().is_some()
            || rule_lists.lists.iter_mut().any(|minutes| !minutes.get_mut().is_empty())
    });
}

impl RuleTopLists {
    fn new(rule: &Rule) -> Self {
        Self {
            domain: rule.domain().into(),
            rule: rule.name().into(),
            lists: Default::default(),
            rollout: Mutex::default(),
        }
    }
}
