//! Numbers that many threads add to, and a scraper reads now and then: each thread has a part of its own, so
//! that none waits for another's cache line.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use prometheus_client::metrics::counter;

/// Parts of a number: as many threads as decide at once on most machines.
const STRIPE_COUNT: usize = 8;

/// One of something for each of some threads, in cache lines of its own.
#[derive(Debug, Default)]
pub struct Stripes<T>([Stripe<T>; STRIPE_COUNT]);

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe<T>(T);

thread_local! {
    static STRIPE_INDEX: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Ordering::Relaxed) % STRIPE_COUNT
    };
}

impl<T> Stripes<T> {
    /// That of this thread.
    pub fn for_current_thread(&self) -> &T {
        // A thread that ends has none any more, and may use anybody's.
        &self.0[STRIPE_INDEX.try_with(|stripe| *stripe).unwrap_or_default()].0
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.0.iter().map(|stripe| &stripe.0)
    }
}

/// Says what the number was by this part of it.
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
    fn nothing_that_any_thread_adds_is_lost() {
        let total = Stripes::<AtomicU64>::default();
        thread::scope(|scope| {
            for _ in 0..3 * STRIPE_COUNT {
                scope.spawn(|| (0..1_000).for_each(|_| _ = total.inc_by(2)));
            }
        });
        assert_eq!(total.get(), 3 * STRIPE_COUNT as u64 * 2_000);
    }
}
