//! The cluster store.
//!
//! It decides requests immediately. A request waits only if this node has charged too many units that the other nodes
//! have not acknowledged yet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::clock::Clock;
use slidegate::store::{
    Adjustment, Asynchronous, CallIdentity, CallRecordTable, CallSettlement, ChargeOnceResult,
    ChargeResult, CounterId, DEFAULT_MAX_CALL_RECORDS, Edit, Hit, Outcomes, Receipt, SettleResult,
    max_call_record_bytes,
};
use slidegate::{Limit, Store, StoreError, Timestamp};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::counters::{ChargeAttempt, Counters, MaxUnsyncedAction};
use crate::node::NodeHandle;

/// A limit is nearly used if less than an eighth of its units remains. This number is the reciprocal of that share.
const NEARLY_USED_DIVISOR: u64 = 8;

/// A connection between the store and the replication task. The store sends flush requests, and the task sends
/// notifications of progress.
#[derive(Clone, Debug)]
pub struct ReplicationHandle {
    flush_requested: Arc<Notify>,
    early_flush_requested: Arc<Notify>,
    progress: watch::Sender<u64>,
}

impl Default for ReplicationHandle {
    fn default() -> Self {
        Self {
            flush_requested: Arc::new(Notify::new()),
            early_flush_requested: Arc::new(Notify::new()),
            progress: watch::Sender::new(0),
        }
    }
}

impl ReplicationHandle {
    /// Requests an immediate flush of the changed counters.
    pub fn request_flush(&self) {
        self.flush_requested.notify_one();
    }

    /// Waits for the next flush request.
    pub async fn wait_for_flush_request(&self) {
        self.flush_requested.notified().await;
    }

    /// Requests a flush before the end of the replication interval. No request waits for it.
    fn request_early_flush(&self) {
        self.early_flush_requested.notify_one();
    }

    /// Waits for the next request of an early flush.
    pub(crate) async fn wait_for_early_flush_request(&self) {
        self.early_flush_requested.notified().await;
    }

    /// Notifies waiting requests that other nodes have acknowledged more flushes.
    pub fn notify_flush_acknowledged(&self) {
        self.progress.send_modify(|count| *count += 1);
    }
}

/// A store in the memory of one node that replicates its counters to the other nodes of a cluster. Clones share the
/// node and its counters.
///
/// The store supports the algorithms `sliding_window`, `sliding_buckets`, `sliding_counter` and `fixed_window`. Other
/// algorithms return [`StoreError::Unsupported`]; `docs/explanation/cluster.md` explains the reason.
#[derive(Clone)]
pub struct ClusterStore<C> {
    clock: C,
    counters: Arc<Counters>,
    replication: ReplicationHandle,
    sync_wait: Duration,
    unsynced_denials: Arc<AtomicU64>,
    node: Option<Arc<NodeHandle>>,
    /// The records of idempotent calls that this node has admitted. They are not replicated.
    calls: Arc<CallRecordTable>,
}

impl<C> fmt::Debug for ClusterStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterStore").field("counters", &self.counters).finish_non_exhaustive()
    }
}

impl<C: Clock> ClusterStore<C> {
    /// Creates a store that decides with `counters`. `sync_wait` is the maximum time for which a request waits for
    /// acknowledgements of other nodes.
    pub fn new(
        clock: C,
        counters: Arc<Counters>,
        replication: ReplicationHandle,
        sync_wait: Duration,
    ) -> Self {
        let max_record_bytes = max_call_record_bytes(counters.max_memory());
        Self {
            clock,
            counters,
            replication,
            sync_wait,
            unsynced_denials: Arc::default(),
            node: None,
            calls: Arc::new(CallRecordTable::new(DEFAULT_MAX_CALL_RECORDS, max_record_bytes)),
        }
    }

    /// Sets the maximum number of records of idempotent calls and of settled reservations, 1,000,000 by default. They
    /// take at most a quarter of the [memory limit](Counters::max_memory). Each node remembers only the calls that it
    /// has admitted itself.
    #[must_use]
    pub fn with_max_call_records(self, max_records: usize) -> Self {
        let max_record_bytes = max_call_record_bytes(self.counters.max_memory());
        Self { calls: Arc::new(CallRecordTable::new(max_records, max_record_bytes)), ..self }
    }

    /// Returns the records of idempotent calls and of settled reservations.
    pub fn call_record_table(&self) -> &CallRecordTable {
        &self.calls
    }

    pub(crate) fn with_node_handle(self, node: NodeHandle) -> Self {
        Self { node: Some(Arc::new(node)), ..self }
    }

    pub(crate) fn node(&self) -> Option<&NodeHandle> {
        self.node.as_deref()
    }

