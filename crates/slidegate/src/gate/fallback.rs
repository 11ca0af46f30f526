//! Counts in memory while the store is unavailable, and afterwards until their windows have passed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::{Clock, Timestamp};
use crate::outcome::Outcome;
use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_MEMORY, MemoryStore};

/// Minimum lifetime of the counts: longer than a decision takes.
const MIN_LIFETIME: Duration = Duration::from_secs(1);

/// Value of `needed_until` if there are no counts.
const NO_COUNTS: u64 = 0;

/// Enforces limits while the store is unavailable. The counts are created by the first decision without the store, and
/// dropped when the store responds and the windows of all counts have passed. So all outages within a window share the
/// same counts, and together add max once.
pub(super) struct Fallback {
    clock: Arc<dyn Clock>,
    bounds: LocalBounds,
    counts: ArcSwapOption<LocalCounts>,
    /// When the last count leaves its window, in microseconds. Decisions read only this value while the store is
    /// available. It is set after `counts` and cleared before them, so that no counts are lost.
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

/// The store in memory that replaces the unavailable one.
pub(super) type LocalCounts = MemoryStore<Arc<dyn Clock>>;

impl Fallback {
    /// Creates a fallback without counts. The clock must be running already: starting it only when the store fails
    /// could delay decisions.
    pub(super) fn new(clock: Arc<dyn Clock>, bounds: LocalBounds) -> Self {
        Self {
            clock,
            bounds,
            counts: ArcSwapOption::empty(),
            needed_until: AtomicU64::new(NO_COUNTS),
        }
    }

    /// Returns a fallback on another clock, without counts.
    pub(super) fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, self.bounds)
    }

    /// Returns a fallback for at most `max_keys` keys, without counts.
    pub(super) fn with_max_keys(&self, max_keys: usize) -> Self {
        Self::new(self.clock.clone(), LocalBounds { max_keys, ..self.bounds })
    }

    /// Returns a fallback whose keys take at most `max_memory` bytes, without counts.
    pub(super) fn with_max_memory(&self, max_memory: usize) -> Self {
        Self::new(self.clock.clone(), LocalBounds { max_memory, ..self.bounds })
    }

    /// Runs `decide` with the counts. `outcomes` returns the outcomes of the decision, whose resets determine the
    /// lifetime of the counts.
    pub(super) fn decide<D>(
        &self,
        decide: impl FnOnce(&LocalCounts) -> D,
        outcomes: impl FnOnce(&D) -> &[Outcome],
    ) -> D {
        let counts = self.counts().unwrap_or_else(|| self.create_counts());
        let now = self.clock.now();
        self.keep_until(now.after(MIN_LIFETIME));
        let decision = decide(&counts);
        let longest = outcomes(&decision).iter().map(Outcome::reset_after).max();
        self.keep_until(now.after(longest.unwrap_or_default()));
        decision
    }

    fn keep_until(&self, moment: Timestamp) {
        self.needed_until.fetch_max(moment.as_micros(), Ordering::AcqRel);
    }

    /// Returns the counts, unless there are none.
    pub(super) fn counts(&self) -> Option<Arc<LocalCounts>> {
        self.counts.load_full()
    }

    #[cold]
    fn create_counts(&self) -> Arc<LocalCounts> {
        let LocalBounds { max_keys, max_memory } = self.bounds;
        let created =
            MemoryStore::with_clock(self.clock.clone(), max_keys).with_max_memory(max_memory);
        let created = Arc::new(created);
        let none: Option<Arc<LocalCounts>> = None;
        let previous = self.counts.compare_and_swap(&none, Some(created.clone()));
        // Another thread may have created counts in the meantime.
        Guard::into_inner(previous).unwrap_or(created)
    }

    /// Drops the counts if all their windows have passed. Called after each successful store call.
    #[inline]
    pub(super) fn on_store_success(&self) {
        let needed_until = self.needed_until.load(Ordering::Relaxed);
        if needed_until != NO_COUNTS {
            self.drop_if_expired(needed_until);
        }
    }

    #[cold]
    fn drop_if_expired(&self, needed_until: u64) {
        let has_expired = self.clock.now().as_micros() >= needed_until;
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let cleared =
            |until| self.needed_until.compare_exchange(until, NO_COUNTS, acquire, relaxed).is_ok();
        if has_expired && cleared(needed_until) {
            self.counts.store(None);
        }
    }
}
