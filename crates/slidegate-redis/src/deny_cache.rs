//! A cache of denials, so that a client that is denied does not cause a call to Redis for each request.
//!
//! A denial is served from the cache only with exact figures. So one of two conditions must hold for each limit of the
//! request:
//!
//! - The limit denies, and this instance has not charged its counter since Redis denied. Then the figures change only
//!   when the next unit leaves the window. That time is known if the cost is one unit more than was left.
//! - The limit does not deny: the units that were left, minus all that this instance has charged since, are enough.
//!
//! Charges of other instances are missing until the entry expires, after [`DenyCache::new`]'s `longest` at most.

mod sampled;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use slidegate::{Limit, Outcome, Timestamp};
use smallvec::SmallVec;

use crate::ask::Counted;

/// Counters of which denials are remembered, at most.
const MAX_COUNTERS: usize = 65_536;

/// Numbers of units of one counter of which denials are remembered, at most.
const MAX_COSTS: usize = 4;

/// Counters whose denials are forgotten together are told apart so far.
const MARKS: usize = 64;

/// Size of the table of changed units. Counters that share an entry miss the cache more often than necessary.
const CHANGES: usize = 65_536;

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
    /// Units that this instance has charged or returned, by the hash of the counter.
    changes: Box<[AtomicU64]>,
}

/// What is known of a counter.
#[derive(Clone, Debug)]
struct Denials {
    limit: Limit,
    /// That of the last one.
    mark: Mark,
    /// Units that were left at `asked_at`.
    remaining: u64,
    asked_at: Timestamp,
    /// When `remaining` expires.
    until: Timestamp,
    of: SmallVec<[Denial; 1]>,
}

/// A number of units that did not fit.
#[derive(Clone, Copy, Debug)]
struct Denial {
    required: u64,
    asked_at: Timestamp,
    /// It is not worth asking before.
    until: Timestamp,
    /// It does not fit before; none if it never does.
    fits_at: Option<Timestamp>,
    reset_at: Timestamp,
    remaining: u64,
}

/// Returns the units that are added to the table for a cost. They are bounded, so that a number never wraps within the
/// life of an entry.
pub fn units_changed(cost: u64) -> u64 {
    cost.min(1 << 32)
}

/// What is known of a hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nothing.
    Nothing,
    /// It did not fit lately, but that was too long ago to say that it does not fit yet. Of a sampled rule also
    /// when it should fit by now, until Redis has charged again.
    Stale,
    /// It fits. The figures of its counter are not known exactly.
    Fits,
    /// It does not fit.
    Denied(Outcome),
}

/// The state of the cache before an ask was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    forgotten: u64,
    changed: u64,
}

/// Hits of a call. If it is dropped without an answer, they count as charged, since the call may have charged them.
pub struct Charging<'c> {
    cache: &'c DenyCache,
    hits: SmallVec<[InCall; 2]>,
}

