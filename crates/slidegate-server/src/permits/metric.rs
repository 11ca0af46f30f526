//! The metrics of permits, which bound the requests in flight.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use slidegate::clock::{Clock, SystemClock};
use slidegate::store::PermitChange;
use slidegate::{Permit, Timestamp};

use prometheus_client::encoding::EncodeLabelSet;

/// The bytes that a tracked permit takes in two B-trees, at most. A node of either tree takes 208 bytes, or 304 if it
/// has children, and has at least 5 entries of 16 bytes, and there is one further entry between two nodes: 45 bytes per
/// entry.
const BYTES_PER_TRACKED_PERMIT: usize = 2 * 48;

/// The result of a call that concerns a permit, for metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PermitResult {
    Granted,
    Released,
    Renewed,
    /// The time to live has passed since this instance granted or renewed the permit, and this instance did not release
    /// it.
    Expired,
    /// A release or a renewal of a permit that had been released or had expired.
    NotLive,
    OtherInstance,
    /// The token is forged or damaged.
    Invalid,
    StoreUnavailable,
}

/// The metrics of permits.
pub struct PermitMetrics {
    changes: Family<PermitLabels, Counter>,
    in_use: Gauge,
    tracked: Mutex<TrackedPermits>,
    clock: SystemClock,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PermitLabels {
    result: &'static str,
}

/// The permits that this instance has granted and that have not ended, each identified by a hash. Permits above the
/// maximum are not tracked: they are only counted when they are granted, released or renewed.
struct TrackedPermits {
    expiries: BTreeMap<u64, Timestamp>,
    by_expiry: BTreeSet<(Timestamp, u64)>,
    max_permits: usize,
}

impl PermitResult {
    const ALL: [Self; 8] = [
        Self::Granted,
        Self::Released,
        Self::Renewed,
        Self::Expired,
        Self::NotLive,
        Self::OtherInstance,
        Self::Invalid,
        Self::StoreUnavailable,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Released => "released",
            Self::Renewed => "renewed",
            Self::Expired => "expired",
            Self::NotLive => "not_live",
            Self::OtherInstance => "other_instance",
            Self::Invalid => "invalid",
            Self::StoreUnavailable => "store_unavailable",
        }
    }
}

impl TrackedPermits {
    /// Creates an empty list whose permits take at most `max_bytes` bytes.
    fn new(max_bytes: usize) -> Self {
        Self {
            expiries: BTreeMap::new(),
            by_expiry: BTreeSet::new(),
            max_permits: max_bytes / BYTES_PER_TRACKED_PERMIT,
        }
    }

    /// Tracks a permit until it expires.
    fn insert(&mut self, id: u64, expires_at: Timestamp) {
        self.remove(id);
        if self.expiries.len() < self.max_permits {
            self.expiries.insert(id, expires_at);
            self.by_expiry.insert((expires_at, id));
        }
    }

    /// Removes a permit. Returns whether it was tracked.
    fn remove(&mut self, id: u64) -> bool {
        let expires_at = self.expiries.remove(&id);
        expires_at.is_some_and(|expires_at| self.by_expiry.remove(&(expires_at, id)))
    }

    /// Removes the permits that have expired, and returns their number.
    fn remove_expired(&mut self, now: Timestamp) -> u64 {
        let mut expired = 0;
        while let Some(&(expires_at, id)) = self.by_expiry.first().filter(|(at, _)| *at <= now) {
            self.by_expiry.remove(&(expires_at, id));
            self.expiries.remove(&id);
            expired += 1;
        }
        expired
    }
}

impl PermitMetrics {
    /// Creates the metrics, all with the value 0. The permits that are tracked take at most `max_bytes` bytes.
    pub fn register(registry: &mut Registry, max_bytes: usize) -> Self {
        let changes: Family<PermitLabels, Counter> = Family::default();
        for result in PermitResult::ALL {
            drop(changes.get_or_create(&PermitLabels { result: result.name() }));
        }
        registry.register(
            "permits",
            "Permits for requests in flight: grants, releases, renewals, and expiries of permits that this instance granted",
            changes.clone(),
        );
        let in_use = Gauge::default();
        registry.register(
            "permits_in_use",
            "Permits that this instance has granted or renewed, and that it has not released and have not expired",
            in_use.clone(),
        );
        let tracked = Mutex::new(TrackedPermits::new(max_bytes));
        Self { changes, in_use, tracked, clock: SystemClock::new() }
    }

