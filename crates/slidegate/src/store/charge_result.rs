//! The result of a charge: the outcome of each hit, and the receipt, with which the charges are changed or reverted later.

use std::ops::{Deref, DerefMut};

use serde::{Deserialize, Serialize};

use super::one_or_many::OneOrMany;
use super::{Adjustment, CounterId};
use crate::clock::Timestamp;
use crate::hit::{ChargeWhen, Hit, Veto};
use crate::key::Key;
use crate::limit::Limit;
use crate::outcome::Outcome;

/// The decision of a store on one request, with the outcomes and charges of its hits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChargeResult {
    /// Whether the request is allowed.
    pub allowed: bool,
    /// The outcome of each hit.
    pub outcomes: Outcomes,
    /// The charges that were made.
    pub receipt: Receipt,
}

/// The outcomes of the hits of one call, in the order of the hits. A list of one outcome needs no allocation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcomes(OneOrMany<Outcome>);

impl Outcomes {
    /// Creates an empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates an empty list that has space for this number of outcomes.
    #[inline]
    pub fn with_capacity(capacity: usize) -> Self {
        Self(OneOrMany::with_capacity(capacity))
    }

    /// Creates a list of one outcome.
    #[inline]
    pub fn one(outcome: Outcome) -> Self {
        Self(OneOrMany::One(outcome))
    }

    /// Appends an outcome.
    #[inline]
    pub fn push(&mut self, outcome: Outcome) {
        self.0.push(outcome);
    }
}

impl Deref for Outcomes {
    type Target = [Outcome];

    fn deref(&self) -> &[Outcome] {
        &self.0
    }
}

impl DerefMut for Outcomes {
    fn deref_mut(&mut self) -> &mut [Outcome] {
        &mut self.0
    }
}

impl FromIterator<Outcome> for Outcomes {
    fn from_iter<I: IntoIterator<Item = Outcome>>(outcomes: I) -> Self {
        Self(outcomes.into_iter().collect())
    }
}

impl Extend<Outcome> for Outcomes {
    fn extend<I: IntoIterator<Item = Outcome>>(&mut self, outcomes: I) {
        outcomes.into_iter().for_each(|outcome| self.push(outcome));
    }
}

impl<'o> IntoIterator for &'o Outcomes {
    type Item = &'o Outcome;
    type IntoIter = std::slice::Iter<'o, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

impl<'o> IntoIterator for &'o mut Outcomes {
    type Item = &'o mut Outcome;
    type IntoIter = std::slice::IterMut<'o, Outcome>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter_mut()
    }
}

/// A record of charges, sufficient to change or revert them. Valid only for the store that created it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Receipt {
    charges: OneOrMany<Charge>,
}

impl Receipt {
    /// Creates a receipt without charges that has space for this number of charges.
    #[inline]
    pub fn with_capacity(capacity: usize) -> Self {
        Self { charges: OneOrMany::with_capacity(capacity) }
    }

    /// Creates a receipt of one charge.
    #[inline]
    pub fn of_charge(charge: Charge) -> Self {
        Self { charges: OneOrMany::One(charge) }
    }

    /// Returns whether the receipt has no charges.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Returns the charges, one for each charged hit.
    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    /// Returns the charges with units whose limits [bound requests in flight](Limit::concurrent).
    pub fn permit_charges(&self) -> impl Iterator<Item = &Charge> {
        self.charges.iter().filter(|charge| charge.holds_permit())
    }

    /// Removes the charges that [`permit_charges`](Self::permit_charges) returns.
    #[cfg(feature = "policy")]
    pub(crate) fn remove_permit_charges(&mut self) {
        let charges = std::mem::take(self).into_iter();
        *self = charges.filter(|charge| !charge.holds_permit()).collect();
    }

    /// Appends a charge.
    #[inline]
    pub fn push(&mut self, charge: Charge) {
        self.charges.push(charge);
    }

    /// Returns the charges to revert for an adjustment. The cost of each charge is the number of units to revert.
    pub fn charges_to_revert(&self, adjustment: Adjustment) -> impl Iterator<Item = Charge> {
        let units_to_revert = move |charge: &Charge| match adjustment {
            Adjustment::Revert => charge.cost,
            // A request in flight takes its permit whatever it costs, so a new cost reverts nothing.
            Adjustment::SetCost(_) if charge.limit.is_concurrent() => 0,
            Adjustment::SetCost(cost) => {
                let excess = charge.hit_cost.saturating_sub(cost);
                multiply_and_divide(charge.cost, excess, charge.hit_cost)
            }
        };
        let parts = self
            .charges
            .iter()
            .map(move |charge| Charge { cost: units_to_revert(charge), ..charge.clone() });
        parts.filter(|charge| charge.cost > 0)
    }

    /// Returns the charges with the units that an adjustment charges in addition. Each is to be charged by a
    /// [hit](Charge::reported_hit) that never denies.
    pub fn additional_charges(&self, adjustment: Adjustment) -> impl Iterator<Item = Charge> {
        let additional_units = move |charge: &Charge| match adjustment {
            Adjustment::Revert => 0,
            Adjustment::SetCost(_) if charge.limit.is_concurrent() => 0,
            Adjustment::SetCost(cost) => {
                let extra = cost.saturating_sub(charge.hit_cost);
                // A store with sampling has charged a multiple of the hit's cost, so it charges the same multiple of
                // the additional units.
                multiply_and_divide(extra, charge.cost, charge.hit_cost).max(extra)
            }
        };
        let charges = self
            .charges
            .iter()
            .map(move |charge| Charge { cost: additional_units(charge), ..charge.clone() });
        charges.filter(|charge| charge.cost > 0)
    }
}