/// A hit of a call.
struct InCall {
    counter: u64,
    /// The state of the cache before the call.
    mark: Mark,
    /// Units by which the call changes the counter; 0 if the rule is sampled.
    units: u64,
}

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
            denials: Cache::new(MAX_COUNTERS),
            longest,
            secret: RandomState::new(),
            marks: [const { AtomicU64::new(0) }; MARKS],
            changes: std::iter::repeat_with(|| AtomicU64::new(0)).take(CHANGES).collect(),
        }
    }

    /// What is known of a hit.
    pub fn know(&self, hit: &Counted, now: Timestamp) -> Known {
        let counter = self.counter(&hit.key, hit.tag);
        let Some(denials) = self.denials.get(&counter) else {
            return Known::Nothing;
        };
        // What another max denied is nothing to go by, nor is a clock that ran back.
        if denials.limit != hit.limit {
            return Known::Nothing;
        }
        let (required, is_sampled) = (hit.required, hit.sample > 1);
        if !is_sampled {
            let changed = self.changed(counter).wrapping_sub(denials.mark.changed);
            return denials.at(now, required, changed);
        }
        let same = |denial: &&Denial| denial.required == required && now >= denial.asked_at;
        match denials.of.iter().find(same) {
            Some(denial) => denial.at(now),
            // Where less did not fit, more is not let pass unasked.
            None if denials.of.iter().any(|denial| denial.required <= required) => Known::Stale,
            None => Known::Nothing,
        }
    }

    /// To be taken before a hit is asked for.
    pub fn mark(&self, hit: &Counted) -> Mark {
        self.mark_at(self.counter(&hit.key, hit.tag))
    }

    fn mark_at(&self, counter: u64) -> Mark {
        let forgotten = self.mark_of(counter).load(Ordering::Acquire);
        Mark { forgotten, changed: self.changed(counter) }
    }

    /// Begins a call that may charge these hits.
    pub fn charging(&self, hits: &[Counted]) -> Charging<'_> {
        let in_call = |hit: &Counted| {
            let counter = self.counter(&hit.key, hit.tag);
            let units = if hit.sample == 1 { units_changed(hit.cost) } else { 0 };
            InCall { counter, mark: self.mark_at(counter), units }
        };
        Charging { cache: self, hits: hits.iter().map(in_call).collect() }
    }

    /// Stores the figures of a counter, and the units that were denied, if any. `charged` are the units that this call has charged.
    pub fn remember(
        &self,
        hit: &Counted,
        denied: Option<u64>,
        heard: &Heard,
        mark: Mark,
        charged: u64,
    ) {
        let longest = if hit.sample > 1 { self.longest.max(OF_SAMPLED) } else { self.longest };
        if longest.is_zero() {
            return;
        }
        let counter = self.counter(&hit.key, hit.tag);
        let mark = Mark { changed: mark.changed.wrapping_add(charged), ..mark };
        let mut of: SmallVec<[Denial; 1]> = match self.denials.get(&counter) {
            // What was asked for before something was forgotten may be here for a moment: not to be kept.
            Some(known) if known.limit == hit.limit && known.mark == mark => known.of,
            _ => SmallVec::new(),
        };
        let may_matter =
            |other: &Denial| hit.sample > 1 || other.fits_at.is_none_or(|at| at > heard.heard_at);
        of.retain(|other| Some(other.required) != denied && may_matter(other));
        if let Some(denial) = denied.and_then(|required| heard.denial(hit, required, longest)) {
            of.truncate(MAX_COSTS - 1);
            of.push(denial);
        }
        let Heard { asked_at, remaining, .. } = *heard;
        let until = asked_at.after(longest);
        let denials = Denials { limit: hit.limit, mark, remaining, asked_at, until, of };
        self.put(counter, denials, mark);
    }

    /// Puts what was known at a mark. What was forgotten since stays forgotten.
    fn put(&self, counter: u64, denials: Denials, mark: Mark) {
        self.denials.insert(counter, denials);
        if self.mark_of(counter).load(Ordering::Acquire) != mark.forgotten {
            self.denials.remove(&counter);
        }
    }

    /// Forgets what is known of a counter, and what is still to be heard of asks that were sent before.
    pub fn forget(&self, key: &str, tag: u32) {
        let counter = self.counter(key, tag);
        self.mark_of(counter).fetch_add(1, Ordering::AcqRel);
        self.change(counter, 1);
        self.denials.remove(&counter);
    }

    fn counter(&self, key: &str, tag: u32) -> u64 {
        self.secret.hash_one((key, tag))
    }

    fn mark_of(&self, counter: u64) -> &AtomicU64 {
        &self.marks[(counter % MARKS as u64) as usize]
    }

    fn changes_of(&self, counter: u64) -> &AtomicU64 {
        &self.changes[(counter % CHANGES as u64) as usize]
    }

    /// Returns the units that this instance has charged or returned so far.
    fn changed(&self, counter: u64) -> u64 {
        self.changes_of(counter).load(Ordering::Acquire)
    }

    fn change(&self, counter: u64, units: u64) {
        self.changes_of(counter).fetch_add(units, Ordering::AcqRel);
    }
}

