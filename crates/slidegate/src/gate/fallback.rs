//! Counts in memory for as long as the store does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::Clock;
use crate::store::memory::MemoryStore;

/// What enforces while the store does not answer: made at the first decision without the store, dropped
/// with all its counts at the store's next answer.
pub(super) struct Fallback {
    clock: Arc<dyn Clock>,
    max_keys: usize,
    counts: ArcSwapOption<Counts>,
    /// Whether there are counts to drop: all that a decision looks at while the store answers. Set after
    /// `counts` and cleared before them, so that no counts outlast an answer unseen.
    is_used: AtomicBool,
}

pub(super) type Counts = MemoryStore<Arc<dyn Clock>>;

impl Fallback {
    /// On a clock that is running: one that is started only once the store fails may take its time to.
    pub(super) fn new(clock: Arc<dyn Clock>, max_keys: usize) -> Self {
        Self { clock, max_keys, counts: ArcSwapOption::empty(), is_used: AtomicBool::new(false) }
    }

    /// The same, yet unused, on another clock.
    pub(super) fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, self.max_keys)
    }

    /// The same, yet unused, with room for so many keys.
    pub(super) fn with_max_keys(self, max_keys: usize) -> Self {
        Self::new(self.clock, max_keys)
    }

    /// The counts of this outage.
    pub(super) fn counts(&self) -> Arc<Counts> {
        let counts = self.present().unwrap_or_else(|| self.begin());
        if !self.is_used.load(Ordering::Acquire) {
            self.is_used.store(true, Ordering::Release);
        }
        counts
    }

    /// The counts of this outage, unless it has not begun or is over.
    pub(super) fn present(&self) -> Option<Arc<Counts>> {
        self.counts.load_full()
    }

    #[cold]
    fn begin(&self) -> Arc<Counts> {
        let fresh = Arc::new(MemoryStore::with(self.clock.clone(), self.max_keys));
        let none: Option<Arc<Counts>> = None;
        let before = self.counts.compare_and_swap(&none, Some(fresh.clone()));
        // Somebody may have been faster.
        Guard::into_inner(before).unwrap_or(fresh)
    }

    /// The store has answered: its counts are the only ones.
    #[inline]
    pub(super) fn store_answered(&self) {
        if self.is_used.load(Ordering::Relaxed) {
            self.end();
        }
    }

    #[cold]
    fn end(&self) {
        if self.is_used.swap(false, Ordering::AcqRel) {
            self.counts.store(None);
        }
    }
}
