//! Results of a store in this process. They have no destructor, and their receipt is created when it is read.

use arrayvec::ArrayVec;

use super::{Charge, ChargeResult, CounterId, SingleCharge, SingleChargeResult};
use crate::clock::Timestamp;
use crate::hit::Hit;
use crate::limit::Limit;
use crate::outcome::Outcome;

/// The largest number of results that [`LocalResults`] holds.
pub(crate) const MAX_LOCAL_RESULTS: usize = 4;

/// The results of a store in this process for a call of at most four hits.
#[derive(Clone, Debug, Default)]
pub struct LocalResults {
    /// The outcome of each hit.
    pub(crate) outcomes: ArrayVec<Outcome, MAX_LOCAL_RESULTS>,
    /// The charge of each hit; empty if the call is denied.
    pub(crate) charges: ArrayVec<LocalCharge, MAX_LOCAL_RESULTS>,
}

/// The result of a store in this process for one hit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalResult {
    pub(crate) outcome: Outcome,
    pub(crate) charge: Option<LocalCharge>,
}

/// A charge of a counter that is identified by its fingerprint. See [`SingleCharge`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalCharge {
    pub(crate) fingerprint: u64,
    pub(crate) phase_us: u64,
    pub(crate) charged_at: Timestamp,
    pub(crate) hit_cost: u64,
    pub(crate) cost: u64,
}

impl LocalResults {
    /// Returns whether the call is allowed.
    pub(crate) fn is_allowed(&self) -> bool {
        !self.charges.is_empty()
    }

    /// Converts the results into a [`ChargeResult`], which has any number of hits. `hits` are the hits that were decided.
    pub(crate) fn into_charge_result(self, hits: &[Hit<'_>]) -> ChargeResult {
        let charge = |(index, (charge, hit)): (u32, (&LocalCharge, &Hit<'_>))| {
            charge.into_charge(index, *hit.limit)
        };
        ChargeResult {
            allowed: self.is_allowed(),
            receipt: (0..).zip(self.charges.iter().zip(hits)).map(charge).collect(),
            outcomes: self.outcomes.into_iter().collect(),
        }
    }
}

impl LocalResult {
    /// Creates the result of a hit that was not charged.
    #[inline(always)]
    pub(crate) fn uncharged(outcome: Outcome) -> Self {
        Self { outcome, charge: None }
    }
}

impl LocalCharge {
    /// Adds the index of the hit and its limit.
    pub(crate) fn into_charge(self, hit_index: u32, limit: Limit) -> Charge {
        let Self { fingerprint, phase_us, charged_at, hit_cost, cost } = self;
        let counter = CounterId::Fingerprint(fingerprint);
        Charge { counter, limit, hit_index, phase_us, charged_at, hit_cost, cost }
    }
}

/// Converts the result of a store, unless its counter is identified by a text. Then returns the result.
impl TryFrom<SingleChargeResult> for LocalResult {
    type Error = (Outcome, SingleCharge);

    #[inline(always)]
    fn try_from(result: SingleChargeResult) -> Result<Self, Self::Error> {
        let SingleChargeResult { outcome, charge } = result;
        match charge {
            None => Ok(Self::uncharged(outcome)),
            Some(SingleCharge {
                counter: CounterId::Fingerprint(fingerprint),
                phase_us,
                charged_at,
                hit_cost,
                cost,
            }) => {
                let charge = LocalCharge { fingerprint, phase_us, charged_at, hit_cost, cost };
                Ok(Self { outcome, charge: Some(charge) })
            }
            Some(charge) => Err((outcome, charge)),
        }
    }
}
