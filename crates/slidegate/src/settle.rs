//! What a request has cost in the end, beside what it was charged.

use crate::decision::Decision;
use crate::hit::{Admission, Hit};
use crate::store::Receipt;

/// What is still to be done.
pub enum Settlement {
    Nothing,
    GiveBack(Receipt),
    /// So many units more.
    Charge(u64),
}

impl Settlement {
    /// A request that was asked for at one cost has had another. What was denied has cost nothing.
    pub fn of(decision: &Decision, asked: u64, cost: u64) -> Self {
        if !decision.is_allowed() || cost == asked {
            return Self::Nothing;
        }
        match cost.checked_sub(asked) {
            Some(extra) => Self::Charge(extra),
            None => Self::GiveBack(decision.receipt().part(asked - cost, asked)),
        }
    }
}

/// The hits that charge what a request has cost beyond what it was asked for: those that were admitted then.
pub fn settled<'h>(
    hits: impl IntoIterator<Item = Hit<'h>>,
    decision: &Decision,
) -> smallvec::SmallVec<[Hit<'h>; 3]> {
    let both = hits.into_iter().zip(decision.outcomes());
    let was_admitted = both.filter(|(hit, outcome)| match hit.admission {
        Admission::Enforce | Admission::Observe => outcome.fits(),
        Admission::Always => true,
    });
    was_admitted.map(|(hit, _)| Hit { admission: Admission::Always, ..hit }).collect()
}
