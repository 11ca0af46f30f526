//! Receipts: records of charges, with which the charges are changed or reverted later.

use std::sync::Arc;

use arrayvec::ArrayVec;

use super::few::INLINE_ITEMS;
use super::{Adjustment, CounterId};
use crate::clock::Timestamp;
use crate::hit::Hit;
use crate::key::Key;
use crate::limit::Limit;

/// A record of charges, sufficient to change or revert them. Valid only for the store that created it.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    /// Up to four charges of a store in this process; empty if there is an allocation. They have no destructors, so
    /// that the compiler can inline the destructor of a decision.
    inline: ArrayVec<InlineCharge, INLINE_ITEMS>,
    allocated: Option<Arc<Vec<Charge>>>,
}

/// A charge of a counter that has a fingerprint.
#[derive(Clone, Copy, Debug)]
struct InlineCharge {
    fingerprint: u64,
    limit: Limit,
    hit_index: u32,
    phase_us: u64,
    charged_at: Timestamp,
    hit_cost: u64,
    cost: u64,
}

impl From<InlineCharge> for Charge {
    fn from(charge: InlineCharge) -> Self {
        let InlineCharge { fingerprint, limit, hit_index, phase_us, charged_at, hit_cost, cost } =
            charge;
        let counter = CounterId::Fingerprint(fingerprint);
        Self { counter, limit, hit_index, phase_us, charged_at, hit_cost, cost }
    }
}

impl Receipt {
    /// Returns whether the receipt has no charges.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of charges.
    pub fn len(&self) -> usize {
        self.allocated.as_ref().map_or(self.inline.len(), |charges| charges.len())
    }

    /// Returns the charges, one for each charged hit.
    pub fn charges(&self) -> impl Iterator<Item = Charge> {
        let allocated = self.allocated.iter().flat_map(|charges| charges.iter().cloned());
        self.inline.iter().map(|charge| Charge::from(*charge)).chain(allocated)
    }

    /// Appends a charge.
    #[inline(always)]
    pub(crate) fn push(&mut self, charge: Charge) {
        let Charge { counter, limit, hit_index, phase_us, charged_at, hit_cost, cost } = &charge;
        if let CounterId::Fingerprint(fingerprint) = *counter
            && self.allocated.is_none()
            && !self.inline.is_full()
        {
            self.inline.push(InlineCharge {
                fingerprint,
                limit: *limit,
                hit_index: *hit_index,
                phase_us: *phase_us,
                charged_at: *charged_at,
                hit_cost: *hit_cost,
                cost: *cost,
            });
        } else {
            self.push_to_allocation(charge);
        }
    }

    #[cold]
    fn push_to_allocation(&mut self, charge: Charge) {
        let charges = Arc::make_mut(self.allocated.get_or_insert_default());
        charges.extend(self.inline.drain(..).map(Charge::from));
        charges.push(charge);
    }

    /// Returns the charges to revert for an adjustment. The cost of each charge is the number of units to revert.
    pub fn charges_to_revert(&self, adjustment: Adjustment) -> impl Iterator<Item = Charge> {
        let units_to_revert = move |charge: &Charge| match adjustment {
            Adjustment::Revert => charge.cost,
            Adjustment::SetCost(cost) => {
                let excess = charge.hit_cost.saturating_sub(cost);
                multiply_and_divide(charge.cost, excess, charge.hit_cost)
            }
        };
        let parts =
            self.charges().map(move |charge| Charge { cost: units_to_revert(&charge), ..charge });
        parts.filter(|charge| charge.cost > 0)
    }

    /// Returns the charges with the units that an adjustment charges in addition. Each is to be charged by a
    /// [hit](Charge::reported_hit) that never denies.
    pub fn additional_charges(&self, adjustment: Adjustment) -> impl Iterator<Item = Charge> {
        let additional_units = move |charge: &Charge| match adjustment {
            Adjustment::Revert => 0,
            Adjustment::SetCost(cost) => {
                let extra = cost.saturating_sub(charge.hit_cost);
                // A store that charges one request for several requests has charged a multiple of the hit's cost.
                multiply_and_divide(extra, charge.cost, charge.hit_cost).max(extra)
            }
        };
        let charges =
            self.charges().map(move |charge| Charge { cost: additional_units(&charge), ..charge });
        charges.filter(|charge| charge.cost > 0)
    }
}

impl PartialEq for Receipt {
    fn eq(&self, other: &Self) -> bool {
        self.charges().eq(other.charges())
    }
}

impl FromIterator<Charge> for Receipt {
    fn from_iter<I: IntoIterator<Item = Charge>>(charges: I) -> Self {
        let mut receipt = Self::default();
        charges.into_iter().for_each(|charge| receipt.push(charge));
        receipt
    }
}

/// Returns `units * factor / divisor`, rounded down, and at most `u64::MAX`.
fn multiply_and_divide(units: u64, factor: u64, divisor: u64) -> u64 {
    let product = u128::from(units) * u128::from(factor) / u128::from(divisor.max(1));
    u64::try_from(product).unwrap_or(u64::MAX)
}

/// The charge of one hit.
#[derive(Clone, Debug, PartialEq)]
pub struct Charge {
    /// The identifier by which the store finds the charged counter.
    pub counter: CounterId,
    /// The limit of the counter.
    pub limit: Limit,
    /// Index of the hit in its call.
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
    /// Returns a hit that charges the units of this charge to the same counter. The hit never denies.
    pub fn reported_hit(&self) -> Hit<'_> {
        let key = Key::of_counter(&self.counter, self.phase_us);
        Hit::new(key, &self.limit, self.cost).reported()
    }
}

/// The charge of a request's only hit: a [`Charge`] without the parts that the caller has.
#[derive(Clone, Debug, PartialEq)]
pub struct SingleCharge {
    /// The identifier by which the store finds the charged counter.
    pub counter: CounterId,
    /// The phase of the key. See [`Charge::phase_us`].
    pub phase_us: u64,
    /// The time at which the charge is counted. See [`Charge::charged_at`].
    pub charged_at: Timestamp,
    /// The cost of the hit, in units.
    pub hit_cost: u64,
    /// The charged units. See [`Charge::cost`].
    pub cost: u64,
}

impl SingleCharge {
    /// Adds the limit of the counter.
    pub fn into_charge(self, limit: Limit) -> Charge {
        let Self { counter, phase_us, charged_at, hit_cost, cost } = self;
        Charge { counter, limit, hit_index: 0, phase_us, charged_at, hit_cost, cost }
    }
}

impl From<Charge> for SingleCharge {
    fn from(charge: Charge) -> Self {
        let Charge { counter, phase_us, charged_at, hit_cost, cost, .. } = charge;
        Self { counter, phase_us, charged_at, hit_cost, cost }
    }
}
