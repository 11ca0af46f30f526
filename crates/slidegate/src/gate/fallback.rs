//! The fallback: counts in memory, which replace the counts of the store while the store is unavailable. The counts in
//! memory are kept until their windows have passed, even if the store responds again earlier.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::{Clock, Timestamp};
use crate::outcome::Outcome;
use crate::permit::Permit;
use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_MEMORY, MemoryStore};
use crate::store::{
    Adjustment, Charge, DEFAULT_MAX_CALL_RECORDS, PermitChange, Receipt, SettleResult, Settlement,
    SyncStore,
};

/// Minimum time for which counts are kept. It is longer than a decision takes, so that counts are not dropped during a
/// decision that uses them.
const MIN_LOCAL_COUNTS_LIFETIME: Duration = Duration::from_secs(1);

/// Value of `needed_until` if there are no counts in memory.
const NEEDED_UNTIL_IF_NO_COUNTS: u64 = 0;

/// A fallback that enforces limits in memory while the store is unavailable. The first decision without the store
/// creates the counts. They are dropped when the store responds again and the windows of all counts have passed. All
/// outages within a window therefore share the same counts, and each limit is granted in memory only once per window.
pub(super) struct InMemoryFallback {
    clock: Arc<dyn Clock>,
    bounds: LocalCountsBounds,
    counts: ArcSwapOption<LocalCounts>,
    /// The time at which the last count leaves its window, in microseconds; [`NEEDED_UNTIL_IF_NO_COUNTS`] if there are
    /// no counts. While the store is available, decisions read no other field. The value is set after `counts` is
    /// filled and cleared before `counts` is emptied, so that no counts are lost.
    needed_until: AtomicU64,
    /// The number of records that were evicted from counts which have been dropped.
    evicted_call_records: AtomicU64,
}

/// The bounds on the keys and on the records of calls that are in memory while the store is unavailable.
#[derive(Clone, Copy)]
pub(super) struct LocalCountsBounds {
    max_keys: usize,
    /// The maximum memory of keys and records in bytes.
    max_memory: usize,
    max_call_records: usize,
}

impl Default for LocalCountsBounds {
    fn default() -> Self {
        Self {
            max_keys: DEFAULT_MAX_KEYS,
            max_memory: DEFAULT_MAX_MEMORY,
            max_call_records: DEFAULT_MAX_CALL_RECORDS,
        }
    }
}

/// The store in memory that replaces the unavailable store.
pub(super) type LocalCounts = MemoryStore<Arc<dyn Clock>>;

impl InMemoryFallback {
    /// Creates a fallback without counts. The clock must be running already, because starting a clock at the time when
    /// the store fails could delay decisions.
    pub(super) fn new(clock: Arc<dyn Clock>, bounds: LocalCountsBounds) -> Self {
        Self {
            clock,
            bounds,
            counts: ArcSwapOption::empty(),
            needed_until: AtomicU64::new(NEEDED_UNTIL_IF_NO_COUNTS),
            evicted_call_records: AtomicU64::new(0),
        }
    }

    /// Returns a new fallback with another clock and the same bounds. The counts are not copied.
    pub(super) fn with_clock(&self, clock: Arc<dyn Clock>) -> Self {
        Self::new(clock, self.bounds)
    }

    /// Returns a new fallback that counts at most `max_keys` keys. The counts are not copied.
    pub(super) fn with_max_keys(&self, max_keys: usize) -> Self {
        Self::new(self.clock.clone(), LocalCountsBounds { max_keys, ..self.bounds })
    }

    /// Returns a new fallback whose keys and records take at most `max_memory` bytes. The counts are not copied.
    pub(super) fn with_max_memory(&self, max_memory: usize) -> Self {
        Self::new(self.clock.clone(), LocalCountsBounds { max_memory, ..self.bounds })
    }

    /// Returns a new fallback that remembers at most `max_call_records` calls. The counts are not copied.
    pub(super) fn with_max_call_records(&self, max_call_records: usize) -> Self {
        Self::new(self.clock.clone(), LocalCountsBounds { max_call_records, ..self.bounds })
    }

