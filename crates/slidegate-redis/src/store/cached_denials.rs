//! Serves denials from the denial cache, and adds the denials of Redis to it.

use slidegate::Timestamp;
use slidegate::store::{ChargeResult, Outcome, Outcomes, Receipt, Veto};

use super::RedisStoreInner;
use crate::deny_cache::{CacheLookup, CacheVersion, CounterSnapshot, cap_charged_units};
use crate::reply::{HitReply, ScriptReply};
use crate::script_request::{KeyedHit, KeyedHits};

impl RedisStoreInner {
    /// Returns a denial from the [`deny_cache`](crate::deny_cache), or `None` if Redis must decide. Redis always
    /// decides a request with a hit that is charged even if the request is denied. It also decides a request with joint
    /// hits, because these deny only if none of them fits.
    pub(super) fn find_cached_denial(&self, hits: &KeyedHits) -> Option<ChargeResult> {
        // Joint hits are decided by Redis, because whether they deny depends on all of them.
        let is_decided_by_redis = |hit: &KeyedHit| {
            let is_extended = hit.charge.block().is_some_and(|block| block.extends);
            hit.is_always_charged() || is_extended || hit.veto == Veto::Jointly
        };
        if hits.iter().any(is_decided_by_redis) {
            return None;
        }
        let now = self.clocks.local_now();
        let mut allowed = true;
        let mut outcome = |(index, hit): (usize, &KeyedHit)| {
            // Figures (remaining units and waits) must be known only for hits that can deny. For sampled rules, they
            // are always estimates, so they may be missing.
            let never_denies = hit.veto == Veto::Never;
            let unknown = |is_possible: bool| is_possible.then(Outcome::unknown);
            if !is_first_hit_of_counter(hits, index) {
                return unknown(never_denies);
            }
            // A request in flight can end at any time, so figures of limits on requests in flight are not cached.
            if hit.limit.is_concurrent() {
                return unknown(true);
            }
            match self.deny_cache.lookup(hit, now) {
                CacheLookup::Denied(outcome) => {
                    allowed &= never_denies;
                    Some(outcome)
                }
                CacheLookup::Fits(outcome) => Some(outcome),
                CacheLookup::Stale | CacheLookup::Missing => {
                    unknown(never_denies || hit.sample > 1)
                }
            }
        };
        let outcomes: Outcomes =
            hits.iter().enumerate().map(&mut outcome).collect::<Option<_>>()?;
        // A denial that would start a block is decided by Redis, because the start of the block must be recorded there.
        let starts_block = (hits.iter().zip(&outcomes))
            .any(|(hit, outcome)| hit.charge.block().is_some() && outcome.fits());
        let is_served = !allowed && !starts_block;
        is_served.then(|| ChargeResult { allowed, outcomes, receipt: Receipt::default() })
    }

    /// Adds the denials of a reply to the denial cache. The figures of the other counters of the request are added too,
    /// because a cached denial is served only if they are known.
    pub(super) fn record_denials_in_cache(
        &self,
        hits: &KeyedHits,
        reply: &ScriptReply,
        sent_at: Timestamp,
        versions: &[CacheVersion],
    ) {
        let is_denial = |hit_reply: &HitReply| {
            hit_reply.wait_if_exhausted.is_some() || !hit_reply.outcome.fits()
        };
        let any_denies = reply.hits().iter().any(is_denial);
        if !any_denies && hits.iter().all(|hit| hit.sample == 1) {
            return;
        }
        let received_at = self.clocks.local_now();
        for (index, ((hit, hit_reply), version)) in
            hits.iter().zip(reply.hits()).zip(versions).enumerate()
        {
            if hit.sample > 1 && hit_reply.outcome.fits() {
                self.deny_cache.record_fitting_hit(hit, hit_reply.is_charged());
                continue;
            }
            if !any_denies || hit.limit.is_concurrent() || !is_first_hit_of_counter(hits, index) {
                continue;
            }
            let (denied_units, retry_after) = match hit_reply.wait_if_exhausted {
                Some(wait) => (Some(1), wait),
                None if hit_reply.outcome.fits() || hit_reply.is_charged() => (None, None),
                None => (Some(hit.required), hit_reply.outcome.retry_after()),
            };
            let (reset_after, free) = (hit_reply.outcome.reset_after(), hit_reply.outcome.free());
            let report = CounterSnapshot { sent_at, received_at, retry_after, reset_after, free };
            let charged = if hit_reply.is_charged() { cap_charged_units(hit.cost) } else { 0 };
            self.deny_cache.record(hit, denied_units, &report, *version, charged);
        }
    }
}

/// Returns `true` if no earlier hit of the request has the same counter. The figures of a later hit of the same counter
/// are computed as if the earlier hit had been charged.
fn is_first_hit_of_counter(hits: &KeyedHits, index: usize) -> bool {
    !hits[..index].iter().any(|other| other.shares_counter_with(&hits[index]))
}
