//! A cache of denials, so that a client that is denied does not cause a call to Redis for each request.
//!
//! A denial is served from the cache only if the figures of the denying limit, such as remaining units and waits, are
//! exact. So one of two conditions must hold for each limit of the request:
//!
//! - The limit denies, and this instance has not charged its counter since Redis denied. Then the figures change only
//!   when the next unit leaves the window. That time is known if the cost is one unit more than the remaining units.
//! - The limit does not deny: the remaining units in the last reply, minus all units that this instance has charged
//!   since, are enough. The response states these remaining units, and the reset of the last reply.
//!
//! Charges by other instances are not known before the cached entry expires, after [`DenyCache::new`]'s `ttl` at most.

mod sampled;

use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use quick_cache::sync::Cache;
use slidegate::limit::MAX_UNITS;
use slidegate::store::Outcome;
use slidegate::{Limit, Timestamp};
use smallvec::SmallVec;

use crate::script_request::KeyedHit;

/// Maximum number of counters with recorded denials.
const MAX_CACHED_COUNTERS: usize = 65_536;

/// Maximum number of denied costs that are recorded per counter.
const MAX_DENIED_COSTS_PER_COUNTER: usize = 4;

/// Number of stripes into which counters are divided. Each stripe counts the invalidations of its counters. If one
/// counter is invalidated, the replies in flight for all counters of its stripe are discarded.
const INVALIDATION_STRIPE_COUNT: usize = 64;

/// Number of entries in the table of charged units. Several counters can share an entry. A charge to one of them then
/// counts as a charge to the others too, so the others miss the cache more often than necessary.
const CHARGED_UNITS_TABLE_LEN: usize = 65_536;

/// Minimum time to live of a cached denial of a sampled rule. Most hits of a sampled rule are not sent to Redis, so
/// only the cache can deny them.
const MIN_SAMPLED_DENIAL_TTL: Duration = Duration::from_secs(1);

/// A bounded cache of recent denials, by counter.
#[derive(Debug)]
pub struct DenyCache {
    entries: Cache<u64, CachedCounterFigures>,
    ttl: Duration,
    /// Random seed of the key hash, so that clients cannot choose colliding keys.
    secret: RandomState,
    /// Number of invalidations in each stripe of counters. The reply to a call is not recorded if this number has
    /// changed since the call was sent.
    invalidations: [AtomicU64; INVALIDATION_STRIPE_COUNT],
    /// Table of the units that this instance has charged, by the hash of the counter. Each invalidation of a counter
    /// adds one. A changed value shows that cached figures are outdated.
    charged_units_table: Box<[AtomicU64]>,
}

/// The cached figures of a counter (remaining units and waits), from the last recorded reply.
#[derive(Clone, Debug)]
struct CachedCounterFigures {
    limit: Limit,
    /// The version of the counter after the last recorded call.
    version: CacheVersion,
    /// Free units of the counter at the time `sent_at`, see [`Outcome::free`].
    free: i64,
    sent_at: Timestamp,
    /// Time from which `free` is too old to be used.
    expires_at: Timestamp,
    /// Time at which no unit is in use any more, unless this instance has charged units since `sent_at`.
    resets_at: Timestamp,
    denials: SmallVec<[CachedDenial; 1]>,
}

/// A cached denial: the number of required units that did not fit the limit, and the figures of the reply.
#[derive(Clone, Copy, Debug)]
struct CachedDenial {
    required: u64,
    sent_at: Timestamp,
    /// Time at which the cached denial expires. Before this time, Redis would deny the cost again.
    expires_at: Timestamp,
    /// Earliest time at which the cost fits the limit, or `None` if it never fits.
    fits_at: Option<Timestamp>,
    /// Free units at the time `sent_at`. They are exact unless they are negative: then units may have left since.
    free: i64,
}

/// Returns the number of units that a charge of this cost adds to the table of charged units. This is the cost, but at
/// most the largest max, so that a sum does not wrap around within the life of a cached entry.
pub fn cap_charged_units(cost: u64) -> u64 {
    cost.min(MAX_UNITS)
}

/// The result of looking up a hit in the denial cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheLookup {
    /// The cache has no valid entry for the counter.
    Missing,
    /// The cost did not fit recently, but the cached denial has expired. For a sampled rule, this is the result until
    /// Redis has charged a hit of the rule again, even if the cost should fit by now.
    Stale,
    /// The hit fits its limit, with this outcome: the figures of the last reply, minus the units that this instance has
    /// charged since.
    Fits(Outcome),
    /// The hit does not fit its limit, with this outcome.
    Denied(Outcome),
}

/// The version of a counter in the cache, taken before a call is sent. If the version has changed when the reply
/// arrives, other calls may have changed the counter in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheVersion {
    invalidation_count: u64,
    charged_units: u64,
}

