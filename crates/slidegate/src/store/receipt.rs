//! Receipts: records of charges, with which the charges are changed or reverted later.

use serde::{Deserialize, Serialize};

use super::{Adjustment, CounterId};
use crate::clock::Timestamp;
use crate::hit::Hit;
use crate::key::Key;
use crate::limit::Limit;

/// A record of charges, sufficient to change or revert them. Valid only for the store that created it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Receipt {
    charges: Vec<Charge>,
}

impl Receipt {
    /// Creates a receipt without charges that has space for this number of charges.
    pub(crate) fn with_capacity(capacity: usize) -> Self {
        Self { charges: Vec::with_capacity(capacity) }
    }

    /// Creates a receipt with one charge.
    #[inline(always)]
    pub(crate) fn of_one(charge: Charge) -> Self {
        Self { charges: vec![charge] }
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
        self.charges.iter().filter(|charge| charge.cost > 0 && charge.limit.is_concurrent())
    }

    /// Appends a charge.
    #[inline]
    pub(crate) fn push(&mut self, charge: Charge) {
        self.charges.push(charge);
    }

    /// Returns the charges to revert for an adjustment. The cost of each charge is the number of units to revert.
    pub fn charges_to_revert(&self, adjustment: Adjustment) -> impl Iterator<Item = Charge> {
        let units_to_revert = move |charge: &Charge| match adjustment {
            Adjustment::Revert => charge.cost,
            // A request in flight takes its permit, whatever it costs.
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
                // A store that charges one request for several requests has charged a multiple of the hit's cost.
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
        self.charges.into_iter()
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
