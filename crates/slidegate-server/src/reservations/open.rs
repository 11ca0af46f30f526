//! The units that open reservations hold in each counter. The responses of `/v1/reserve` state them.
//!
//! A reservation is open until it is settled or its token expires. If other instances may settle reservations, this
//! instance does not know when one is settled, so it records none.

use std::collections::{BTreeSet, HashMap};
use std::hash::BuildHasher;

use parking_lot::Mutex;
use slidegate::Timestamp;
use slidegate::store::{CallId, CounterId};

use super::token::Reservation;

/// Maximum number of charges of open reservations that are recorded, with about 100 bytes each. Above it, the
/// reservations that expire first count as settled.
const MAX_RECORDED_CHARGES: usize = 65_536;

/// The units of open reservations, by counter.
#[derive(Default)]
pub struct OpenReservations {
    /// The hasher of counters, which are identified by hashes, because their names are long.
    hasher: foldhash::quality::RandomState,
    state: Mutex<OpenReservationState>,
}

#[derive(Default)]
struct OpenReservationState {
    units: HashMap<u64, u64>,
    calls: HashMap<CallId, OpenReservation>,
    /// The calls in the order of their expiry.
    expiries: BTreeSet<(Timestamp, CallId)>,
    charges: usize,
}

/// The charges of one reservation: counters and units.
struct OpenReservation {
    expires_at: Timestamp,
    charges: Box<[(u64, u64)]>,
}

impl OpenReservations {
    /// Records the charges of a reservation, unless it is recorded already. `now` is the present time.
    pub fn open(&self, reservation: &Reservation, now: Timestamp) {
        let receipt = reservation.call.receipt();
        // Charges of concurrent limits are left out, because a permit is released, not settled.
        let rates = receipt.charges().iter().filter(|charge| !charge.limit.is_concurrent());
        let charges: Box<[(u64, u64)]> =
            rates.map(|charge| (self.hasher.hash_one(&charge.counter), charge.cost)).collect();
        let mut state = self.state.lock();
        state.remove_expired(now);
        state.open(
            reservation.call.id(),
            OpenReservation { expires_at: reservation.expires_at, charges },
        );
        while state.charges > MAX_RECORDED_CHARGES && state.remove_first_to_expire() {}
    }

    /// Removes a reservation that is settled.
    pub fn settle(&self, id: CallId) {
        self.state.lock().remove(id);
    }

    /// Returns the units that open reservations hold in a counter. `now` is the present time.
    pub fn reserved_units(&self, counter: &CounterId, now: Timestamp) -> u64 {
        let mut state = self.state.lock();
        state.remove_expired(now);
        state.units.get(&self.hasher.hash_one(counter)).copied().unwrap_or_default()
    }
}

impl OpenReservationState {
    fn open(&mut self, id: CallId, call: OpenReservation) {
        if self.calls.contains_key(&id) || call.charges.is_empty() {
            return;
        }
        for (counter, units) in &call.charges {
            let sum = self.units.entry(*counter).or_default();
            *sum = sum.saturating_add(*units);
        }
        self.charges += call.charges.len();
        self.expiries.insert((call.expires_at, id));
        self.calls.insert(id, call);
    }

    fn remove(&mut self, id: CallId) {
        let Some(call) = self.calls.remove(&id) else { return };
        self.expiries.remove(&(call.expires_at, id));
        self.charges -= call.charges.len();
        for (counter, units) in &call.charges {
            let Some(sum) = self.units.get_mut(counter) else { continue };
            *sum = sum.saturating_sub(*units);
            if *sum == 0 {
                self.units.remove(counter);
            }
        }
    }

    fn remove_expired(&mut self, now: Timestamp) {
        while self.expiries.first().is_some_and(|(expires_at, _)| *expires_at <= now) {
            self.remove_first_to_expire();
        }
    }

    /// Removes the reservation that expires first. Returns `false` if there is none.
    fn remove_first_to_expire(&mut self) -> bool {
        let Some((_, id)) = self.expiries.first().copied() else { return false };
        self.remove(id);
        true
    }
}

#[cfg(test)]
mod tests {
    use slidegate::gate::ReservedCall;
    use slidegate::store::Receipt;
    use slidegate::{Descriptor, Gate, MemoryStore, Policy, Request};

    use super::super::token::ChargeLocation;
    use super::*;

    fn gate() -> Gate<MemoryStore> {
        let policy = Policy::from_yaml("rules: [{ name: a, limits: [100000/h] }]").unwrap();
        Gate::new(policy, MemoryStore::new())
    }

    fn reservation(gate: &Gate<MemoryStore>, units: u64, expires_at_s: u64) -> Reservation {
        let decision = gate.check(&Request::new("default", Descriptor::new([]).cost(units)));
        Reservation {
            call: ReservedCall::from_decision(CallId::unique(), &decision),
            expires_at: Timestamp::from_secs(expires_at_s),
            origin: ChargeLocation::StoreOfThisInstance,
        }
    }

    fn counter(reservation: &Reservation) -> CounterId {
        let receipt: Receipt = reservation.call.receipt();
        receipt.charges()[0].counter.clone()
    }

    #[test]
    fn settled_and_expired_reservations_hold_no_units() {
        let open = OpenReservations::default();
        let gate = gate();
        let (first, second) = (reservation(&gate, 700, 20), reservation(&gate, 30, 10));
        let reserved = |at_s| open.reserved_units(&counter(&first), Timestamp::from_secs(at_s));
        for reservation in [&first, &second, &first] {
            open.open(reservation, Timestamp::from_secs(1));
        }
        assert_eq!((reserved(1), reserved(9)), (730, 730), "a repetition is recorded once");
        assert_eq!(reserved(10), 700);
        open.settle(first.call.id());
        open.settle(first.call.id());
        assert_eq!(reserved(10), 0);
        let state = open.state.lock();
        assert_eq!((state.units.len(), state.calls.len(), state.expiries.len()), (0, 0, 0));
    }

    #[test]
    fn recorded_charges_are_bounded() {
        let open = OpenReservations::default();
        let last = reservation(&gate(), 5, 100_000);
        let copies = MAX_RECORDED_CHARGES as u64 + 10;
        for nth in 0..copies {
            let id = CallId::unique();
            let charges = [(1, 1)].into();
            let expires_at = Timestamp::from_secs(1_000 + nth);
            open.state.lock().open(id, OpenReservation { expires_at, charges });
        }
        open.open(&last, Timestamp::from_secs(1));
        let state = open.state.lock();
        assert_eq!(
            (state.charges, state.calls.len()),
            (MAX_RECORDED_CHARGES, MAX_RECORDED_CHARGES)
        );
        assert_eq!(
            state.units[&1],
            MAX_RECORDED_CHARGES as u64 - 1,
            "the last one has another counter"
        );
    }
}