    /// Returns the counters of this node.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of requests that waited for acknowledgements of other nodes and were then denied.
    pub fn unsynced_denials(&self) -> u64 {
        self.unsynced_denials.load(Ordering::Relaxed)
    }

    /// Counts the memory of the records of calls against the memory limit.
    fn count_call_record_memory(&self, now: Timestamp) {
        self.counters.set_call_record_bytes(self.calls.memory_bytes(), now);
    }

    #[inline]
    fn try_charge(
        &self,
        hits: &[Hit<'_>],
        cap_policy: MaxUnsyncedAction,
    ) -> Result<ChargeAttempt, StoreError> {
        let attempt = self.counters.try_charge_request(hits, self.clock.now(), cap_policy)?;
        if let ChargeAttempt::Decided(result) = &attempt
            && !self.counters.progress().has_no_peers()
            && charged_nearly_used_limit(hits, result)
        {
            self.replication.request_early_flush();
        }
        Ok(attempt)
    }

    /// Retries a request each time that other nodes have acknowledged more flushes, until the deadline. At the
    /// deadline, decides the request for the last time, and denies it if acknowledgements are still missing.
    #[cold]
    async fn retry_charge_until_deadline(
        &self,
        hits: &[Hit<'_>],
        deadline: Instant,
    ) -> Result<ChargeResult, StoreError> {
        let mut progress = self.replication.progress.subscribe();
        while !self.sync_wait.is_zero() {
            // The attempt must follow `subscribe`, so that progress during the attempt ends the next wait.
            if let ChargeAttempt::Decided(result) =
                self.try_charge(hits, MaxUnsyncedAction::Wait)?
            {
                return Ok(result);
            }
            self.replication.request_flush();
            if !matches!(timeout_at(deadline, progress.changed()).await, Ok(Ok(()))) {
                break;
            }
        }
        match self.try_charge(hits, MaxUnsyncedAction::Deny)? {
            ChargeAttempt::Decided(result) => {
                self.unsynced_denials.fetch_add(u64::from(!result.allowed), Ordering::Relaxed);
                Ok(result)
            }
            ChargeAttempt::Unsynced => unreachable!("`MaxUnsyncedAction::Deny` always decides"),
        }
    }

    /// Decides a request. If it must wait for other nodes, waits until the deadline.
    async fn charge_before_deadline(
        &self,
        hits: &[Hit<'_>],
        deadline: impl FnOnce() -> Instant,
    ) -> Result<ChargeResult, StoreError> {
        match self.try_charge(hits, MaxUnsyncedAction::Wait)? {
            ChargeAttempt::Decided(result) => Ok(result),
            // Boxed, since most decisions do not wait and should not pay for a larger future.
            ChargeAttempt::Unsynced => {
                Box::pin(self.retry_charge_until_deadline(hits, deadline())).await
            }
        }
    }
}

/// A call with an id that is being decided. If it is dropped before it has a result, because the caller has cancelled
/// the request, a repetition is decided again.
struct PendingIdempotentCall<'c, C: Clock> {
    store: &'c ClusterStore<C>,
    hits: &'c [Hit<'c>],
    identity: &'c CallIdentity,
    result: Option<ChargeResult>,
}

impl<C: Clock> Drop for PendingIdempotentCall<'_, C> {
    fn drop(&mut self) {
        let now = self.store.clock.now();
        self.store.calls.finish_call(self.identity, self.hits, self.result.as_ref(), now);
        self.store.count_call_record_memory(now);
    }
}

