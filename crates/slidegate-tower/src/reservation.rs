//! Reservations: the charge of a request is an estimate until its response body has ended.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use crate::settle_guard::SettleGuard;
use crate::settlement::Settlement;

/// The reservation of a request: its charge, which is an estimate, and the settlement that corrects it.
///
/// A [layer with reservations](crate::RateLimitLayer::reserve) adds this value to the extensions of each allowed
/// request. A handler keeps a clone of it in the response body, and [sets](Self::set) the settlement as soon as it knows
/// the cost. The charge is settled when all clones have been dropped: when the response body, also a streamed one, has
/// ended, or when it is dropped because the client has disconnected.
///
/// Without a settlement, [`OnDrop`](crate::OnDrop) determines whether the charge stays.
#[derive(Clone)]
pub struct RequestReservation(Arc<SharedReservation>);

/// The state that the clones of a reservation share. Settles the charge when it is dropped.
struct SharedReservation(Mutex<ReservationState>);

struct ReservationState {
    guard: Option<SettleGuard>,
    settlement: Option<Settlement>,
}

impl RequestReservation {
    pub(crate) fn new(guard: SettleGuard) -> Self {
        let state = ReservationState { guard: Some(guard), settlement: None };
        Self(Arc::new(SharedReservation(Mutex::new(state))))
    }

    /// Sets the settlement of the charge. It replaces an earlier one, so a handler can set the cost so far while it
    /// streams: a client that disconnects then pays for the part that it has received.
    pub fn set(&self, settlement: Settlement) {
        let mut state = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.settlement = Some(settlement);
    }
}

impl Drop for SharedReservation {
    fn drop(&mut self) {
        let state = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let (Some(guard), Some(settlement)) = (state.guard.take(), state.settlement) {
            guard.settle_in_background(settlement);
        }
    }
}

impl fmt::Debug for RequestReservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestReservation").finish_non_exhaustive()
    }
}
