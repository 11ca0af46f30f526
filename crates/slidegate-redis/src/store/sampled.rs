//! Sampled rules: which requests are asked for.

use std::sync::Arc;

use slidegate::{ChargeResult, ChargeWhen, Outcome, StoreError};
use smallvec::SmallVec;

use super::{Hits, Inner, nothing};
use crate::ask::Counted;
use crate::deny_cache::{Known, Mark};

impl Inner {
    /// Charges hits, some of them for one request in so many only; the others pass.
    pub(super) async fn charge_sampled(
        self: &Arc<Self>,
        hits: Hits,
    ) -> Result<ChargeResult, StoreError> {
        let now = self.clocks.here();
        // One draw, so that rules of one sample ask together.
        let drawn = fastrand::u32(..);
        // Where it was denied lately nothing passes unasked.
        let asks = |hit: &Counted| {
            let may_deny = hit.sample > 1 && hit.charge != ChargeWhen::Always;
            let is_stale = may_deny && self.deny_cache.know(hit, now) == Known::Stale;
            if is_stale {
                self.deny_cache.is_asked(hit, now);
            }
            is_stale || drawn.is_multiple_of(hit.sample) || hit.cost == 0
        };
        let asks: SmallVec<[bool; 2]> = hits.iter().map(asks).collect();
        let asked: Hits =
            hits.into_iter().zip(&asks).filter(|(_, asks)| **asks).map(|(hit, _)| hit).collect();
        let taken = if asked.is_empty() { nothing() } else { self.charge(asked).await? };
        let mut outcomes = taken.outcomes.into_iter();
        let outcome = |asks: &bool| match asks {
            true => outcomes.next().unwrap_or_else(Outcome::unknown),
            false => Outcome::unknown(),
        };
        Ok(ChargeResult { outcomes: asks.iter().map(outcome).collect(), ..taken })
    }

    /// The sampled ones of hits in several slots, by their places.
    pub(super) fn doubts(&self, hits: &Hits) -> Vec<(usize, Counted, Mark)> {
        let sampled = hits.iter().enumerate().filter(|(_, hit)| hit.sample > 1);
        sampled.map(|(place, hit)| (place, hit.clone(), self.deny_cache.mark(hit))).collect()
    }

    /// Whether they fitted: a denial may have been for what another request was charged in vain, so it is not
    /// believed, but nobody passes unasked after it.
    pub(super) fn remember_doubts(&self, doubts: &[(usize, Counted, Mark)], taken: &ChargeResult) {
        let now = self.clocks.here();
        for (place, hit, mark) in doubts {
            match taken.outcomes.get(*place) {
                Some(outcome) if outcome.fits() => {
                    let is_charged = taken.allowed || hit.charge == ChargeWhen::Always;
                    self.deny_cache.fits(hit, is_charged && hit.cost > 0);
                }
                Some(outcome) => self.deny_cache.doubt(hit, outcome, now, *mark),
                None => {}
            }
        }
    }
}
