//! Cached denials of sampled rules. Normally, one hit in N of a sampled rule is sent to Redis, and the other hits pass
//! without a call. After a denial, hits no longer pass without a call: they are denied, except for one hit at a time
//! that is sent to Redis as a probe. When Redis has charged a hit of the rule again, the other hits pass without a call
//! again.

use std::time::Duration;

use slidegate::Timestamp;
use slidegate::store::Outcome;

use super::{CacheVersion, CachedDenial, CounterSnapshot, DenyCache};
use crate::script_request::KeyedHit;

/// Maximum time for which other hits of a sampled limit are denied while a probe is in flight. A probe is one hit that
/// is sent to check whether Redis admits the cost again. Only one hit is sent, because Redis charges each sent hit for
/// many others.
const SAMPLED_PROBE_TIMEOUT: Duration = Duration::from_millis(100);

impl DenyCache {
    /// Begins a probe with a hit of a sampled rule. Other hits with the same cost are denied until the result of the
    /// probe is recorded, or until [`SAMPLED_PROBE_TIMEOUT`] has passed.
    pub fn begin_sampled_probe(&self, hit: &KeyedHit, now: Timestamp) {
        self.update_cached_denial(hit, |denial| {
            denial.expires_at = now.after(SAMPLED_PROBE_TIMEOUT)
        });
    }

    /// Records that a hit of a sampled rule fits its limit. If the hit was charged, its charge covers other hits too:
    /// the cached denial is removed, so that the other hits pass without a call. If the hit was not charged, because
    /// another limit denied the request, the next hit is sent as a probe.
    pub fn record_fitting_hit(&self, hit: &KeyedHit, is_charged: bool) {
        if !is_charged {
            self.update_cached_denial(hit, |denial| denial.expires_at = denial.sent_at);
        } else if self.entries.get(&self.hash_counter(&hit.key, hit.tag)).is_some() {
            self.invalidate(&hit.key, hit.tag);
        }
    }

    /// Records that a hit of a sampled rule did not fit its limit. The reason may be a charge that was reverted later.
    /// Therefore the denial expires immediately, and the next hit is sent as a probe.
    pub fn record_unconfirmed_denial(
        &self,
        hit: &KeyedHit,
        outcome: &Outcome,
        now: Timestamp,
        version: CacheVersion,
    ) {
        let report = CounterSnapshot {
            sent_at: now,
            received_at: now,
            retry_after: Some(Duration::ZERO),
            reset_after: outcome.reset_after(),
            free: outcome.free(),
        };
        self.record(hit, Some(hit.required), &report, version, 0);
    }

    /// Updates the cached denial of a hit's cost, if the cache has one.
    fn update_cached_denial(&self, hit: &KeyedHit, update: impl FnOnce(&mut CachedDenial)) {
        let counter = self.hash_counter(&hit.key, hit.tag);
        let version = self.version(hit);
        let Some(mut entry) = self.entries.get(&counter) else { return };
        if let Some(denial) =
            entry.denials.iter_mut().find(|denial| denial.required == hit.required)
        {
            update(denial);
            self.insert_unless_invalidated(counter, entry, version);
        }
    }
}