impl IntoIterator for Receipt {
    type Item = Charge;
    type IntoIter = std::vec::IntoIter<Charge>;

    fn into_iter(self) -> Self::IntoIter {
        Vec::from(self.charges).into_iter()
    }
}

impl FromIterator<Charge> for Receipt {
    fn from_iter<I: IntoIterator<Item = Charge>>(charges: I) -> Self {
        Self { charges: charges.into_iter().collect() }
    }
}

/// Returns `units * factor / divisor`, rounded down, and at most `u64::MAX`.
fn multiply_and_divide(units: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(units) * u128::from(factor) / u128::from(divisor.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// The charge of one hit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Charge {
    /// The identifier by which the store finds the charged counter.
    pub counter: CounterId,
    /// The limit of the counter.
    pub limit: Limit,
    /// Index of the hit in its call. Not serialized, because it has no meaning outside of the call.
    #[serde(skip)]
    pub hit_index: u32,
    /// The phase of the key: the number of microseconds that are added to the time of the store's clock so that the
    /// windows of different keys begin at different times.
    pub phase_us: u64,
    /// The time at which the charge is counted. Includes the phase. 0 for a charge without units.
    pub charged_at: Timestamp,
    /// The cost of the hit, in units.
    pub hit_cost: u64,
    /// The charged units. They differ from the cost of the hit if the store charges one request for several requests
    /// (sampling), or if the debt of the counter is bounded.
    pub cost: u64,
}

impl Charge {
    /// Creates the charge of a hit, for now without units. `hit_index` is the index of the hit in its call.
    pub fn without_units(hit: &Hit<'_>, hit_index: u32, counter: CounterId, phase_us: u64) -> Self {
        Self {
            counter,
            limit: *hit.limit,
            hit_index,
            phase_us,
            charged_at: Timestamp::default(),
            hit_cost: hit.cost,
            cost: 0,
        }
    }

    /// Returns whether the charge took a place among the requests in flight. A charge without units took none.
    fn holds_permit(&self) -> bool {
        self.cost > 0 && self.limit.is_concurrent()
    }

    /// Returns a hit that charges the units of this charge to the same counter. The hit never denies.
    pub fn reported_hit(&self) -> Hit<'_> {
        let key = Key::from_counter_id(&self.counter, self.phase_us);
        Hit::new(key, &self.limit, self.cost).reported()
    }
}

/// Returns whether a request is admitted: every hit with [`Veto::Alone`] fits, and at least one of the hits with
/// [`Veto::Jointly`] fits, if there are any.
pub fn admits(hits: &[Hit<'_>], outcomes: &[Outcome]) -> bool {
    is_admitted(hits.iter().zip(outcomes).map(|(hit, outcome)| (hit.veto, outcome.fits())))
}

/// Returns whether a request is admitted, as [`admits`] does. Each item describes one hit of the request: its veto, and
/// whether the hit fits.
pub fn is_admitted(hits: impl IntoIterator<Item = (Veto, bool)>) -> bool {
    let (mut has_joint, mut joint_fits) = (false, false);
    for (veto, fits) in hits {
        match veto {
            Veto::Alone if !fits => return false,
            Veto::Jointly => (has_joint, joint_fits) = (true, joint_fits | fits),
            Veto::Alone | Veto::Never => {}
        }
    }
    joint_fits || !has_joint
}

/// Returns whether a call charges its hit with the index `nth`, given the decision on the call and the outcomes of the hits.
///
/// A hit of cost 0 has a charge without units in the receipt, so that its cost can be set later. The receipt has no charges
/// of hits that [block](crate::store::Block) their keys.
pub fn has_charge(hits: &[Hit<'_>], outcomes: &[Outcome], nth: usize, allowed: bool) -> bool {
    let fits = outcomes[nth].fits();
    match hits[nth].charge {
        ChargeWhen::IfAdmitted => allowed,
        ChargeWhen::IfAdmittedAndFits => allowed && fits,
        ChargeWhen::Always => true,
        ChargeWhen::Block(block) if fits => {
            let first = nth.saturating_sub(block.limits.into());
            outcomes[first..nth].iter().any(|outcome| !outcome.fits())
        }
        ChargeWhen::Block(block) => block.extends,
    }
}

/// Returns the outcome of a hit that has been charged. `before` is its outcome before the charge, and `after` the outcome that
/// [`Counter::charge`](crate::algorithm::Counter::charge) returned. A hit that [blocks](crate::store::Block) its key no longer
/// fits.
pub fn outcome_of_charge(hit: &Hit<'_>, before: &Outcome, after: Outcome) -> Outcome {
    if before.fits() && hit.charge.block().is_none() {
        after.charged()
    } else {
        after.charged_above_max()
    }
}

/// Returns the number of units that the earlier hits of a request charge to the counter of its next hit if the request
/// is admitted.
///
/// `is_same` receives the index of an earlier hit, and returns whether this hit has the same counter as the next hit.
pub fn pending_units(
    earlier: &[Hit<'_>],
    outcomes: &[Outcome],
    is_same: impl Fn(usize) -> bool,
) -> u64 {
    let is_charged = |hit: &Hit<'_>, outcome: &Outcome| match hit.charge {
        ChargeWhen::IfAdmitted | ChargeWhen::Always => true,
        ChargeWhen::IfAdmittedAndFits => outcome.fits(),
        ChargeWhen::Block(_) => false,
    };
    (earlier.iter().zip(outcomes).enumerate())
        .filter(|(nth, (hit, outcome))| is_same(*nth) && is_charged(hit, outcome))
        .map(|(_, (hit, _))| hit.cost)
        .fold(0, u64::saturating_add)
}