/// The hits of a call in flight. If the value is dropped without [`complete`](Self::complete), the cache assumes that
/// all hits were charged, because the call may have charged them.
pub struct UnconfirmedCharges<'c> {
    cache: &'c DenyCache,
    hits: SmallVec<[UnconfirmedCharge; 2]>,
}

/// One hit of a call in flight, which may or may not be charged.
struct UnconfirmedCharge {
    counter: u64,
    /// The version of the counter before the call.
    version: CacheVersion,
    /// Units by which the call changes the counter; 0 if the rule is sampled.
    units: u64,
}

/// The figures in the reply to one hit (remaining units and waits), and the local times of the call and its reply.
#[derive(Clone, Copy, Debug)]
pub struct CounterSnapshot {
    pub sent_at: Timestamp,
    pub received_at: Timestamp,
    /// Time until the cost fits, or `None` if it never does.
    pub retry_after: Option<Duration>,
    pub reset_after: Duration,
    /// Free units of the counter, see [`Outcome::free`].
    pub free: i64,
}

impl DenyCache {
    /// Creates a cache that serves a denial for at most `ttl`; zero disables the cache.
    pub fn new(ttl: Duration) -> Self {
        Self {
            entries: Cache::new(MAX_CACHED_COUNTERS),
            ttl,
            secret: RandomState::new(),
            invalidations: [const { AtomicU64::new(0) }; INVALIDATION_STRIPE_COUNT],
            charged_units_table: std::iter::repeat_with(|| AtomicU64::new(0))
                .take(CHARGED_UNITS_TABLE_LEN)
                .collect(),
        }
    }

    /// Looks up whether the cache has a denial for a hit at time `now`.
    pub fn lookup(&self, hit: &KeyedHit, now: Timestamp) -> CacheLookup {
        let counter = self.hash_counter(&hit.key, hit.tag);
        let Some(entry) = self.entries.get(&counter) else {
            return CacheLookup::Missing;
        };
        // The figures are of another limit with the same counter, for example of an earlier policy, so they do not
        // apply.
        if entry.limit != hit.limit {
            return CacheLookup::Missing;
        }
        let (required, is_sampled) = (hit.required, hit.sample > 1);
        if !is_sampled {
            let charged_units =
                self.read_charged_units_table(counter).wrapping_sub(entry.version.charged_units);
            return entry.lookup_required_units(now, required, charged_units);
        }
        // A denial does not apply if the clock has stepped back to a time before the denial.
        let is_same_cost =
            |denial: &&CachedDenial| denial.required == required && now >= denial.sent_at;
        match entry.denials.iter().find(is_same_cost) {
            Some(denial) => denial.lookup_at(now, entry.resets_at),
            // A lower cost was denied, so a hit of a higher cost must not pass without a call, as hits of a sampled
            // rule usually do.
            None if entry.denials.iter().any(|denial| denial.required <= required) => {
                CacheLookup::Stale
            }
            None => CacheLookup::Missing,
        }
    }

    /// Returns the version of a hit's counter. The caller takes the version before it sends a call.
    pub fn version(&self, hit: &KeyedHit) -> CacheVersion {
        self.cache_version_of_counter(self.hash_counter(&hit.key, hit.tag))
    }

    /// Returns the version of a counter.
    fn cache_version_of_counter(&self, counter: u64) -> CacheVersion {
        let invalidation_count = self.invalidation_count_of_stripe(counter).load(Ordering::Acquire);
        CacheVersion { invalidation_count, charged_units: self.read_charged_units_table(counter) }
    }