/// Returns whether a call charged a limit that has few units left. The other nodes must know such charges soon, because
/// they may be about to allow the same units.
fn charged_nearly_used_limit(hits: &[Hit<'_>], result: &ChargeResult) -> bool {
    !result.receipt.is_empty()
        && hits
            .iter()
            .zip(&result.outcomes)
            .any(|(hit, outcome)| is_nearly_used(outcome.remaining(), hit.limit.capacity()))
}

/// Returns whether fewer than one eighth of the units of a limit remain. Multiplies instead of dividing, because the
/// eighth of a small limit would be rounded down to 0, and no limit has less than 0 units left.
fn is_nearly_used(remaining: u64, capacity: u64) -> bool {
    remaining.saturating_mul(NEARLY_USED_DIVISOR) < capacity
}

impl<C: Clock> Store for ClusterStore<C> {
    type Kind = Asynchronous;

    fn supports(&self, limit: &Limit) -> Result<(), String> {
        crate::supports(limit)
    }

    async fn charge_async(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        self.charge_before_deadline(hits, || Instant::now() + self.sync_wait).await
    }

    /// Decides the calls one after another, with one common deadline for all waits.
    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let deadline = Instant::now() + self.sync_wait;
        let mut results = Vec::with_capacity(calls.len());
        for hits in calls {
            results.push(self.charge_before_deadline(hits, || deadline).await?);
        }
        Ok(results)
    }

    /// Decides a call with an id. A repetition is recognized only on the node that has admitted the call.
    async fn charge_once_async(
        &self,
        hits: &[Hit<'_>],
        identity: &CallIdentity,
    ) -> Result<ChargeOnceResult, StoreError> {
        if let Some(found) = self.calls.begin_call(identity, hits, self.clock.now()) {
            return Ok(found);
        }
        let mut pending = PendingIdempotentCall { store: self, hits, identity, result: None };
        let result = self.charge_async(hits).await?;
        pending.result = Some(result.clone());
        Ok(ChargeOnceResult::Decided(result))
    }

    async fn settle_async(&self, settlement: &CallSettlement) -> Result<SettleResult, StoreError> {
        let now = self.clock.now();
        let mut added = Ok(());
        let result = self.calls.settle(settlement, now, || {
            self.counters.revert(settlement.reverted.iter().cloned(), now);
            for charge in &settlement.added {
                // The charge never waits for other nodes, because a reported hit never denies.
                let hit = charge.reported_hit();
                added = self
                    .counters
                    .try_charge_request(&[hit], now, MaxUnsyncedAction::Deny)
                    .map(drop);
            }
        });
        self.count_call_record_memory(now);
        added.map(|()| result)
    }

    async fn peek_async(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.counters.peek(hits, self.clock.now())
    }

    fn revert_later(&self, receipt: Receipt) {
        self.counters.revert(receipt, self.clock.now());
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.counters.revert(receipt.charges_to_revert(adjustment), now);
        for charge in receipt.additional_charges(adjustment) {
            // The charge never waits for other nodes, because a reported hit never denies.
            self.counters.try_charge_request(
                &[charge.reported_hit()],
                now,
                MaxUnsyncedAction::Deny,
            )?;
        }
        Ok(())
    }

    fn counter_id(&self, hit: &Hit<'_>) -> Option<CounterId> {
        Some(CounterId::Fingerprint(self.counters.counter_fingerprint(hit)))
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        match edit {
            Edit::Refund => self.counters.refund(hits, self.clock.now()),
            Edit::Reset => self.counters.reset(hits, self.clock.now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use slidegate::ManualClock;
    use slidegate::store::{ClusterOptions, Key, Scope};
    use slidegate::testkit::block_on;

    use super::*;
    use crate::counters::CounterSettings;
    use crate::pn_counter::Incarnation;
    use crate::progress::{MemberProgress, Progress};

    /// Creates the store of a node in a cluster of two nodes. The other node has acknowledged all charges.
    fn new_store_of_two_nodes() -> ClusterStore<ManualClock> {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_000));
        let settings = CounterSettings {
            incarnation: Incarnation(1),
            secret: [7; 16].into(),
            max_clock_skew_us: 0,
            sync_interval: Duration::from_millis(250),
            max_keys: 1_000,
            max_memory: 1 << 20,
        };
        let counters = Arc::new(Counters::new(settings, clock.now()));
        let other = MemberProgress {
            incarnation: Incarnation(2),
            acknowledged_flush: u64::MAX,
            silent_since: None,
        };
        counters.progress().store(Arc::new(Progress {
            members: vec![other],
            nodes: 2,
            majority_since: Some(clock.now()),
            ..Progress::default()
        }));
        ClusterStore::new(clock, counters, ReplicationHandle::default(), Duration::ZERO)
    }

    /// Returns whether an early flush was requested since the last call.
    fn take_early_flush_request(store: &ClusterStore<ManualClock>) -> bool {
        let mut request = Box::pin(store.replication.wait_for_early_flush_request());
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        request.as_mut().poll(&mut context).is_ready()
    }

    #[test]
    fn charge_of_nearly_used_limit_requests_early_flush() {
        for (max, charges_without_request) in [(1, 0), (5, 4), (8, 7), (16, 14), (20, 17)] {
            let limit: Limit = format!("{max}/min").parse().unwrap();
            let options = ClusterOptions::new().with_max_unsynced(max).unwrap();
            let scope = Scope::new("d", "r", "l", &["client"]).with_cluster(options);
            let store = new_store_of_two_nodes();
            let values = ["a".into()];
            let hit = Hit::new(Key::new(&scope, &values), &limit, 1);
            for charge in 1..=max {
                assert!(block_on(store.charge_async(&[hit])).unwrap().allowed, "{limit}: {charge}");
                let is_requested = take_early_flush_request(&store);
                assert_eq!(is_requested, charge > charges_without_request, "{limit}: {charge}");
            }
            assert!(!block_on(store.charge_async(&[hit])).unwrap().allowed, "{limit}");
            assert!(!take_early_flush_request(&store), "{limit}: a denied request charges nothing");
        }
    }
}
