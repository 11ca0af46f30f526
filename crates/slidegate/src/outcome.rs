//! The store's result for one hit.

use std::fmt;
use std::time::Duration;

use crate::clock::ceil_micros;

/// The value of `retry_after_us` for a cost that never fits.
const RETRY_AFTER_US_NEVER: u64 = u64::MAX;

/// The value of `free` for a hit that the store did not evaluate; larger than any limit.
const UNKNOWN_FREE_UNITS: i64 = i64::MAX;

/// The longest duration in an outcome, in microseconds: 142 years. The doubles of Lua scripts represent it exactly.
pub(crate) const MAX_OUTCOME_DURATION_US: u64 = 1 << 52;

/// The store's result for one hit: whether the hit fits, and the status of its counter.
///
/// If the hit has been charged, the status *includes* the charge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The duration until the required units fit, in microseconds; 0 if they fit, [`RETRY_AFTER_US_NEVER`] if they never
    /// fit.
    retry_after_us: u64,
    /// The duration until no unit is in use, in microseconds.
    reset_after_us: u64,
    /// The capacity of the limit minus the units in use.
    free: i64,
}

impl Outcome {
    /// Creates the outcome of a hit that requires `required` free units while `used` of `capacity` units are in use.
    /// `fits_after_us` returns the duration, in microseconds, until the required units are free; it is called only if
    /// they are not free now but will be later.
    #[inline]
    pub(crate) fn from_used_units(
        (used, capacity): (u64, u64),
        required: u64,
        reset_after_us: u64,
        fits_after_us: impl FnOnce() -> u64,
    ) -> Self {
        let fits = capacity.checked_sub(used).is_some_and(|free| required <= free);
        let retry_after_us = match required {
            _ if fits => 0,
            required if required > capacity => RETRY_AFTER_US_NEVER,
            _ => fits_after_us().clamp(1, MAX_OUTCOME_DURATION_US),
        };
        Self {
            retry_after_us,
            reset_after_us: reset_after_us.min(MAX_OUTCOME_DURATION_US),
            free: (capacity as i64).saturating_sub_unsigned(used),
        }
    }

    /// Creates an outcome from the values that a remote store has returned. `free` is the number of
    /// [free units](Self::free), `reset_after` is the duration until no unit is in use, and `retry_after` the duration
    /// until the cost fits: zero if it fits now, `None` if it never fits.
    pub fn new(free: i64, reset_after: Duration, retry_after: Option<Duration>) -> Self {
        Self {
            retry_after_us: retry_after.map_or(RETRY_AFTER_US_NEVER, ceil_micros),
            reset_after_us: ceil_micros(reset_after).min(MAX_OUTCOME_DURATION_US),
            free: free.min(UNKNOWN_FREE_UNITS - 1),
        }
    }

    /// Creates the outcome of a hit that the store did not evaluate, because another hit denies the request, or because
    /// the store evaluates only a sample of the requests and this request is not in the sample. The outcome denies
    /// nothing, and has no status.
    pub fn unknown() -> Self {
        Self { retry_after_us: 0, reset_after_us: 0, free: UNKNOWN_FREE_UNITS }
    }

    /// Returns whether the store evaluated the hit. If it did not, the other fields have no meaning.
    pub fn is_known(&self) -> bool {
        self.free != UNKNOWN_FREE_UNITS
    }

    /// Returns the outcome of a hit that fitted and has been charged, so its `retry_after` is zero. `self` is the
    /// outcome that [`Counter::charge`](crate::algorithm::Counter::charge) returned.
    #[inline]
    pub fn charged(self) -> Self {
        Self { retry_after_us: 0, ..self }
    }

    /// Returns the outcome of a hit that has been charged although it did not fit. `self` is the outcome that
    /// [`Counter::charge`](crate::algorithm::Counter::charge) returned. The `retry_after` of the result is the duration until
    /// one unit fits, at least 1 us.
    pub fn charged_above_max(self) -> Self {
        Self { retry_after_us: self.retry_after_us.max(1), ..self }
    }

    /// Returns the outcome of a hit that does not fit for this duration, for a reason other than the units of its
    /// counter.
    pub(crate) fn denied(self, retry_after: Duration) -> Self {
        Self { retry_after_us: ceil_micros(retry_after).max(1), ..self }
    }

    /// Returns whether the cost of the hit fits, or, if the hit has been charged, whether its cost fitted before the
    /// charge.
    #[inline]
    pub fn fits(&self) -> bool {
        self.retry_after_us == 0
    }

    /// Returns the units that still fit now: the [free](Self::free) units, 0 if there are none.
    pub fn remaining(&self) -> u64 {
        u64::try_from(self.free).unwrap_or_default()
    }

    /// Returns the capacity of the limit minus the units in use. The result is negative if more units are in use than the
    /// limit admits: after reports, after charges that are not checked, and after max has been lowered.
    pub fn free(&self) -> i64 {
        self.free
    }

    /// Returns the duration until no unit of the counter is in use, unless further units are charged.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after_us)
    }

    /// Returns the duration until *this* cost fits: zero if it fits now, `None` if it never fits because it exceeds the
    /// capacity of the limit.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after_us != RETRY_AFTER_US_NEVER)
            .then(|| Duration::from_micros(self.retry_after_us))
    }

    /// Returns [`reset_after`](Self::reset_after) in microseconds.
    pub fn reset_after_us(&self) -> u64 {
        self.reset_after_us
    }

    /// Returns [`retry_after`](Self::retry_after) in microseconds; [`u64::MAX`] if the cost never fits.
    pub fn retry_after_us(&self) -> u64 {
        self.retry_after_us
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known() {
            return f.write_str("Outcome(unknown)");
        }
        f.debug_struct("Outcome")
            .field("fits", &self.fits())
            .field("free", &self.free)
            .field("reset_after", &self.reset_after())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcome_with_maximum_free_units_is_known() {
        let max = Outcome::new(i64::MAX, Duration::ZERO, None);
        assert!(max.is_known() && !max.fits());
        assert!(!Outcome::unknown().is_known() && Outcome::unknown().fits());
    }
}
