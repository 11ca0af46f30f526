//! The results of the store for the hits of a request, as a decision keeps them.

use std::slice;

use crate::clock::Timestamp;
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::store::{Charge, CounterId, Outcomes, Receipt, SingleCharge, SingleChargeResult};

/// The results of the store for the hits of a request. Most requests have one hit, whose result has no destructor; its
/// receipt is created when it is read.
#[derive(Clone, Debug)]
pub(super) enum DecidedHits {
    /// One hit, with a charge that a store in this process made.
    One { outcome: Outcome, charge: Option<LocalCharge> },
    /// Any hits, with their receipt.
    Any { outcomes: Outcomes, receipt: Receipt },
}

/// A charge of a counter that is identified by its fingerprint. See [`SingleCharge`].
#[derive(Clone, Copy, Debug)]
pub(super) struct LocalCharge {
    fingerprint: u64,
    phase_us: u64,
    charged_at: Timestamp,
    hit_cost: u64,
    cost: u64,
}

impl LocalCharge {
    /// Adds the limit of the counter.
    pub(super) fn into_charge(self, limit: Limit) -> Charge {
        let Self { fingerprint, phase_us, charged_at, hit_cost, cost } = self;
        let counter = CounterId::Fingerprint(fingerprint);
        SingleCharge { counter, phase_us, charged_at, hit_cost, cost }.into_charge(limit)
    }
}

impl DecidedHits {
    /// Returns the outcome of each hit.
    #[inline(always)]
    pub(super) fn outcomes(&self) -> &[Outcome] {
        match self {
            Self::One { outcome, .. } => slice::from_ref(outcome),
            Self::Any { outcomes, .. } => outcomes,
        }
    }

    #[inline(always)]
    pub(super) fn of_one(
        SingleChargeResult { outcome, charge }: SingleChargeResult,
        limit: &Limit,
    ) -> Self {
        let charge = match charge {
            None => None,
            Some(SingleCharge {
                counter: CounterId::Fingerprint(fingerprint),
                phase_us,
                charged_at,
                hit_cost,
                cost,
            }) => Some(LocalCharge { fingerprint, phase_us, charged_at, hit_cost, cost }),
            Some(charge) => {
                let receipt = [charge.into_charge(*limit)].into_iter().collect();
                return Self::Any { outcomes: Outcomes::of_one(outcome), receipt };
            }
        };
        Self::One { outcome, charge }
    }
}
