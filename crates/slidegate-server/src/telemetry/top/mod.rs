//! Who is limited most: for each rule the keys that were denied most in the last minutes, and the like.
//!
//! Each rule, each [`TopList`] and each minute has a [`summary`] of its own, so that what is old goes as one;
//! a report merges those of the last five. Who is counted finds its rule behind a lock that is shared by
//! all who count, and takes the lock of this rule and kind.
//!
//! # What it takes
//!
//! A summary has at most `capacity` keys, and all of them together at most 65,536 ([`key_budget`]), of at most
//! 16,384 rules. Room is taken as keys come. With all of it taken that is some fifteen megabytes, and fifty
//! if all names and values are long: of each key 256 bytes of them are kept at most.

mod key_budget;
mod label;
mod minutes;
mod report;
mod summary;

#[cfg(test)]
mod properties;

use std::array;
use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use slidegate::policy::Rule;
use slidegate::{Timestamp, Value};

use super::redact::Redactor;
use key_budget::KeyBudget;
use minutes::{MinuteSummaries, unix_minute};

pub use report::TopReport;

/// Locks that rules are spread over.
const SHARDS: usize = 64;
/// Rules behind each: more than the 10,000 of a policy, of which some may have gone by a reload.
const MAX_RULES_PER_SHARD: usize = 256;

/// What a key is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopList {
    /// Denied.
    Denied,
    /// Allowed, and near the end of its limit.
    Near,
    /// Would have been denied, by a rule that only observes.
    Observed,
}

impl TopList {
    const ALL: [Self; 3] = [Self::Denied, Self::Near, Self::Observed];
}

/// Counts, of every rule, the keys that come most.
#[derive(Debug)]
pub struct TopKeys {
    capacity: usize,
    redactor: Redactor,
    started: Timestamp,
    /// Of the hashes of rules and of keys, so that nobody can choose names that collide.
    secret: foldhash::quality::RandomState,
    shards: [RwLock<Shard>; SHARDS],
    key_budget: KeyBudget,
    /// Where forgetting what is old has got to: minutes times shards.
    cleanup_position: AtomicU64,
}

/// Rules by the hash of their domain and name: a reload of the policy may change their places.
type Shard = HashMap<u64, RuleLists, foldhash::fast::RandomState>;

/// What is counted of a rule.
#[derive(Debug)]
struct RuleLists {
    domain: Box<str>,
    rule: Box<str>,
    lists: [Mutex<MinuteSummaries>; TopList::ALL.len()],
}

impl TopKeys {
    /// Counts up to so many keys of each rule in each minute. Values are kept as `redactor` shows them.
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
            cleanup_position: AtomicU64::new((unix_minute(started) + 1) * SHARDS as u64),
        }
    }

    /// Counts that so much was denied, or the like, of whom `identity` gives the names and values.
    pub fn count<'v, I>(
        &self,
        list: TopList,
        rule: &Rule,
        identity: impl Fn() -> I,
        cost: u64,
        now: Timestamp,
    ) where
        I: Iterator<Item = (&'v str, Value<'v>)>,
    {
        if cost == 0 {
            return;
        }
        let mut hasher = self.secret.build_hasher();
        identity().for_each(|pair| pair.hash(&mut hasher));
        let key = hasher.finish();
        let label = |label: &mut label::KeyLabel| label.write(identity(), &self.redactor);
        self.with_rule(rule, |with_rule| {
            let mut minutes = with_rule.lists[list as usize].lock();
            minutes.count(now, (key, cost), (self.capacity, &self.key_budget), label);
        });
        self.clean_up_next_shard(now);
    }

    /// Does something with what is counted of a rule, while it cannot go; nothing if there are too many rules.
    fn with_rule(&self, rule: &Rule, count: impl FnOnce(&RuleLists)) {
        let hash = self.secret.hash_one((rule.domain(), rule.name()));
        let shard = &self.shards[hash as usize % SHARDS];
        if let Some(with_rule) = shard.read().get(&hash) {
            return count(with_rule);
        }
        let mut shard = shard.write();
        if shard.len() < MAX_RULES_PER_SHARD || shard.contains_key(&hash) {
            count(shard.entry(hash).or_insert_with(|| RuleLists::new(rule)));
        }
    }

    /// Forgets what is old: in each minute each shard once, one at a call, so that no call takes long.
    fn clean_up_next_shard(&self, now: Timestamp) {
        let (minute, shards) = (unix_minute(now), SHARDS as u64);
        let cleanup_position = self.cleanup_position.load(Ordering::Relaxed);
        let next = cleanup_position.max(minute * shards);
        let mine = || {
            self.cleanup_position.compare_exchange(
                cleanup_position,
                next + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            )
        };
        if next < (minute + 1) * shards && mine().is_ok() {
            remove_expired(&self.shards[(next % shards) as usize], minute);
        }
    }
}

fn remove_expired(shard: &RwLock<Shard>, minute: u64) {
    let minutes = |with_rule: &RuleLists| {
        with_rule.lists.iter().for_each(|minutes| minutes.lock().remove_expired(minute));
    };
    shard.read().values().for_each(minutes);
    // Nobody counts while it is looked at which rules have nothing: that is quick.
    shard.write().retain(|_, with_rule| {
        with_rule.lists.iter_mut().any(|minutes| !minutes.get_mut().is_empty())
    });
}

impl RuleLists {
    fn new(rule: &Rule) -> Self {
        Self { domain: rule.domain().into(), rule: rule.name().into(), lists: Default::default() }
    }
}
