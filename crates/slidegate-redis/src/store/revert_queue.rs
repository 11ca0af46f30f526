//! Reverts the charges of dropped reservations in the background. A destructor cannot wait for Redis.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use slidegate::{Adjustment, Receipt};
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::RedisStoreInner;

/// Maximum number of receipts that wait to be reverted.
const MAX_QUEUED_RECEIPTS: usize = 10_000;

/// A bounded queue of receipts to revert. Its task ends when the store is dropped; the receipts that then wait stay
/// charged until their windows end.
pub(super) struct RevertQueue {
    receipts: Sender<Receipt>,
    dropped: AtomicU64,
}

impl RevertQueue {
    /// Creates an empty queue, and starts its task.
    pub(super) fn start(store: &Arc<RedisStoreInner>) -> Self {
        let (receipts, receiver) = channel(MAX_QUEUED_RECEIPTS);
        store.runtime.spawn(revert_until_closed(Arc::downgrade(store), receiver));
        Self { receipts, dropped: AtomicU64::new(0) }
    }

    /// Adds a receipt. If the queue is full, its charges stay until their windows end.
    pub(super) fn push(&self, receipt: Receipt) {
        if self.receipts.try_send(receipt).is_err() {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the number of receipts that were dropped because the queue was full.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for RevertQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RevertQueue").field("dropped", &self.dropped).finish_non_exhaustive()
    }
}

async fn revert_until_closed(store: Weak<RedisStoreInner>, mut receipts: Receiver<Receipt>) {
    while let Some(receipt) = receipts.recv().await {
        let Some(store) = store.upgrade() else { return };
        if let Err(error) = store.adjust(&receipt, Adjustment::Revert).await {
            tracing::debug!(
                class = error.class(),
                "cannot revert the charges of a dropped reservation; they count until their windows end"
            );
        }
    }
}
