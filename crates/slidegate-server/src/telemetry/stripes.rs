//! Splits a counter into stripes, so that threads that increment it do not contend for a cache line. A stripe is a part
//! of the counter that only some of the threads use.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus_client::metrics::counter;

/// Number of stripes of a value: about the number of threads that make decisions concurrently on most machines.
const STRIPES_PER_COUNTER: usize = 8;

/// A value that is split into stripes on separate cache lines. Each stripe is used by some of the threads.
#[derive(Debug, Default)]
pub struct Stripes<T>([CacheLineStripe<T>; STRIPES_PER_COUNTER]);

/// One part of a striped value, aligned to a cache line.
#[derive(Debug, Default)]
#[repr(align(64))]
struct CacheLineStripe<T>(T);

thread_local! {
    static STRIPE_INDEX_OF_THREAD: usize = {
        static STRIPE_INDEX_OF_NEXT_THREAD: AtomicUsize = AtomicUsize::new(0);
        STRIPE_INDEX_OF_NEXT_THREAD.fetch_add(1, Ordering::Relaxed) % STRIPES_PER_COUNTER
    };
}

impl<T> Stripes<T> {
    /// Returns the stripe of the current thread.
    pub fn for_current_thread(&self) -> &T {
        // A thread that is being destroyed has no index any more; any stripe is correct.
        &self.0[STRIPE_INDEX_OF_THREAD.try_with(|stripe| *stripe).unwrap_or_default()].0
    }

    /// Returns all stripes.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

/// A counter whose value is the sum of its stripes. `inc` and `inc_by` return the previous value of the current
/// thread's stripe only, not of the whole counter.
impl counter::Atomic<u64> for Stripes<AtomicU64> {
    fn inc(&self) -> u64 {
        self.inc_by(1)
    }

    fn inc_by(&self, by: u64) -> u64 {
        self.for_current_thread().fetch_add(by, Ordering::Relaxed)
    }

    fn get(&self) -> u64 {
        self.iter().map(|stripe| stripe.load(Ordering::Relaxed)).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use prometheus_client::metrics::counter::Atomic;

    use super::*;

    #[test]
    fn concurrent_counter_increments_are_all_counted() {
        let total = Stripes::<AtomicU64>::default();
        thread::scope(|scope| {
            for _ in 0..3 * STRIPES_PER_COUNTER {
                scope.spawn(|| (0..1_000).for_each(|_| _ = total.inc_by(2)));
            }
        });
        assert_eq!(total.get(), 3 * STRIPES_PER_COUNTER as u64 * 2_000);
    }
}
