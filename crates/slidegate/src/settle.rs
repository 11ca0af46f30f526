//! Corrects the charges of a request when its actual cost is known.
//!
//! Used by gates and limiters: an excess is reverted, a shortfall is charged, even above max.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::{ChargeWhen, Hit};
use crate::outcome::Outcome;

/// A correction of charges.
pub enum Settlement {
    /// The cost was charged exactly, or the request was denied.
    Unchanged,
    /// Reverts `units` of the `charged` units of each charge.
    Revert {
        /// Units to revert.
        units: u64,
        /// Units that were charged.
        charged: u64,
    },
    /// Charges this number of further units.
    Charge(u64),
}

impl Settlement {
    /// Returns the correction to `cost` for a request that was decided with the cost `charged`. A denied request has no
    /// cost.
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

/// Returns the hits that `decision` charged, as reports of further units.
pub fn extra_hits<'h>(
    hits: impl IntoIterator<Item = Hit<'h>>,
    decision: &Decision,
) -> SmallVec<[Hit<'h>; 3]> {
    let pairs = hits.into_iter().zip(decision.outcomes());
    let charged = pairs.filter(|(hit, outcome)| was_charged(hit, outcome));
    charged.map(|(hit, _)| hit.reported()).collect()
}
