//! The interface of all algorithms, [`Counter`], and the arithmetic that several algorithms share.

use std::fmt;

use crate::clock::Timestamp;
use crate::layout::HeapSize;
use crate::outcome::Outcome;
use crate::quota::MAX_SMALL_UNITS;

/// An algorithm with a quota: pure arithmetic over the state of one key.
///
/// A new key has the default state. If `now` is before the key's last charge, the time of the last charge is used
/// instead, because threads and machines read their clocks at slightly different times. The durations in an outcome are
/// nevertheless measured from `now`. If a state [is ahead](Self::is_ahead_of_clock), the caller must set it back first:
/// [`state_at`](Self::state_at).
pub trait Counter: Copy {
    /// The state of one key.
    type State: Clone + fmt::Debug + Default + HeapSize + PartialEq + Send + 'static;

    /// Returns the largest number of units that fit at once.
    fn capacity(&self) -> u64;

    /// Returns the outcome of a hit that requires `required` free units at `now`. A hit that requires 0 units fits as
    /// long as at most max units are used.
    fn peek(&self, state: &Self::State, now: Timestamp, required: u64) -> Outcome;

    /// Returns the number of units that a charge of `cost` units counts: less than `cost` only if the whole cost would
    /// exceed the largest debt of a token bucket, or the max of requests in flight.
    fn chargeable_units(&self, _: &Self::State, _: Timestamp, cost: u64) -> u64 {
        cost
    }

    /// Charges `cost` units without checking whether they fit. The caller must have limited `cost` to the
    /// [chargeable](Self::chargeable_units) units.
    fn charge(&self, state: &mut Self::State, now: Timestamp, cost: u64) -> ChargeEffect;

    /// Decides a hit that requires and costs `cost` units: charges it if it fits, as [`charge`](Self::charge) does, and
    /// returns its outcome otherwise. An algorithm overrides this method if the check and the charge can share a
    /// computation.
    fn charge_if_fits(
        &self,
        state: &mut Self::State,
        now: Timestamp,
        cost: u64,
    ) -> Result<ChargeEffect, Outcome> {
        let outcome = self.peek(state, now, cost);
        if outcome.fits() { Ok(self.charge(state, now, cost)) } else { Err(outcome) }
    }

    /// Reverts a charge of `cost` units that was counted at the time `charged_at`. Has no effect on units that have
    /// left the window already.
    fn revert(&self, state: &mut Self::State, charged_at: Timestamp, cost: u64);

    /// Subtracts `cost` units from the units that are in use at `now`, oldest units first, or all units in use if there
    /// are fewer. The number of free units grows by exactly the number of subtracted units.
    fn refund(&self, state: &mut Self::State, now: Timestamp, cost: u64);

    /// Returns whether the last charge is more than a second after `now`: the clock has stepped back since, or it was
    /// ahead for a while. Without [`set_state_back_to`](Self::set_state_back_to), the units would be in use until the
    /// clock has caught up.
    fn is_ahead_of_clock(&self, state: &Self::State, now: Timestamp) -> bool;

    /// Moves a state that [is ahead](Self::is_ahead_of_clock) to `now`: the units that were in use at its last charge
    /// are in use as if they had been charged at `now`. So no unit is lost, and none is in use for longer than after a
    /// charge.
    fn set_state_back_to(&self, state: &mut Self::State, now: Timestamp);

    /// Returns the state of a key, which is first set back if it is ahead. A store calls this before all other methods but
    /// [`revert`](Self::revert).
    fn state_at<'s>(&self, state: &'s mut Self::State, now: Timestamp) -> &'s mut Self::State {
        if self.is_ahead_of_clock(state, now) {
            self.set_state_back_to(state, now);
        }
        state
    }

    /// Returns the time from which the state is equivalent to the default state, because none of its units are in use.
    fn expires_at(&self, state: &Self::State) -> Timestamp;
}

/// The result of a charge: the time at which the charge is counted, and the outcome of a peek after the charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChargeEffect {
    /// The time at which the charge is counted.
    pub charged_at: Timestamp,
    /// The time from which the state is equivalent to the default state, unless it is charged again.
    pub expires_at: Timestamp,
    /// The result of a [`peek`](Counter::peek) for one unit after the charge.
    pub outcome: Outcome,
}

/// The largest duration by which the last charge of a state may be after the current time, in microseconds. It allows for
/// clocks that differ slightly; above it, the state [is ahead](Counter::is_ahead_of_clock).
pub(crate) const MAX_AHEAD_OF_CLOCK_US: u64 = 1_000_000;

/// Returns whether `time_us`, in microseconds since the Unix epoch, is so long after `now` that the clock has stepped back.
#[inline]
pub(super) fn is_time_ahead_of_clock(time_us: u64, now: Timestamp) -> bool {
    time_us > now.as_micros().saturating_add(MAX_AHEAD_OF_CLOCK_US)
}

/// Returns the duration from `now` until the state expires, in microseconds.
pub(super) fn micros_until_expiry<C: Counter>(
    counter: &C,
    state: &C::State,
    now: Timestamp,
) -> u64 {
    counter.expires_at(state).as_micros().saturating_sub(now.as_micros())
}

/// Limits a number of units to [`MAX_SMALL_UNITS`], for algorithms that store counts in 32 bits.
pub(super) fn clamp_to_small_units(units: u64) -> u32 {
    units.min(MAX_SMALL_UNITS) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{Algorithm, with_counter};
    use crate::limit::Limit;

    /// Decides hits in one step and in two steps, with refunds and reverts in between, and compares the results.
    fn compare_one_step_with_two_steps<C: Counter>(
        counter: C,
        steps: &[(u64, u64, u8)],
    ) -> Result<(), TestCaseError> {
        let (mut state, mut now_us) = (C::State::default(), 1_700_000_000_000_000);
        for (elapsed_us, cost, operation) in steps {
            now_us += if *elapsed_us < 200_000 { elapsed_us / 10_000 } else { *elapsed_us };
            let (now, earlier) =
                (Timestamp::from_micros(now_us), Timestamp::from_micros(now_us - 300_000));
            let mut expected = state.clone();
            let outcome = counter.peek(&state, now, *cost);
            let decision = if outcome.fits() {
                Ok(counter.charge(&mut expected, now, *cost))
            } else {
                Err(outcome)
            };
            prop_assert_eq!(counter.charge_if_fits(&mut state, now, *cost), decision);
            prop_assert_eq!(&state, &expected);
            match operation {
                0 => counter.refund(&mut state, now, *cost),
                1 => counter.revert(&mut state, now, *cost),
                2 => counter.revert(&mut state, earlier, *cost),
                3 => drop(counter.charge(&mut state, now, *cost)),
                _ => {}
            }
        }
        Ok(())
    }

    proptest! {
        #[test]
        fn charge_if_fits_equals_peek_and_charge(
            steps in prop::collection::vec((0..900_000_u64, 1..5_u64, 0..12_u8), 1..200),
        ) {
            for algorithm in Algorithm::ALL {
                let limit = Limit::new("40/s".parse().unwrap(), algorithm).unwrap();
                with_counter!(limit.counter(), counter => compare_one_step_with_two_steps(counter, &steps)?);
            }
        }
    }
}