impl Charging<'_> {
    /// Ends the call. `charged` says of each hit whether it was charged. Returns the marks from before the call.
    pub fn answered(mut self, charged: impl Iterator<Item = bool>) -> SmallVec<[Mark; 2]> {
        let hits = self.hits.iter_mut().zip(charged);
        hits.filter(|(_, charged)| !charged).for_each(|(hit, _)| hit.units = 0);
        self.hits.iter().map(|hit| hit.mark).collect()
    }
}

impl Drop for Charging<'_> {
    fn drop(&mut self) {
        for hit in self.hits.iter().filter(|hit| hit.units > 0) {
            self.cache.change(hit.counter, hit.units);
        }
    }
}

impl Heard {
    /// Returns the denial of units. Returns `None` if `remaining` may change before they fit: that is so unless they are one
    /// unit more than is left. Figures of sampled rules are estimates in any case.
    fn denial(&self, hit: &Counted, required: u64, longest: Duration) -> Option<Denial> {
        let changes_next = match self.retry_after {
            Some(_) => required == self.remaining.saturating_add(1),
            None => self.remaining == hit.limit.capacity(),
        };
        (changes_next || hit.sample > 1).then(|| Denial {
            required,
            asked_at: self.asked_at,
            until: self.asked_at.after(self.retry_after.map_or(longest, |wait| wait.min(longest))),
            fits_at: self.retry_after.map(|wait| self.heard_at.after(wait)),
            reset_at: self.heard_at.after(self.reset_after),
            remaining: self.remaining,
        })
    }
}

impl Denials {
    /// Returns what is known of units, after this instance has changed the counter by `changed` units.
    fn at(&self, now: Timestamp, required: u64, changed: u64) -> Known {
        let same = |denial: &&Denial| denial.required == required && now >= denial.asked_at;
        if changed == 0
            && let Some(denial) = self.of.iter().find(same)
            && let denied @ Known::Denied(_) = denial.at(now)
        {
            return denied;
        }
        let is_fresh = self.asked_at <= now && now < self.until;
        // Where nothing is left the counter may be in debt.
        let fits = required.max(1).saturating_add(changed) <= self.remaining;
        if is_fresh && fits { Known::Fits } else { Known::Nothing }
    }
}

impl Denial {
    fn at(&self, now: Timestamp) -> Known {
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
    use slidegate::{Hit, Key, Scope, Value};

    use super::*;
    use crate::Settings;
    use crate::ask::Wording;

    const NOW: Timestamp = Timestamp::from_secs(1_750_000_020);
    const MINUTE: Duration = Duration::from_secs(60);

    fn counted(limit: &Limit, cost: u64) -> Counted {
        let scope = Scope::new("domain", "rule", "limit", &["who"]);
        let key = Key::new(&scope, &[Value::Text("ann")]);
        Wording::of(&Settings::default()).counted(&Hit::new(key, limit, cost))
    }

    fn denied(wait: Duration) -> Heard {
        let (retry_after, reset_after) = (Some(wait), wait);
        Heard { asked_at: NOW, heard_at: NOW, retry_after, reset_after, remaining: 0 }
    }

    #[test]
    fn what_was_asked_for_before_a_give_back_is_not_kept_by_who_asked_after() {
        let cache = DenyCache::new(MINUTE);
        let limit: Limit = "10/min".parse().unwrap();
        let sampled = |cost| Counted { sample: 2, ..counted(&limit, cost) };
        let (stale, fresh) = (sampled(10), sampled(11));
        let before = cache.mark(&stale);
        cache.forget(&stale.key, stale.tag);
        // Who was asked before has put its denial, and not yet seen that it is forgotten.
        let counter = cache.counter(&stale.key, stale.tag);
        let mark = cache.mark(&stale);
        cache.remember(&stale, Some(10), &denied(MINUTE), mark, 0);
        let mut put = cache.denials.get(&counter).unwrap();
        put.mark = before;
        cache.denials.insert(counter, put);

        let mark = cache.mark(&fresh);
        cache.remember(&fresh, Some(11), &denied(MINUTE), mark, 0);
        assert_eq!(cache.know(&stale, NOW), Known::Nothing);
        assert!(matches!(cache.know(&fresh, NOW), Known::Denied(_)));
    }
}
