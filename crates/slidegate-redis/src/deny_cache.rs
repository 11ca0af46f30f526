//! Denials that still hold, remembered: who asks again before it can be otherwise is not worth a call.
//!
//! A denial says how long the cost does not fit. Nothing but a give-back or a reset makes it fit sooner, so until
//! then, counted from when Redis was *asked*, the answer is known. What comes by another instance is learnt when
//! the entry ends, after [`DenyCache::new`]'s `longest` at most.

mod sampled;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use slidegate::{Limit, Outcome, Timestamp};
use smallvec::SmallVec;

use crate::ask::Counted;

/// Counters of which denials are remembered, at most.
const MOST_COUNTERS: usize = 65_536;

/// Costs of one counter of which denials are remembered, at most.
const MOST_COSTS: usize = 4;

/// Counters whose denials are forgotten together are told apart so far.
const MARKS: usize = 64;

/// Of a sampled rule denials are believed for so long at least: nothing else keeps from passing who is not asked
/// for.
const OF_SAMPLED: Duration = Duration::from_secs(1);

/// What Redis has denied of late.
#[derive(Debug)]
pub struct DenyCache {
    denials: Cache<u64, Denials>,
    longest: Duration,
    /// So that nobody can choose keys that meet.
    secret: RandomState,
    /// How often something was forgotten: whoever was asked before must not be remembered after.
    marks: [AtomicU64; MARKS],
}

/// What is known of a counter.
#[derive(Clone, Debug)]
struct Denials {
    limit: Limit,
    /// That of the last one.
    mark: Mark,
    of: SmallVec<[Denial; 1]>,
}

/// A cost that did not fit.
#[derive(Clone, Copy, Debug)]
struct Denial {
    cost: u64,
    asked_at: Timestamp,
    /// It is not worth asking before.
    until: Timestamp,
    /// It does not fit before; none if it never does.
    fits_at: Option<Timestamp>,
    reset_at: Timestamp,
    remaining: u64,
}

/// What is known of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// It did not fit lately, but that was too long ago to say that it does not fit yet. Of a sampled rule also
    /// when it should fit by now, until Redis has charged again.
    Stale,
    /// It does not fit.
    Denied(Outcome),
}

/// The state of the cache before an ask was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark(u64);

/// What Redis said of a hit, and when by the clock here.
#[derive(Clone, Copy, Debug)]
pub struct Heard {
    pub asked_at: Timestamp,
    pub heard_at: Timestamp,
    /// How long the cost does not fit; none if it never does.
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
    pub remaining: u64,
}

impl DenyCache {
    /// A cache that believes a denial for so long at most; zero: not at all.
    pub fn new(longest: Duration) -> Self {
        Self {
            denials: Cache::new(MOST_COUNTERS),
            longest,
            secret: RandomState::new(),
            marks: [const { AtomicU64::new(0) }; MARKS],
        }
    }

    /// What is known of a hit.
    pub fn know(&self, hit: &Counted, now: Timestamp) -> Known {
        let Some(denials) = self.denials.get(&self.counter(&hit.key, hit.tag)) else {
            return Known::Nothing;
        };
        // What another max denied is nothing to go by, nor is a clock that ran back.
        if denials.limit != hit.limit {
            return Known::Nothing;
        }
        let (cost, is_sampled) = (hit.cost.max(1), hit.sample > 1);
        let same = |denial: &&Denial| denial.cost == cost && now >= denial.asked_at;
        match denials.of.iter().find(same) {
            Some(denial) => denial.at(now, is_sampled),
            // Where less did not fit, more is not let pass unasked.
            None if is_sampled && denials.of.iter().any(|denial| denial.cost <= cost) => {
                Known::Stale
            }
            None => Known::Nothing,
        }
    }

    /// To be taken before a hit is asked for.
    pub fn mark(&self, hit: &Counted) -> Mark {
        Mark(self.mark_of(self.counter(&hit.key, hit.tag)).load(Ordering::Acquire))
    }