    /// Registers a call that may charge these hits. The caller reports the result of the call with
    /// [`UnconfirmedCharges::complete`].
    pub fn register_unconfirmed_charges(&self, hits: &[KeyedHit]) -> UnconfirmedCharges<'_> {
        let pending = |hit: &KeyedHit| {
            let counter = self.hash_counter(&hit.key, hit.tag);
            let units = if hit.sample == 1 { cap_charged_units(hit.cost) } else { 0 };
            UnconfirmedCharge { counter, version: self.cache_version_of_counter(counter), units }
        };
        UnconfirmedCharges { cache: self, hits: hits.iter().map(pending).collect() }
    }

    /// Records the figures in the reply to a hit. If the hit was denied, `denied` is the number of required units that
    /// did not fit the limit. `version` is the version of the counter before the call, and `charged` is the number of
    /// units that the call charged.
    pub fn record(
        &self,
        hit: &KeyedHit,
        denied: Option<u64>,
        report: &CounterSnapshot,
        version: CacheVersion,
        charged: u64,
    ) {
        let ttl = if hit.sample > 1 { self.ttl.max(MIN_SAMPLED_DENIAL_TTL) } else { self.ttl };
        if ttl.is_zero() {
            return;
        }
        let counter = self.hash_counter(&hit.key, hit.tag);
        let version =
            CacheVersion { charged_units: version.charged_units.wrapping_add(charged), ..version };
        let mut denials: SmallVec<[CachedDenial; 1]> = match self.entries.get(&counter) {
            // An entry from before an invalidation may exist for a moment; its denials are not kept.
            Some(entry) if entry.limit == hit.limit && entry.version == version => entry.denials,
            _ => SmallVec::new(),
        };
        let is_relevant = |other: &CachedDenial| {
            hit.sample > 1 || other.fits_at.is_none_or(|at| at > report.received_at)
        };
        denials.retain(|other| Some(other.required) != denied && is_relevant(other));
        if let Some(denial) =
            denied.and_then(|required| report.to_cacheable_denial(hit, required, ttl))
        {
            denials.truncate(MAX_DENIED_COSTS_PER_COUNTER - 1);
            denials.push(denial);
        }
        let CounterSnapshot { sent_at, free, .. } = *report;
        let entry = CachedCounterFigures {
            limit: hit.limit,
            version,
            free,
            sent_at,
            expires_at: sent_at.after(ttl),
            resets_at: report.received_at.after(report.reset_after),
            denials,
        };
        self.insert_unless_invalidated(counter, entry, version);
    }

    /// Inserts an entry, unless the counter has been invalidated since `version`.
    fn insert_unless_invalidated(
        &self,
        counter: u64,
        entry: CachedCounterFigures,
        version: CacheVersion,
    ) {
        self.entries.insert(counter, entry);
        if self.invalidation_count_of_stripe(counter).load(Ordering::Acquire)
            != version.invalidation_count
        {
            self.entries.remove(&counter);
        }
    }

    /// Removes the entry of a counter. Replies to calls that are in flight will not be recorded.
    pub fn invalidate(&self, key: &str, tag: u32) {
        let counter = self.hash_counter(key, tag);
        self.invalidation_count_of_stripe(counter).fetch_add(1, Ordering::AcqRel);
        self.add_to_charged_units_table(counter, 1);
        self.entries.remove(&counter);
    }

    /// Returns the hash that identifies a counter.
    fn hash_counter(&self, key: &str, tag: u32) -> u64 {
        self.secret.hash_one((key, tag))
    }

    /// Returns the number of invalidations of all counters in the stripe of this counter.
    fn invalidation_count_of_stripe(&self, counter: u64) -> &AtomicU64 {
        &self.invalidations[(counter % INVALIDATION_STRIPE_COUNT as u64) as usize]
    }

    /// Returns the entry of a counter in the table of charged units.
    fn charged_units_table_entry(&self, counter: u64) -> &AtomicU64 {
        &self.charged_units_table[(counter % CHARGED_UNITS_TABLE_LEN as u64) as usize]
    }

    /// Returns the value of a counter's entry in the table of charged units. The value includes units of other counters
    /// that share the entry.
    fn read_charged_units_table(&self, counter: u64) -> u64 {
        self.charged_units_table_entry(counter).load(Ordering::Acquire)
    }

    /// Adds units to a counter's entry in the table of charged units.
    fn add_to_charged_units_table(&self, counter: u64, units: u64) {
        self.charged_units_table_entry(counter).fetch_add(units, Ordering::AcqRel);
    }
}

impl UnconfirmedCharges<'_> {
    /// Completes the call. For each hit, `charged` yields `true` if the call charged the hit. Returns the versions of
    /// the counters before the call, in the order of the hits.
    pub fn complete(mut self, charged: impl Iterator<Item = bool>) -> SmallVec<[CacheVersion; 2]> {
        let hits = self.hits.iter_mut().zip(charged);
        hits.filter(|(_, charged)| !charged).for_each(|(hit, _)| hit.units = 0);
        self.hits.iter().map(|hit| hit.version).collect()
    }
}

impl Drop for UnconfirmedCharges<'_> {
    fn drop(&mut self) {
        for hit in self.hits.iter().filter(|hit| hit.units > 0) {
            self.cache.add_to_charged_units_table(hit.counter, hit.units);
        }
    }
}

impl CounterSnapshot {
    /// Converts the report into a cached denial of `required` units. Returns `None` if the number of remaining units
    /// may change before the required units fit. This number does not change if exactly one unit is missing, or if the
    /// required units never fit and all units are free. For a sampled rule, always returns a denial, because its
    /// figures are estimates.
    fn to_cacheable_denial(
        self,
        hit: &KeyedHit,
        required: u64,
        ttl: Duration,
    ) -> Option<CachedDenial> {
        let remaining = u64::try_from(self.free).unwrap_or_default();
        let is_exact = match self.retry_after {
            Some(_) => required == remaining + 1,
            None => remaining == hit.limit.capacity(),
        };
        (is_exact || hit.sample > 1).then(|| CachedDenial {
            required,
            sent_at: self.sent_at,
            expires_at: self.sent_at.after(self.retry_after.map_or(ttl, |wait| wait.min(ttl))),
            fits_at: self.retry_after.map(|wait| self.received_at.after(wait)),
            free: self.free,
        })
    }
}

