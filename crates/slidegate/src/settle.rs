//! Corrects the charges of a request when its cost is known.

use smallvec::SmallVec;

use crate::decision::Decision;
use crate::hit::{ChargeWhen, Hit};
use crate::outcome::Outcome;

/// A correction of charges.
pub enum Settlement {
    Nothing,
    /// Reverts `units` of every `of` units of each charge.
    Revert {
        units: u64,
        of: u64,
    },
    /// Charges so many units more.
    Charge(u64),
}

impl Settlement {
    /// Returns the correction for a request that was decided with the cost `asked`. A denied request has no cost.
    pub fn of(decision: &Decision, asked: u64, cost: u64) -> Self {
        if !decision.is_allowed() || cost == asked {
            return Self::Nothing;
        }
        match cost.checked_sub(asked) {
            Some(extra) => Self::Charge(extra),
            None => Self::Revert { units: asked - cost, of: asked },
        }
    }
}

/// Returns whether a hit of an allowed request was charged.
pub fn was_charged(hit: &Hit<'_>, outcome: &Outcome) -> bool {
    hit.charge == ChargeWhen::Always || outcome.fits()
}

/// Returns the hits of which an allowed request was charged, to charge them further units.
pub fn settled<'h>(
    hits: impl IntoIterator<Item = Hit<'h>>,
    decision: &Decision,
) -> SmallVec<[Hit<'h>; 3]> {
    let both = hits.into_iter().zip(decision.outcomes());
    both.filter(|(hit, outcome)| was_charged(hit, outcome)).map(|(hit, _)| hit.reported()).collect()
}