    /// Remembers that a cost does not fit.
    pub fn remember(&self, hit: &Counted, cost: u64, heard: &Heard, mark: Mark) {
        let longest = if hit.sample > 1 { self.longest.max(OF_SAMPLED) } else { self.longest };
        if longest.is_zero() {
            return;
        }
        let counter = self.counter(&hit.key, hit.tag);
        let denial = Denial {
            cost: cost.max(1),
            asked_at: heard.asked_at,
            until: heard
                .asked_at
                .after(heard.retry_after.map_or(longest, |wait| wait.min(longest))),
            fits_at: heard.retry_after.map(|wait| heard.heard_at.after(wait)),
            reset_at: heard.heard_at.after(heard.reset_after),
            remaining: heard.remaining,
        };
        let mut of: SmallVec<[Denial; 1]> = match self.denials.get(&counter) {
            // What was asked for before something was forgotten may be here for a moment: not to be kept.
            Some(known) if known.limit == hit.limit && known.mark == mark => known.of,
            _ => SmallVec::new(),
        };
        let may_matter =
            |other: &Denial| hit.sample > 1 || other.fits_at.is_none_or(|at| at > heard.heard_at);
        of.retain(|other| other.cost != denial.cost && may_matter(other));
        of.truncate(MOST_COSTS - 1);
        of.push(denial);
        self.put(counter, Denials { limit: hit.limit, mark, of }, mark);
    }

    /// Puts what was known at a mark. What was forgotten since stays forgotten.
    fn put(&self, counter: u64, denials: Denials, mark: Mark) {
        self.denials.insert(counter, denials);
        if self.mark_of(counter).load(Ordering::Acquire) != mark.0 {
            self.denials.remove(&counter);
        }
    }

    /// Forgets what is known of a counter, and what is still to be heard of asks that were sent before.
    pub fn forget(&self, key: &str, tag: u32) {
        let counter = self.counter(key, tag);
        self.mark_of(counter).fetch_add(1, Ordering::AcqRel);
        self.denials.remove(&counter);
    }

    fn counter(&self, key: &str, tag: u32) -> u64 {
        self.secret.hash_one((key, tag))
    }

    fn mark_of(&self, counter: u64) -> &AtomicU64 {
        &self.marks[(counter % MARKS as u64) as usize]
    }
}

impl Denial {
    fn at(&self, now: Timestamp, is_sampled: bool) -> Known {
        if !is_sampled && self.fits_at.is_some_and(|fits_at| now >= fits_at) {
            return Known::Nothing;
        }
        if now >= self.until {
            return Known::Stale;
        }
        let left = |moment: Timestamp| {
            Duration::from_micros(moment.as_micros().saturating_sub(now.as_micros()))
        };
        let remaining = self.remaining.try_into().unwrap_or(u32::MAX);
        let retry_after = self.fits_at.map(|fits_at| left(fits_at.max(self.until)));
        Known::Denied(Outcome::new(remaining, left(self.reset_at), retry_after))
    }
}

#[cfg(test)]
mod tests {
    use slidegate::{Admission, Hit, Key, Scope, Value};

    use super::*;
    use crate::Settings;
    use crate::ask::Wording;

    const NOW: Timestamp = Timestamp::from_secs(1_750_000_020);
    const MINUTE: Duration = Duration::from_secs(60);

    fn counted(limit: &Limit, cost: u64) -> Counted {
        let scope = Scope::new("domain", "rule", "limit", &["who"]);
        let key = Key::new(&scope, &[Value::Text("ann")]);
        Wording::of(&Settings::default()).counted(&Hit {
            key,
            limit,
            cost,
            admission: Admission::Enforce,
        })
    }

    fn denied(wait: Duration) -> Heard {
        let (retry_after, reset_after) = (Some(wait), wait);
        Heard { asked_at: NOW, heard_at: NOW, retry_after, reset_after, remaining: 0 }
    }

    #[test]
    fn what_was_asked_for_before_a_give_back_is_not_kept_by_who_asked_after() {
        let cache = DenyCache::new(MINUTE);
        let limit: Limit = "10/min".parse().unwrap();
        let (stale, fresh) = (counted(&limit, 10), counted(&limit, 11));
        let before = cache.mark(&stale);
        cache.forget(&stale.key, stale.tag);
        // Who was asked before has put its denial, and not yet seen that it is forgotten.
        let counter = cache.counter(&stale.key, stale.tag);
        cache.remember(&stale, 10, &denied(MINUTE), cache.mark(&stale));
        let mut put = cache.denials.get(&counter).unwrap();
        put.mark = before;
        cache.denials.insert(counter, put);

        cache.remember(&fresh, 11, &denied(MINUTE), cache.mark(&fresh));
        assert_eq!(cache.know(&stale, NOW), Known::Nothing);
        assert!(matches!(cache.know(&fresh, NOW), Known::Denied(_)));
    }
}
