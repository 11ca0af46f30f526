//! One call of a limiter: its key, cost and maximum wait.

use std::time::Duration;

/// A call of a [`Limiter`](super::Limiter): a key, its cost, and the time for which it may wait. A reference to a key
/// converts to a check that costs one unit and does not wait, so `check(&key)` is short for `check(Check::new(&key))`. A
/// text such as `"acme"` is a reference already.
///
/// ```
/// use std::time::Duration;
///
/// use slidegate::{Check, Limiter};
///
/// let limiter = Limiter::new(["10/50ms", "100/h"])?;
/// assert!(limiter.check("acme").is_allowed());                        // one unit
/// assert!(limiter.check(&("acme", 7)).is_allowed());                  // another key
/// assert!(limiter.check(Check::new("acme").cost(9)).is_allowed());
/// let waiting = Check::new("acme").max_wait(Duration::from_secs(1));
/// assert!(limiter.check(waiting).is_allowed());                       // after 50 ms
/// assert!(!limiter.check(waiting.cost(90)).is_allowed());             // immediately: it needs an hour
/// # Ok::<(), slidegate::LimiterError>(())
/// ```
#[derive(Debug)]
pub struct Check<'k, K: ?Sized> {
    pub(super) key: &'k K,
    pub(super) cost: u64,
    pub(super) max_wait: Duration,
}

impl<'k, K: ?Sized> Check<'k, K> {
    /// Creates a check that costs one unit and does not wait.
    #[inline]
    pub fn new(key: &'k K) -> Self {
        Self { key, cost: 1, max_wait: Duration::ZERO }
    }

    /// Sets the cost in units. A cost of 0 checks whether one unit would fit, and charges nothing.
    #[inline]
    #[must_use]
    pub fn cost(self, units: u64) -> Self {
        Self { cost: units, ..self }
    }

    /// Sets the time for which the check waits until it fits, zero by default. A check that does not fit within this time
    /// is denied as soon as this is known. Waiting checks for the same key are admitted in the order of their arrival; see
    /// [`Limiter::wait`](super::Limiter::wait).
    ///
    /// Asynchronous methods wait on the timer of tokio, and need the feature `tokio`. Without it, a debug build panics, and
    /// a release build does not wait.
    #[inline]
    #[must_use]
    pub fn max_wait(self, max_wait: Duration) -> Self {
        Self { max_wait, ..self }
    }
}

impl<K: ?Sized> Clone for Check<'_, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<K: ?Sized> Copy for Check<'_, K> {}

impl<'k, K: ?Sized> From<&'k K> for Check<'k, K> {
    #[inline]
    fn from(key: &'k K) -> Self {
        Self::new(key)
    }
}
