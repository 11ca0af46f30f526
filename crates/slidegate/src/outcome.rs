//! What a store says of one hit.

use std::fmt;
use std::time::Duration;

use crate::clock::micros_up;

/// Stands in `retry_after_us` for "it never can".
const NEVER: u64 = u64::MAX;

/// Stands in `remaining` for "nobody asked": more than any limit has.
const UNKNOWN: u32 = u32::MAX;

/// No longer span is told: 142 years. So the doubles in which a script counts tell the same.
pub(crate) const LONGEST_US: u64 = 1 << 52;

/// What a store says of one hit: whether it fits, and how its counter stands.
///
/// After a charge the counter is described as it stands *with* that charge.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    retry_after_us: u64,
    reset_after_us: u64,
    remaining: u32,
    fits: bool,
}

impl Outcome {
    /// Returns whether `required` units are free where `used` of `capacity` units are in use. `fits_after_us` is called
    /// only if they will be free later.
    #[inline(always)]
    pub(crate) fn judge(
        (used, capacity): (u64, u64),
        required: u64,
        reset_after_us: u64,
        fits_after_us: impl FnOnce() -> u64,
    ) -> Self {
        let free = capacity.checked_sub(used);
        let fits = free.is_some_and(|free| required <= free);
        let remaining = free.unwrap_or_default();
        Self::judge_fit((fits, remaining, capacity), required, reset_after_us, fits_after_us)
    }

    /// The same, where the caller knows whether the units are free.
    #[inline(always)]
    pub(crate) fn judge_fit(
        (fits, remaining, capacity): (bool, u64, u64),
        required: u64,
        reset_after_us: u64,
        fits_after_us: impl FnOnce() -> u64,
    ) -> Self {
        let retry_after_us = if fits {
            0
        } else if required > capacity {
            NEVER
        } else {
            fits_after_us().min(LONGEST_US)
        };
        let reset_after_us = reset_after_us.min(LONGEST_US);
        Self { retry_after_us, reset_after_us, remaining: remaining as u32, fits }
    }

    /// What a store says that counts elsewhere: units that still fit, how long until the key is as if never
    /// seen, and how long until this cost fits: zero if it does, `None` if it never can.
    pub fn new(remaining: u32, reset_after: Duration, retry_after: Option<Duration>) -> Self {
        let retry_after_us = retry_after.map_or(NEVER, |wait| micros_up(wait).min(LONGEST_US));
        let reset_after_us = micros_up(reset_after).min(LONGEST_US);
        Self {
            retry_after_us,
            reset_after_us,
            remaining: remaining.min(UNKNOWN - 1),
            fits: retry_after_us == 0,
        }
    }

    /// What a store says that knows its answer without asking for this hit: because another denies, or because
    /// only some requests are asked for. It denies nothing, and has no figures.
    pub fn not_asked() -> Self {
        Self { retry_after_us: 0, reset_after_us: 0, remaining: UNKNOWN, fits: true }
    }

    /// Whether the store has asked how this hit stands. If not, nothing else here means anything.
    #[inline]
    pub fn is_known(&self) -> bool {
        self.remaining != UNKNOWN
    }

    /// Returns the outcome of a hit that fitted and has been charged. `self` is the state of the counter after the charge,
    /// from [`Counter::charge`](crate::algorithm::Counter::charge).
    #[inline]
    pub fn charged(self) -> Self {
        Self { fits: true, retry_after_us: 0, ..self }
    }

    /// Returns the outcome of a hit that has been charged and had the outcome `before` until then. `self` is the state of
    /// the counter after the charge. If the hit did not fit, `retry_after` is the time until one unit fits, at least 1 us.
    #[inline]
    pub fn charged_after(self, before: &Self) -> Self {
        match before.fits {
            true => self.charged(),
            false => Self { fits: false, retry_after_us: self.retry_after_us.max(1), ..self },
        }
    }

    /// Whether the cost fits (or did, if it has been charged).
    #[inline]
    pub fn fits(&self) -> bool {
        self.fits
    }

    /// Units that still fit now.
    pub fn remaining(&self) -> u64 {
        u64::from(self.remaining)
    }

    /// How long, from the caller's now, until the key is as if never seen.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after_us)
    }

    /// How long, from the caller's now, until *this* cost would fit: zero if it fits now, `None` if it
    /// never can, because it is over what the limit holds.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after_us != NEVER).then(|| Duration::from_micros(self.retry_after_us))
    }

    /// [`reset_after`](Self::reset_after) in microseconds.
    #[inline]
    pub fn reset_after_us(&self) -> u64 {
        self.reset_after_us
    }

    /// [`retry_after`](Self::retry_after) in microseconds; of what never fits it is [`u64::MAX`].
    #[inline]
    pub fn wait_us(&self) -> u64 {
        self.retry_after_us
    }
}

impl fmt::Debug for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.is_known() {
            return f.write_str("Outcome(not asked)");
        }
        f.debug_struct("Outcome")
            .field("fits", &self.fits)
            .field("remaining", &self.remaining)
            .field("reset_after", &self.reset_after())
            .field("retry_after", &self.retry_after())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_cannot_say_by_chance_that_it_did_not_ask() {
        let most = Outcome::new(u32::MAX, Duration::ZERO, None);
        assert!(most.is_known() && !most.fits());
        assert!(!Outcome::not_asked().is_known() && Outcome::not_asked().fits());
    }
}