    /// Calls `decide` with the counts in memory, which are created if necessary. `outcomes` returns the outcomes of the
    /// decision; the counts are kept until the latest reset time of these outcomes.
    pub(super) fn decide_with_local_counts<D>(
        &self,
        decide: impl FnOnce(&LocalCounts) -> D,
        outcomes: impl FnOnce(&D) -> &[Outcome],
    ) -> D {
        let counts = self.local_counts().unwrap_or_else(|| self.create_counts());
        let now = self.clock.now();
        self.keep_counts_until(now.after(MIN_LOCAL_COUNTS_LIFETIME));
        let decision = decide(&counts);
        let longest = outcomes(&decision).iter().map(Outcome::reset_after).max();
        self.keep_counts_until(now.after(longest.unwrap_or_default()));
        decision
    }

    /// Changes charges that were made in memory. Does nothing if the fallback has no counts and no units are added.
    pub(super) fn adjust(&self, receipt: &Receipt, adjustment: Adjustment) {
        let additional: Vec<_> = receipt.additional_charges(adjustment).collect();
        if !additional.is_empty() {
            let hits: Vec<_> = additional.iter().map(Charge::reported_hit).collect();
            let adjust = |counts: &LocalCounts| {
                counts.adjust(receipt, adjustment);
                counts.peek(&hits)
            };
            self.decide_with_local_counts(adjust, |outcomes| outcomes);
        } else if let Some(counts) = self.local_counts() {
            counts.adjust(receipt, adjustment);
        }
    }

    /// Applies a settlement of charges that were made in memory, once.
    pub(super) fn settle(&self, settlement: &Settlement) -> SettleResult {
        let hits: Vec<_> = settlement.added.iter().map(Charge::reported_hit).collect();
        let settle = |counts: &LocalCounts| (counts.settle(settlement), counts.peek(&hits));
        let (result, _) = self.decide_with_local_counts(settle, |(_, outcomes)| outcomes);
        self.keep_counts_for(settlement.ttl);
        result
    }

    /// Releases or renews a permit that was created in memory. Returns whether it was live.
    pub(super) fn change_permit(&self, permit: &Permit, change: PermitChange) -> bool {
        let Some(counts) = self.local_counts() else { return false };
        if change == PermitChange::Renew {
            let ttls =
                permit.receipt().charges().iter().map(|charge| charge.limit.quota().window());
            self.keep_counts_for(ttls.max().unwrap_or_default());
        }
        counts.change_permit(permit.receipt(), change)
    }

    /// Keeps the counts in memory for at least this time.
    pub(super) fn keep_counts_for(&self, duration: Duration) {
        self.keep_counts_until(self.clock.now().after(duration));
    }

    fn keep_counts_until(&self, time: Timestamp) {
        self.needed_until.fetch_max(time.as_micros(), Ordering::AcqRel);
    }

    /// Returns the counts in memory; `None` if the fallback has no counts.
    pub(super) fn local_counts(&self) -> Option<Arc<LocalCounts>> {
        self.counts.load_full()
    }

    /// Returns the number of records of calls that were evicted before they expired, since the start.
    pub(super) fn evicted_call_records(&self) -> u64 {
        let current = self.local_counts().map_or(0, |counts| evicted_records_of(&counts));
        self.evicted_call_records.load(Ordering::Relaxed) + current
    }

    fn create_counts(&self) -> Arc<LocalCounts> {
        let LocalCountsBounds { max_keys, max_memory, max_call_records } = self.bounds;
        let created = MemoryStore::with_clock(self.clock.clone(), max_keys)
            .with_max_memory(max_memory)
            .with_max_call_records(max_call_records);
        let created = Arc::new(created);
        let none: Option<Arc<LocalCounts>> = None;
        let previous = self.counts.compare_and_swap(&none, Some(created.clone()));
        // Another thread may have created counts in the meantime.
        Guard::into_inner(previous).unwrap_or(created)
    }

    /// Drops the counts in memory if all their windows have passed. Called after each successful store call.
    pub(super) fn on_store_success(&self) {
        let needed_until = self.needed_until.load(Ordering::Relaxed);
        if needed_until != NEEDED_UNTIL_IF_NO_COUNTS {
            self.drop_counts_if_expired(needed_until);
        }
    }

    fn drop_counts_if_expired(&self, needed_until: u64) {
        let has_expired = self.clock.now().as_micros() >= needed_until;
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let cleared = |until| {
            self.needed_until
                .compare_exchange(until, NEEDED_UNTIL_IF_NO_COUNTS, acquire, relaxed)
                .is_ok()
        };
        if has_expired && cleared(needed_until) {
            let evicted = self.counts.swap(None).map_or(0, |counts| evicted_records_of(&counts));
            self.evicted_call_records.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}

fn evicted_records_of(counts: &LocalCounts) -> u64 {
    counts.call_records().evicted_records()
}
