//! Selects the hits of sampled rules that are sent to Redis. With a sampling factor of N, one hit in N is sent, at N
//! times its cost. The others pass without a call, unless the limit has denied recently.

use std::sync::Arc;

use slidegate::store::{Charge, ChargeResult, ChargeWhen, Outcome, Veto};
use slidegate::{StoreError, Timestamp};
use smallvec::SmallVec;

use super::{RedisStoreInner, result_of_request_without_hits};
use crate::deny_cache::{CacheLookup, CacheVersion};
use crate::script_request::{KeyedHit, KeyedHits};

impl RedisStoreInner {
    /// Charges the hits that must be sent or are selected at random; the other hits pass without a call. A hit must be
    /// sent if its rule is not sampled, if its cost is 0, or if it can deny and follows a denial.
    pub(super) async fn charge_request_with_sampled_hits(
        self: &Arc<Self>,
        mut hits: KeyedHits,
    ) -> Result<ChargeResult, StoreError> {
        let now = self.clocks.local_now();
        // One random number for all hits of the request, so that hits of rules with the same sampling factor are sent
        // together.
        let random = fastrand::u32(..);
        let is_sent = |hit: &mut KeyedHit| {
            let is_selected = random.is_multiple_of(hit.sample) || hit.cost == 0;
            self.must_send_after_denial(hit, is_selected, now) || is_selected
        };
        let is_sent: SmallVec<[bool; 2]> = hits.iter_mut().map(is_sent).collect();
        let sent_hits: KeyedHits = hits
            .into_iter()
            .zip(&is_sent)
            .filter(|(_, is_sent)| **is_sent)
            .map(|(hit, _)| hit)
            .collect();
        let result = if sent_hits.is_empty() {
            result_of_request_without_hits()
        } else {
            self.charge_in_redis(sent_hits).await?
        };
        let sent_indexes: SmallVec<[u32; 2]> =
            (0..).zip(&is_sent).filter(|(_, is_sent)| **is_sent).map(|(index, _)| index).collect();
        let receipt = result.receipt.charges().iter().map(|charge| Charge {
            hit_index: sent_indexes[charge.hit_index as usize],
            ..charge.clone()
        });
        let receipt = receipt.collect();
        let mut outcomes = result.outcomes.iter().copied();
        let outcome = |is_sent: &bool| {
            if *is_sent {
                outcomes.next().unwrap_or_else(Outcome::unknown)
            } else {
                Outcome::unknown()
            }
        };
        let outcomes = is_sent.iter().map(outcome).collect();
        Ok(ChargeResult { allowed: result.allowed, outcomes, receipt })
    }

    /// Returns whether a hit must be sent because its limit has denied recently, even if it is not selected at random. If
    /// the denial has expired, the hit becomes a probe. Otherwise a hit that is not selected is only checked, so that the
    /// charges stay right on average.
    fn must_send_after_denial(
        &self,
        hit: &mut KeyedHit,
        is_selected: bool,
        now: Timestamp,
    ) -> bool {
        if hit.sample == 1 || hit.veto == Veto::Never {
            return false;
        }
        let is_probe = match self.deny_cache.lookup(hit, now) {
            CacheLookup::Missing | CacheLookup::Fits(_) => return false,
            CacheLookup::Stale => hit.charge != ChargeWhen::Always,
            CacheLookup::Denied(_) => false,
        };
        if is_probe {
            self.deny_cache.begin_sampled_probe(hit, now);
        } else if !is_selected {
            (hit.cost, hit.charge) = (0, ChargeWhen::IfAdmitted);
        }
        true
    }

    /// Returns each sampled hit of a request, with its index in the request and the version of its cached figures.
    pub(super) fn sampled_hits_with_versions(
        &self,
        hits: &KeyedHits,
    ) -> Vec<(usize, KeyedHit, CacheVersion)> {
        let sampled = hits.iter().enumerate().filter(|(_, hit)| hit.sample > 1);
        sampled.map(|(index, hit)| (index, hit.clone(), self.deny_cache.version(hit))).collect()
    }

    /// Records in the denial cache whether the sampled hits of a request fitted their limits. The keys of the request
    /// are in several slots, so a denial may have been caused by a charge that was reverted later. The cache does not
    /// serve such a denial. But after the denial, hits no longer pass without a call: the next hit is sent to Redis.
    pub(super) fn record_sampled_outcomes(
        &self,
        sampled_hits: &[(usize, KeyedHit, CacheVersion)],
        result: &ChargeResult,
    ) {
        let now = self.clocks.local_now();
        for (index, hit, version) in sampled_hits {
            match result.outcomes.get(*index) {
                Some(outcome) if outcome.fits() => {
                    let is_charged = result.allowed || hit.charge == ChargeWhen::Always;
                    self.deny_cache.record_fitting_hit(hit, is_charged && hit.cost > 0);
                }
                Some(outcome) => {
                    self.deny_cache.record_unconfirmed_denial(hit, outcome, now, *version)
                }
                None => {}
            }
        }
    }
}
