//! Counts in memory for as long as the store does not answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::{Clock, Timestamp};
use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_MEMORY, MemoryStore};

/// How long nobody must have needed the counts before they are dropped: a store that answers only now and
/// then has not recovered, and whoever it fails must not find the counts empty each time.
const QUIET: Duration = Duration::from_secs(1);

/// Stands in `used_at` for "never".
const NEVER: u64 = u64::MAX;

/// What enforces while the store does not answer: made at the first decision without the store, dropped
/// with all its counts once the store has answered everybody for a second.
pub(super) struct Fallback {
    clock: Arc<dyn Clock>,
    bounds: LocalBounds,
    counts: ArcSwapOption<Counts>,
    /// When the counts were last used, in microseconds: all that a decision looks at while the store
    /// answers. Set after `counts` and cleared before them, so that no counts are forgotten.
    used_at: AtomicU64,
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
        Self { clock, bounds, counts: ArcSwapOption::empty(), used_at: AtomicU64::new(NEVER) }
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

    /// The counts of this outage.
    pub(super) fn counts(&self) -> Arc<Counts> {
        let counts = self.present().unwrap_or_else(|| self.begin());
        self.used_at.store(self.clock.now().as_micros(), Ordering::Release);
        counts
    }

    /// The counts of this outage, unless it has not begun or is over.
    pub(super) fn present(&self) -> Option<Arc<Counts>> {
        self.counts.load_full()
    }

    #[cold]
    fn begin(&self) -> Arc<Counts> {
        let LocalBounds { max_keys, max_memory } = self.bounds;
        let fresh = MemoryStore::with(self.clock.clone(), max_keys).with_max_memory(max_memory);
        let fresh = Arc::new(fresh);
        let none: Option<Arc<Counts>> = None;
        let before = self.counts.compare_and_swap(&none, Some(fresh.clone()));
        // Somebody may have been faster.
        Guard::into_inner(before).unwrap_or(fresh)
    }

    /// The store has answered: once it has for a while, its counts are the only ones.
    #[inline]
    pub(super) fn store_answered(&self) {
        let used_at = self.used_at.load(Ordering::Relaxed);
        if used_at != NEVER {
            self.end_if_quiet(used_at);
        }
    }

    #[cold]
    fn end_if_quiet(&self, used_at: u64) {
        let quiet_until = Timestamp::from_micros(used_at).after(QUIET);
        let is_last_use = |used_at| {
            self.used_at
                .compare_exchange(used_at, NEVER, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok()
        };
        if self.clock.now() >= quiet_until && is_last_use(used_at) {
            self.counts.store(None);
        }
    }
}
