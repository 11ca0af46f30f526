//! The cluster store. It decides requests immediately. A request waits only if this node has charged too many units
//! that the other nodes have not acknowledged yet.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::store::Outcomes;
use slidegate::{
    Adjustment, Asynchronous, ChargeResult, Clock, Edit, Hit, Receipt, Store, StoreError,
};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::counters::{Attempt, CapPolicy, Counters};
use crate::node::NodeHandle;

/// A limit with less than this fraction of its units left is nearly used: `1 / NEARLY_USED_DIVISOR`.
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
    pub fn notify_progress(&self) {
        self.progress.send_modify(|count| *count += 1);
    }
}

/// A store in the memory of one node that replicates its counters to the other nodes of a cluster.
///
/// The store supports the algorithms `sliding_window`, `sliding_buckets`, `sliding_counter` and `fixed_window`. Other
/// algorithms return [`StoreError::Unsupported`]; `docs/explanation/cluster.md` explains the reason.
pub struct ClusterStore<C> {
    clock: C,
    counters: Arc<Counters>,
    replication: ReplicationHandle,
    sync_wait: Duration,
    unsynced_denials: AtomicU64,
    node: Option<NodeHandle>,
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
        Self {
            clock,
            counters,
            replication,
            sync_wait,
            unsynced_denials: AtomicU64::new(0),
            node: None,
        }
    }

    pub(crate) fn with_node(self, node: NodeHandle) -> Self {
        Self { node: Some(node), ..self }
    }

    pub(crate) fn node(&self) -> Option<&NodeHandle> {
        self.node.as_ref()
    }

    /// Returns the counters of this node.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of requests that waited for acknowledgements of other nodes and were then denied.
    pub fn unsynced_denials(&self) -> u64 {
        self.unsynced_denials.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn try_charge(&self, hits: &[Hit<'_>], cap_policy: CapPolicy) -> Result<Attempt, StoreError> {
        let attempt = self.counters.charge_call(hits, self.clock.now(), cap_policy)?;
        if let Attempt::Decided(result) = &attempt
            && !self.counters.progress().is_alone()
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
            // Must follow `subscribe`, so that progress in between is seen as a change.
            if let Attempt::Decided(result) = self.try_charge(hits, CapPolicy::Wait)? {
                return Ok(result);
            }
            self.replication.request_flush();
            if !matches!(timeout_at(deadline, progress.changed()).await, Ok(Ok(()))) {
                break;
            }
        }
        match self.try_charge(hits, CapPolicy::Deny)? {
            Attempt::Decided(result) => {
                self.unsynced_denials.fetch_add(u64::from(!result.allowed), Ordering::Relaxed);
                Ok(result)
            }
            Attempt::Unsynced => unreachable!("`CapPolicy::Deny` always decides"),
        }
    }

    async fn take_with_deadline(
        &self,
        hits: &[Hit<'_>],
        deadline: Instant,
    ) -> Result<ChargeResult, StoreError> {
        match self.try_charge(hits, CapPolicy::Wait)? {
            Attempt::Decided(result) => Ok(result),
            Attempt::Unsynced => Box::pin(self.retry_charge_until_deadline(hits, deadline)).await,
        }
    }
}

/// Returns whether a call charged a limit that has few units left. The other nodes must know such charges soon, because
/// they may be about to allow the same units.
fn charged_nearly_used_limit(hits: &[Hit<'_>], result: &ChargeResult) -> bool {
    !result.receipt.is_empty()
        && hits
            .iter()
            .zip(&result.outcomes)
            .any(|(hit, outcome)| outcome.remaining() < hit.limit.capacity() / NEARLY_USED_DIVISOR)
}

impl<C: Clock> Store for ClusterStore<C> {
    type Kind = Asynchronous;

    async fn charge_async(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        match self.try_charge(hits, CapPolicy::Wait)? {
            Attempt::Decided(result) => Ok(result),
            // Boxed, since most decisions do not wait and should not pay for a larger future.
            Attempt::Unsynced => {
                Box::pin(self.retry_charge_until_deadline(hits, Instant::now() + self.sync_wait))
                    .await
            }
        }
    }

    /// Decides the calls one after another, with one common deadline for all waits.
    async fn charge_many_async(
        &self,
        calls: &[&[Hit<'_>]],
    ) -> Result<Vec<ChargeResult>, StoreError> {
        let deadline = Instant::now() + self.sync_wait;
        let mut results = Vec::with_capacity(calls.len());
        for hits in calls {
            results.push(self.take_with_deadline(hits, deadline).await?);
        }
        Ok(results)
    }

    async fn peek_async(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.counters.peek(hits, self.clock.now())
    }

    async fn adjust_async(
        &self,
        receipt: &Receipt,
        adjustment: Adjustment,
    ) -> Result<(), StoreError> {
        let now = self.clock.now();
        self.counters.revert(receipt.charges_to_revert(adjustment), now);
        for charge in receipt.additional_charges(adjustment) {
            // Never waits, because the hit never denies.
            self.counters.charge_call(&[charge.reported_hit()], now, CapPolicy::Deny)?;
        }
        Ok(())
    }

    async fn edit_async(&self, hits: &[Hit<'_>], edit: Edit) -> Result<Outcomes, StoreError> {
        match edit {
            Edit::Refund => self.counters.refund(hits, self.clock.now()),
            Edit::Reset => self.counters.reset(hits, self.clock.now()),
        }
    }
}
