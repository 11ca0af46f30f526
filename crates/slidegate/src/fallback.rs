//! The fallback: counts in memory, which replace the counts of the store while the store is unavailable. The counts in
//! memory are kept until their windows have passed, even if the store responds again earlier.

use std::fmt;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::{ArcSwapOption, Guard};

use crate::clock::{Clock, SystemClock, Timestamp};
use crate::outcome::Outcome;
#[cfg(feature = "policy")]
use crate::permit::Permit;
use crate::store::memory::{DEFAULT_MAX_KEYS, DEFAULT_MAX_MEMORY, MemoryStore};
use crate::store::{Adjustment, Charge, DEFAULT_MAX_CALL_RECORDS, Receipt, SyncStore};
#[cfg(feature = "policy")]
use crate::store::{CallSettlement, PermitChange, SettleResult};

/// Minimum time for which counts are kept. It is longer than a decision takes, so that counts are not dropped during a
/// decision that uses them.
const MIN_LOCAL_COUNTS_LIFETIME: Duration = Duration::from_secs(1);

/// The value of `InMemoryFallback::needed_until`, the time until which counts are kept, if there are no counts.
const NEEDED_UNTIL_IF_NO_COUNTS: u64 = 0;

/// A fallback that enforces limits in memory while the store is unavailable. The first decision without the store
/// creates the counts. They are dropped when the store responds again and the windows of all counts have passed. All
/// outages within a window therefore share the same counts, and each limit is granted in memory only once per window.
pub(crate) struct InMemoryFallback {
    /// The options of the counts. Their clock runs already, because starting a clock when the store fails could delay
    /// decisions.
    options: LocalCountsOptions,
    counts: ArcSwapOption<LocalCounts>,
    /// The time at which the last count leaves its window, in microseconds; [`NEEDED_UNTIL_IF_NO_COUNTS`] if there are
    /// no counts. While the store is available, decisions read no other field. The value is set after `counts` is
    /// filled and cleared before `counts` is emptied, so that no counts are lost.
    needed_until: AtomicU64,
    /// The number of call records that were evicted from earlier counts in memory, which have been dropped since.
    evicted_call_records: AtomicU64,
}

/// The options of the counts in memory, which replace the counts of a store while it is unavailable.
///
/// ```
/// use slidegate::store::LocalCountsOptions;
/// use slidegate::{Gate, MemoryStore, Policy};
///
/// let policy = Policy::from_yaml("rules: [{ name: all, limits: [1/min] }]")?;
/// let options = LocalCountsOptions { max_keys: 10_000, ..LocalCountsOptions::default() };
/// let gate = Gate::new(policy, MemoryStore::new()).with_local_counts(options);
/// # let _ = gate;
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone)]
pub struct LocalCountsOptions {
    /// The number of instances of the service that share the store, 1 by default. Each instance enforces its own share
    /// of every limit in memory: max(1, max / instances). A burst is divided in the same way, and a max of 0 stays 0.
    ///
    /// The following bound holds over any number of outages. In any window, the store admits at most max units, and all
    /// instances together admit at most max units in memory. The sum is at most 2 * max units, or max + instances if
    /// max is less than the number of instances. For an algorithm that admits more than max units per window, the sum
    /// is at most twice the number of units that the algorithm admits. Counts in memory are kept until their window has
    /// passed, and are used again if the store fails again within this window.
    pub instances: NonZeroU32,
    /// The clock of the counts.
    pub clock: Arc<dyn Clock>,
    /// The maximum number of keys.
    pub max_keys: usize,
    /// The maximum memory of keys and of records of calls, in bytes; 1 GiB by default. See
    /// [`MemoryStore::with_max_memory`].
    pub max_memory_bytes: usize,
    /// The maximum number of calls that are remembered, 1,000,000 by default. See
    /// [`MemoryStore::with_max_call_records`].
    pub max_call_records: usize,
}

impl LocalCountsOptions {
    /// Returns the default options with another clock.
    pub fn with_clock(clock: impl Clock) -> Self {
        Self {
            instances: NonZeroU32::MIN,
            clock: Arc::new(clock),
            max_keys: DEFAULT_MAX_KEYS,
            max_memory_bytes: DEFAULT_MAX_MEMORY,
            max_call_records: DEFAULT_MAX_CALL_RECORDS,
        }
    }
}

impl fmt::Debug for LocalCountsOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { instances, max_keys, max_memory_bytes, max_call_records, .. } = self;
        f.debug_struct("LocalCountsOptions")
            .field("instances", instances)
            .field("max_keys", max_keys)
            .field("max_memory_bytes", max_memory_bytes)
            .field("max_call_records", max_call_records)
            .finish_non_exhaustive()
    }
}

impl Default for LocalCountsOptions {
    fn default() -> Self {
        Self::with_clock(SystemClock::new())
    }
}

/// The store in memory that replaces the unavailable store.
pub(crate) type LocalCounts = MemoryStore<Arc<dyn Clock>>;

