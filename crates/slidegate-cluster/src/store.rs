//! The store: decides at once, and waits only where too much would be charged that others do not know of.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use slidegate::store::Outcomes;
use slidegate::{Asynchronous, ChargeResult, Clock, Hit, Receipt, Store, StoreError};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, timeout_at};

use crate::counters::{AtCap, Attempt, Counters};
use crate::node::Handle;

/// How the store asks to be heard by the other nodes, and learns that they have answered.
#[derive(Clone, Debug)]
pub struct Sync {
    wanted: Arc<Notify>,
    progressed: watch::Sender<u64>,
}

impl Default for Sync {
    fn default() -> Self {
        Self { wanted: Arc::new(Notify::new()), progressed: watch::Sender::new(0) }
    }
}

impl Sync {
    /// Asks that what has changed be told at once.
    pub fn want(&self) {
        self.wanted.notify_one();
    }

    /// Waits until somebody asks.
    pub async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Says that others have acknowledged more than before.
    pub fn progressed(&self) {
        self.progressed.send_modify(|times| *times += 1);
    }
}

/// Counts in the memory of a node that tells other nodes, and hears what they have counted.
///
/// It counts by `sliding_window`, `sliding_buckets` and `fixed_window`. To ask it by another algorithm is
/// [`StoreError::Unsupported`]; `docs/CLUSTER.md` says why.
pub struct ClusterStore<C> {
    clock: C,
    counters: Arc<Counters>,
    sync: Sync,
    sync_wait: Duration,
    capped: AtomicU64,
    node: Option<Handle>,
}

impl<C: Clock> ClusterStore<C> {
    /// A store over these counters. A request waits at most so long for other nodes.
    pub fn new(clock: C, counters: Arc<Counters>, sync: Sync, sync_wait: Duration) -> Self {
        Self { clock, counters, sync, sync_wait, capped: AtomicU64::new(0), node: None }
    }

    pub(crate) fn with_node(self, node: Handle) -> Self {
        Self { node: Some(node), ..self }
    }

    pub(crate) fn node(&self) -> Option<&Handle> {
        self.node.as_ref()
    }

    /// The counts.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Requests for which it had to be waited until others know more, and that were not allowed by then.
    pub fn capped(&self) -> u64 {
        self.capped.load(Ordering::Relaxed)
    }

    #[inline(always)]
    fn attempt(&self, hits: &[Hit<'_>], at_cap: AtCap) -> Result<Attempt, StoreError> {
        self.counters.take(hits, self.clock.now(), at_cap)
    }

    /// Tries again each time that others have acknowledged more, until the time is up.
    #[cold]
    async fn take_when_synced(
        &self,
        hits: &[Hit<'_>],
        until: Instant,
    ) -> Result<ChargeResult, StoreError> {
        let mut progressed = self.sync.progressed.subscribe();
        while !self.sync_wait.is_zero() {
            // Only after `subscribe`: what comes in between is then seen as a change.
            if let Attempt::Decided(taken) = self.attempt(hits, AtCap::Wait)? {
                return Ok(taken);
            }
            self.sync.want();
            if !matches!(timeout_at(until, progressed.changed()).await, Ok(Ok(()))) {
                break;
            }
        }
        match self.attempt(hits, AtCap::Deny)? {
            Attempt::Decided(taken) => {
                self.capped.fetch_add(u64::from(!taken.allowed), Ordering::Relaxed);
                Ok(taken)
            }
            Attempt::Unsynced => unreachable!("at the cap it denies"),
        }
    }

    async fn take_until(
        &self,
        hits: &[Hit<'_>],
        until: Instant,
    ) -> Result<ChargeResult, StoreError> {
        match self.attempt(hits, AtCap::Wait)? {
            Attempt::Decided(taken) => Ok(taken),
            Attempt::Unsynced => Box::pin(self.take_when_synced(hits, until)).await,
        }
    }
}

impl<C: Clock> Store for ClusterStore<C> {
    type Kind = Asynchronous;

    async fn take(&self, hits: &[Hit<'_>]) -> Result<ChargeResult, StoreError> {
        match self.attempt(hits, AtCap::Wait)? {
            Attempt::Decided(taken) => Ok(taken),
            // In a box: most decisions need not wait, and should not carry what it takes.
            Attempt::Unsynced => {
                Box::pin(self.take_when_synced(hits, Instant::now() + self.sync_wait)).await
            }
        }
    }

    /// All of them together wait no longer than one.
    async fn take_many(&self, asks: &[&[Hit<'_>]]) -> Result<Vec<ChargeResult>, StoreError> {
        let until = Instant::now() + self.sync_wait;
        let mut taken = Vec::with_capacity(asks.len());
        for hits in asks {
            taken.push(self.take_until(hits, until).await?);
        }
        Ok(taken)
    }

    async fn peek(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.counters.peek(hits, self.clock.now())
    }

    async fn revert(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.counters.revert(receipt, self.clock.now());
        Ok(())
    }

    async fn refund(&self, hits: &[Hit<'_>]) -> Result<Outcomes, StoreError> {
        self.counters.refund(hits, self.clock.now())
    }

    async fn reset(&self, hits: &[Hit<'_>]) -> Result<(), StoreError> {
        self.counters.reset(hits, self.clock.now())
    }
}