    /// Counts a result.
    pub fn count(&self, result: PermitResult) {
        self.count_several(result, 1);
    }

    fn count_several(&self, result: PermitResult, number: u64) {
        self.changes.get_or_create(&PermitLabels { result: result.name() }).inc_by(number);
    }

    /// Counts a permit that is returned to its holder.
    pub fn on_granted(&self, permit: &Permit) {
        self.count(PermitResult::Granted);
        self.track(permit);
    }

    /// Counts a release or a renewal. `was_live` is its result.
    pub fn on_released_or_renewed(&self, permit: &Permit, change: PermitChange, was_live: bool) {
        self.count(match change {
            _ if !was_live => PermitResult::NotLive,
            PermitChange::Release => PermitResult::Released,
            PermitChange::Renew => PermitResult::Renewed,
        });
        match change {
            PermitChange::Renew if was_live => self.track(permit),
            // A permit that was no longer live stays tracked, because it may expire here a moment later than in the
            // store.
            _ if !was_live => {}
            _ => {
                self.tracked.lock().remove(hash_permit(permit));
            }
        }
    }

    /// Counts the release of the permit of a reservation that was cancelled, unless the permit had ended before.
    pub fn on_cancelled(&self, permit: &Permit) {
        if self.tracked.lock().remove(hash_permit(permit)) {
            self.count(PermitResult::Released);
        }
    }

    fn track(&self, permit: &Permit) {
        let now = self.clock.now();
        let expired = {
            let tracked = &mut *self.tracked.lock();
            let expired = tracked.remove_expired(now);
            tracked.insert(hash_permit(permit), now.after(permit.ttl()));
            expired
        };
        self.count_several(PermitResult::Expired, expired);
    }

    /// Returns the bytes that the tracked permits take.
    pub fn memory_bytes(&self) -> usize {
        self.tracked.lock().expiries.len() * BYTES_PER_TRACKED_PERMIT
    }

    /// Counts the permits that have expired, and sets the number of permits in use.
    pub fn update(&self) {
        let (expired, in_use) = {
            let tracked = &mut *self.tracked.lock();
            (tracked.remove_expired(self.clock.now()), tracked.expiries.len())
        };
        self.count_several(PermitResult::Expired, expired);
        self.in_use.set(i64::try_from(in_use).unwrap_or(i64::MAX));
    }
}

/// Returns a hash that identifies a permit in this process.
fn hash_permit(permit: &Permit) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_vec(permit).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracked_permits_end_once() {
        let at = Timestamp::from_secs;
        let mut tracked = TrackedPermits::new(1 << 20);
        (1..=3).for_each(|id| tracked.insert(id, at(10)));
        tracked.insert(2, at(20));
        tracked.remove(1);
        tracked.remove(1);
        assert_eq!((tracked.remove_expired(at(9)), tracked.expiries.len()), (0, 2));
        assert_eq!((tracked.remove_expired(at(10)), tracked.expiries.len()), (1, 1));
        assert_eq!((tracked.remove_expired(at(20)), tracked.expiries.len()), (1, 0));
        assert!(tracked.by_expiry.is_empty());
    }

    #[test]
    fn tracked_permits_stay_within_bytes() {
        let (start, later) = (Timestamp::from_secs(10), Timestamp::from_secs(20));
        let mut tracked = TrackedPermits::new(16 << 10);
        (0..10_000).for_each(|id| tracked.insert(id, start));
        assert_eq!(tracked.expiries.len(), (16 << 10) / BYTES_PER_TRACKED_PERMIT);
        assert_eq!(tracked.by_expiry.len(), tracked.expiries.len());
        tracked.insert(0, later);
        tracked.insert(10_000, later);
        assert_eq!(tracked.remove_expired(start), tracked.max_permits as u64 - 1);
        assert!(
            tracked.expiries.keys().eq([&0]),
            "a renewed permit stays, a further one is not tracked"
        );
    }
}
