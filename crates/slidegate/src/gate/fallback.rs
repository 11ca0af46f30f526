//! Counts in memory while the store is unavailable, and afterwards until their windows have passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::{Clock, Timestamp};
use crate::outcome::Outcome;
use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_MEMORY, MemoryStore};

/// Counts are kept for at least this time: longer than a decision takes.
const DECIDING: Duration = Duration::from_secs(1);

/// Stands in `needed_until` for "there are no counts".
const NO_COUNTS: u64 = 0;

/// Enforces limits while the store is unavailable. The counts are created by the first decision without the store, and
/// dropped when the store answers and the windows of all counts have passed. So all outages within a window share the same
/// counts, and together add max once.
pub(super) struct Fallback {
    clock: Arc<dyn Clock>,
    bounds: LocalBounds,
    counts: ArcSwapOption<Counts>,
    /// When the last count leaves its window, in microseconds: all that a decision looks at while the store
    /// answers. Set after `counts` and cleared before them, so that no counts are forgotten.
    needed_until: AtomicU64,
}

/// Bounds of the keys that are counted without the store.
#[derive(Clone, Copy)]
pub(super) struct LocalBounds {
    max_keys: usize,
    max_memory: usize,
}

impl Default for LocalBounds {
    fn default() -> Self {
        Self { max_keys: DEFAULT_MAX_KEYS, max_memory: DEFAULT_MAX_MEMORY }
    }
}

pub(super) type Counts = MemoryStore<Arc<dyn Clock>>;

impl Fallback {
    /// On a clock that is running: one that is started only once the store fails may take its time to.
    pub(super) fn new(clock: Arc<dyn Clock>, bounds: LocalBounds) -> Self {
        Self {
            clock,
            bounds,
            counts: ArcSwapOption::empty(),
            needed_until: AtomicU64::new(NO_COUNTS),
        }
    }

    /// The same, yet unused, on another clock.
    pub(super) fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, self.bounds)
    }

    /// The same, yet unused, with room for so many keys.
    pub(super) fn with_max_keys(&self, max_keys: usize) -> Self {
        Self::new(self.clock.clone(), LocalBounds { max_keys, ..self.bounds })
    }

    /// Returns an unused fallback whose keys take at most `max_memory` bytes.
    pub(super) fn with_max_memory(&self, max_memory: usize) -> Self {
        Self::new(self.clock.clone(), LocalBounds { max_memory, ..self.bounds })
    }

    /// Decides by the counts. `outcomes` returns the outcomes of the decision, which say how long the counts are needed.
    pub(super) fn decide<D>(
        &self,
        decide: impl FnOnce(&Counts) -> D,
        outcomes: impl FnOnce(&D) -> &[Outcome],
    ) -> D {
        let counts = self.present().unwrap_or_else(|| self.begin());
        let now = self.clock.now();
        self.keep_until(now.after(DECIDING));
        let decided = decide(&counts);
        let longest = outcomes(&decided).iter().map(Outcome::reset_after).max();
        self.keep_until(now.after(longest.unwrap_or_default()));
        decided
    }

    fn keep_until(&self, moment: Timestamp) {
        self.needed_until.fetch_max(moment.as_micros(), Ordering::AcqRel);
    }

    /// Returns the counts, unless there are none.
    pub(super) fn present(&self) -> Option<Arc<Counts>> {
        self.counts.load_full()
    }

    #[cold]
    fn begin(&self) -> Arc<Counts> {
        let LocalBounds { max_keys, max_memory } = self.bounds;
        let fresh =
            MemoryStore::with_clock(self.clock.clone(), max_keys).with_max_memory(max_memory);
        let fresh = Arc::new(fresh);
        let none: Option<Arc<Counts>> = None;
        let before = self.counts.compare_and_swap(&none, Some(fresh.clone()));
        // Somebody may have been faster.
        Guard::into_inner(before).unwrap_or(fresh)
    }

    /// Drops the counts if all their windows have passed. Called after each answer of the store.
    #[inline]
    pub(super) fn store_answered(&self) {
        let needed_until = self.needed_until.load(Ordering::Relaxed);
        if needed_until != NO_COUNTS {
            self.end_if_over(needed_until);
        }
    }

    #[cold]
    fn end_if_over(&self, needed_until: u64) {
        let is_over = self.clock.now().as_micros() >= needed_until;
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let cleared =
            |until| self.needed_until.compare_exchange(until, NO_COUNTS, acquire, relaxed).is_ok();
        if is_over && cleared(needed_until) {
            self.counts.store(None);
        }
    }
}