impl InMemoryFallback {
    /// Creates a fallback without counts.
    pub(crate) fn new(options: LocalCountsOptions) -> Self {
        Self {
            options,
            counts: ArcSwapOption::empty(),
            needed_until: AtomicU64::new(NEEDED_UNTIL_IF_NO_COUNTS),
            evicted_call_records: AtomicU64::new(0),
        }
    }

    /// Returns the number of instances of the service that share the store.
    pub(crate) fn instances(&self) -> NonZeroU32 {
        self.options.instances
    }

    /// Calls `decide` with the counts in memory, which are created if necessary. `outcomes` returns the outcomes of the
    /// decision; the counts are kept until the latest reset time of these outcomes.
    pub(crate) fn decide_with_local_counts<D>(
        &self,
        decide: impl FnOnce(&LocalCounts) -> D,
        outcomes: impl FnOnce(&D) -> &[Outcome],
    ) -> D {
        let counts = self.local_counts().unwrap_or_else(|| self.create_counts());
        let now = self.options.clock.now();
        self.keep_counts_until(now.after(MIN_LOCAL_COUNTS_LIFETIME));
        let decision = decide(&counts);
        let longest = outcomes(&decision).iter().map(Outcome::reset_after).max();
        self.keep_counts_until(now.after(longest.unwrap_or_default()));
        decision
    }

    /// Changes charges that were made in memory. Does nothing if the fallback has no counts and no units are added.
    pub(crate) fn adjust_local_charges(&self, receipt: &Receipt, adjustment: Adjustment) {
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

    fn keep_counts_until(&self, time: Timestamp) {
        self.needed_until.fetch_max(time.as_micros(), Ordering::AcqRel);
    }

    /// Returns the counts in memory; `None` if the fallback has no counts.
    pub(crate) fn local_counts(&self) -> Option<Arc<LocalCounts>> {
        self.counts.load_full()
    }

    fn create_counts(&self) -> Arc<LocalCounts> {
        let LocalCountsOptions { clock, max_keys, max_memory_bytes, max_call_records, .. } =
            &self.options;
        let created = MemoryStore::with_clock(clock.clone(), *max_keys)
            .with_max_memory(*max_memory_bytes)
            .with_max_call_records(*max_call_records);
        let created = Arc::new(created);
        let none: Option<Arc<LocalCounts>> = None;
        let previous = self.counts.compare_and_swap(&none, Some(created.clone()));
        // If another thread has created counts in the meantime, these counts are used.
        Guard::into_inner(previous).unwrap_or(created)
    }

    /// Drops the counts in memory if all their windows have passed. Called after each successful store call.
    pub(crate) fn on_store_success(&self) {
        let needed_until = self.needed_until.load(Ordering::Relaxed);
        if needed_until != NEEDED_UNTIL_IF_NO_COUNTS {
            self.drop_counts_if_expired(needed_until);
        }
    }

    fn drop_counts_if_expired(&self, needed_until: u64) {
        let has_expired = self.options.clock.now().as_micros() >= needed_until;
        let (acquire, relaxed) = (Ordering::AcqRel, Ordering::Relaxed);
        let cleared = |until| {
            self.needed_until
                .compare_exchange(until, NEEDED_UNTIL_IF_NO_COUNTS, acquire, relaxed)
                .is_ok()
        };
        if has_expired && cleared(needed_until) {
            let evicted = self.counts.swap(None).map_or(0, |counts| evicted_record_count(&counts));
            self.evicted_call_records.fetch_add(evicted, Ordering::Relaxed);
        }
    }
}

/// Settlements of calls and changes of permits, which only a gate makes.
#[cfg(feature = "policy")]
impl InMemoryFallback {
    /// Applies a settlement of charges that were made in memory, once.
    pub(crate) fn settle(&self, settlement: &CallSettlement) -> SettleResult {
        let hits: Vec<_> = settlement.added.iter().map(Charge::reported_hit).collect();
        let settle = |counts: &LocalCounts| (counts.settle(settlement), counts.peek(&hits));
        let (result, _) = self.decide_with_local_counts(settle, |(_, outcomes)| outcomes);
        self.keep_counts_for(settlement.ttl);
        result
    }

    /// Releases or renews a permit that was created in memory. Returns whether it was live.
    pub(crate) fn change_permit(&self, permit: &Permit, change: PermitChange) -> bool {
        let Some(counts) = self.local_counts() else { return false };
        if change == PermitChange::Renew {
            let ttls =
                permit.receipt().charges().iter().map(|charge| charge.limit.quota().window());
            self.keep_counts_for(ttls.max().unwrap_or_default());
        }
        counts.change_permit(permit.receipt(), change)
    }

    /// Keeps the counts in memory for at least this time.
    pub(crate) fn keep_counts_for(&self, duration: Duration) {
        self.keep_counts_until(self.options.clock.now().after(duration));
    }

    /// Returns the number of records of calls that were evicted before they expired, since the start.
    pub(crate) fn evicted_call_records(&self) -> u64 {
        let current = self.local_counts().map_or(0, |counts| evicted_record_count(&counts));
        self.evicted_call_records.load(Ordering::Relaxed) + current
    }
}

fn evicted_record_count(counts: &LocalCounts) -> u64 {
    counts.call_record_table().evicted_records()
}