impl CachedCounterFigures {
    /// Looks up whether a number of required units fits the limit. `charged_units` is the number of units that this
    /// instance has charged to the counter since the entry was recorded.
    fn lookup_required_units(
        &self,
        now: Timestamp,
        required: u64,
        charged_units: u64,
    ) -> CacheLookup {
        let is_same_cost =
            |denial: &&CachedDenial| denial.required == required && now >= denial.sent_at;
        if charged_units == 0
            && let Some(denial) = self.denials.iter().find(is_same_cost)
            && let denied @ CacheLookup::Denied(_) = denial.lookup_at(now, self.resets_at)
        {
            return denied;
        }
        let is_fresh = self.sent_at <= now && now < self.expires_at;
        // Without free units, even a cost of 0 does not fit here: the counter may be in debt, and its figures are then
        // not exact.
        let charged = i64::try_from(charged_units).unwrap_or(i64::MAX);
        let free = self.free.saturating_sub(charged);
        let fits = u64::try_from(free).is_ok_and(|free| required.max(1) <= free);
        if is_fresh && fits {
            let reset_after = duration_until(self.resets_at, now);
            CacheLookup::Fits(Outcome::new(free, reset_after, Some(Duration::ZERO)))
        } else {
            CacheLookup::Missing
        }
    }
}

impl CachedDenial {
    /// Returns the outcome of the denial at time `now`, or [`CacheLookup::Stale`] if the denial has expired. `resets_at` is
    /// the time at which no unit of the counter is in use any more.
    fn lookup_at(&self, now: Timestamp, resets_at: Timestamp) -> CacheLookup {
        if now >= self.expires_at {
            return CacheLookup::Stale;
        }
        let fits_at = self.fits_at.map(|fits_at| fits_at.max(self.expires_at));
        let retry_after = fits_at.map(|fits_at| duration_until(fits_at, now));
        let reset_after = duration_until(resets_at, now);
        CacheLookup::Denied(Outcome::new(self.free, reset_after, retry_after))
    }
}

/// Returns the duration from `now` until a later moment; zero if the moment has passed.
fn duration_until(moment: Timestamp, now: Timestamp) -> Duration {
    Duration::from_micros(moment.as_micros().saturating_sub(now.as_micros()))
}

#[cfg(test)]
mod tests {
    use slidegate::store::{Hit, Key, Scope, Value};

    use super::*;
    use crate::RedisSettings;
    use crate::script_request::RedisKeyspace;

    const NOW: Timestamp = Timestamp::from_secs(1_750_000_020);
    const MINUTE: Duration = Duration::from_secs(60);

    fn new_keyed_hit(limit: &Limit, cost: u64) -> KeyedHit {
        let scope = Scope::new("domain", "rule", "limit", &["client"]);
        let key = Key::new(&scope, &[Value::Text("ann")]);
        RedisKeyspace::new(&RedisSettings::default(), std::sync::Arc::default())
            .keyed_hit(&Hit::new(key, limit, cost))
    }

    fn new_denial_report(wait: Duration) -> CounterSnapshot {
        let (retry_after, reset_after) = (Some(wait), wait);
        CounterSnapshot { sent_at: NOW, received_at: NOW, retry_after, reset_after, free: 0 }
    }

    #[test]
    fn denials_before_invalidation_are_not_kept() {
        let cache = DenyCache::new(MINUTE);
        let limit: Limit = "10/min".parse().unwrap();
        let sampled = |cost| KeyedHit { sample: 2, ..new_keyed_hit(&limit, cost) };
        let (stale, fresh) = (sampled(10), sampled(11));
        let before = cache.version(&stale);
        cache.invalidate(&stale.key, stale.tag);
        // A reply to a call from before the invalidation was recorded, and its removal has not happened yet.
        let counter = cache.hash_counter(&stale.key, stale.tag);
        let version = cache.version(&stale);
        cache.record(&stale, Some(10), &new_denial_report(MINUTE), version, 0);
        let mut entry = cache.entries.get(&counter).unwrap();
        entry.version = before;
        cache.entries.insert(counter, entry);

        let version = cache.version(&fresh);
        cache.record(&fresh, Some(11), &new_denial_report(MINUTE), version, 0);
        assert_eq!(cache.lookup(&stale, NOW), CacheLookup::Missing);
        assert!(matches!(cache.lookup(&fresh, NOW), CacheLookup::Denied(_)));
    }
}
