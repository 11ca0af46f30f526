//! Correction of a request's charges when its actual cost is known.
//!
//! Gates and limiters use this module. If a request was charged too much, the excess is reverted. If a request was
//! charged too little, the difference is charged, even above max.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::{ChargeWhen, Hit};
use crate::outcome::Outcome;

/// The correction that changes the charges of a request to its actual cost.
pub enum ChargeCorrection {
    /// No correction: the charged cost is the actual cost, or the request was denied.
    Unchanged,
    /// Reverts `units` units of each charge, which has `charged` units.
    Revert {
        /// Units to revert.
        units: u64,
        /// Units that were charged for the request.
        charged: u64,
    },
    /// Charges this number of additional units.
    Charge(u64),
}

impl ChargeCorrection {
    /// Returns the correction for a request that was charged `charged` units and has the actual cost `cost`. A denied
    /// request has no cost, so its charges are not corrected.
    pub fn new(decision: &Decision, charged: u64, cost: u64) -> Self {
        if !decision.is_allowed() || cost == charged {
            return Self::Unchanged;
        }
        match cost.checked_sub(charged) {
            Some(extra) => Self::Charge(extra),
            None => Self::Revert { units: charged - cost, charged },
        }
    }
}

/// Returns whether a hit of an allowed request was charged.
pub fn was_charged(hit: &Hit<'_>, outcome: &Outcome) -> bool {
    hit.charge == ChargeWhen::Always || outcome.fits()
}

/// Returns the hits to which an additional cost is charged: the hits that `decision` has charged, converted into
/// reports. A report is charged even above max.
pub fn extra_charge_hits<'h>(
    hits: impl IntoIterator<Item = Hit<'h>>,
    decision: &Decision,
) -> SmallVec<[Hit<'h>; 3]> {
    let pairs = hits.into_iter().zip(decision.outcomes());
    let charged = pairs.filter(|(hit, outcome)| was_charged(hit, outcome));
    charged.map(|(hit, _)| hit.reported()).collect()
}
