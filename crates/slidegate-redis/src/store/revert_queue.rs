//! Releases the permits and reverts the charges of dropped guards in the background. A destructor cannot wait for
//! Redis.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::stream::{StreamExt, poll_fn};
use parking_lot::Mutex;
use slidegate::StoreError;
use slidegate::store::{Adjustment, Charge, PermitChange, Receipt, restart_on_panic};
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::{Instant, sleep};

use super::RedisStoreInner;

/// Maximum number of reverts in the queue. A revert releases the permit, or reverts the charges, of a dropped guard.
const MAX_QUEUED_REVERTS: usize = 10_000;

/// Maximum number of reverts that are sent concurrently. A revert in a failed node of a Cluster then does not delay
/// reverts in other nodes.
const MAX_CONCURRENT_REVERTS: usize = 64;

/// Maximum time for which a failed return is attempted again, counted from its first attempt.
const MAX_RETRY_TIME: Duration = Duration::from_secs(if cfg!(test) { 0 } else { 30 });

/// Time before the second attempt of a return. The time doubles with each further attempt, up to [`MAX_RETRY_DELAY`].
const FIRST_RETRY_DELAY: Duration = Duration::from_millis(50);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(2);

/// Minimum time between two warnings about units that are not returned.
const WARNING_INTERVAL: Duration = Duration::from_secs(60);

/// A bounded queue of units to return to Redis. Its task ends when the store is dropped. Units that are still queued
/// then stay charged until their windows end, or their permits expire.
pub(super) struct RevertQueue {
    reverts: Sender<QueuedRevert>,
    dropped: AtomicU64,
    log: Arc<FailedRevertLog>,
}

/// Units to return to Redis: the charges of a dropped guard.
#[derive(Debug)]
enum QueuedRevert {
    /// The permit of a request in flight.
    Permit(Receipt),
    /// Charges that are not permits.
    Charges(Receipt),
}

impl RevertQueue {
    /// Creates an empty queue, and starts its task.
    pub(super) fn start(store: &Arc<RedisStoreInner>) -> Self {
        let (reverts, mut receiver) = channel(MAX_QUEUED_REVERTS);
        let log = Arc::<FailedRevertLog>::default();
        let (weak_store, task_log) = (Arc::downgrade(store), log.clone());
        let return_units =
            async move || run_revert_queue(&weak_store, &mut receiver, &task_log).await;
        store.runtime.spawn(restart_on_panic(return_units, || {
            tracing::error!("the task that returns units to Redis panicked; it runs again");
        }));
        Self { reverts, dropped: AtomicU64::new(0), log }
    }

    /// Adds the charges of a receipt. If the queue is full, they stay until their windows end or their permits expire.
    pub(super) fn push(&self, receipt: Receipt) {
        let (permits, charges): (Vec<&Charge>, Vec<&Charge>) =
            receipt.charges().iter().partition(|charge| charge.limit.is_concurrent());
        if permits.is_empty() {
            self.push_one(QueuedRevert::Charges(receipt));
        } else if charges.is_empty() {
            self.push_one(QueuedRevert::Permit(receipt));
        } else {
            self.push_one(QueuedRevert::Permit(permits.into_iter().cloned().collect()));
            self.push_one(QueuedRevert::Charges(charges.into_iter().cloned().collect()));
        }
    }

    fn push_one(&self, units: QueuedRevert) {
        if let Err(error) = self.reverts.try_send(units) {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            self.log.warn(&error.into_inner(), "too many others wait to be returned");
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

async fn run_revert_queue(
    store: &Weak<RedisStoreInner>,
    receiver: &mut Receiver<QueuedRevert>,
    log: &FailedRevertLog,
) {
    poll_fn(|context| receiver.poll_recv(context))
        .for_each_concurrent(MAX_CONCURRENT_REVERTS, |units| revert_with_retries(store, units, log))
        .await;
}

/// Returns units to Redis. Repeats a failed attempt, unless the repetition could return the units twice.
async fn revert_with_retries(
    store: &Weak<RedisStoreInner>,
    units: QueuedRevert,
    log: &FailedRevertLog,
) {
    let (begin, mut delay) = (Instant::now(), FIRST_RETRY_DELAY);
    loop {
        let Some(store) = store.upgrade() else { return };
        let result = match &units {
            QueuedRevert::Permit(receipt) => {
                store.change_permit(receipt, PermitChange::Release).await.map(drop)
            }
            QueuedRevert::Charges(receipt) => store.adjust(receipt, Adjustment::Revert).await,
        };
        drop(store);
        let Err(error) = result else { return };
        if !units.can_be_repeated_after(&error) || begin.elapsed() + delay > MAX_RETRY_TIME {
            log.warn(&units, error.class());
            return;
        }
        sleep(delay).await;
        delay = (2 * delay).min(MAX_RETRY_DELAY);
    }
}

impl QueuedRevert {
    /// Returns `true` if a further attempt after this error cannot return the units twice: because a permit has an id,
    /// or because the failed attempt has changed nothing. A value of another program stops only the revert of its key.
    fn can_be_repeated_after(&self, error: &StoreError) -> bool {
        let may_have_reverted =
            error.may_have_charged() || error.keys_with_foreign_values().is_some();
        matches!(self, Self::Permit(_)) || !may_have_reverted
    }
}

/// A log of units that stay charged, with at most one warning per [`WARNING_INTERVAL`] and kind.
#[derive(Debug, Default)]
struct FailedRevertLog {
    permits: Mutex<WarningThrottle>,
    charges: Mutex<WarningThrottle>,
}

#[derive(Debug, Default)]
struct WarningThrottle {
    last: Option<Instant>,
    unlogged: u64,
}

impl FailedRevertLog {
    /// Logs units that stay charged. The field `unlogged` is the number of earlier cases since the last warning.
    fn warn(&self, units: &QueuedRevert, class: &str) {
        match units {
            QueuedRevert::Permit(_) => {
                if let Some(unlogged) = self.permits.lock().try_acquire() {
                    tracing::warn!(
                        unlogged,
                        class,
                        "cannot release a permit, so it counts until it expires; check the connection to Redis"
                    );
                }
            }
            QueuedRevert::Charges(_) => {
                if let Some(unlogged) = self.charges.lock().try_acquire() {
                    tracing::warn!(
                        unlogged,
                        class,
                        "cannot revert the charges of a dropped request, so they count until their windows end; check \
                         the connection to Redis"
                    );
                }
            }
        }
    }
}

impl WarningThrottle {
    /// Returns the number of warnings that were suppressed, or `None` if this one is to be suppressed.
    fn try_acquire(&mut self) -> Option<u64> {
        let now = Instant::now();
        if self.last.is_some_and(|last| now - last < WARNING_INTERVAL) {
            self.unlogged += 1;
            return None;
        }
        self.last = Some(now);
        Some(std::mem::take(&mut self.unlogged))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failed test may panic")]
mod tests {
    use std::io::Write;

    use slidegate::store::{Hit, Key, Scope, Value};
    use slidegate::{Algorithm, Limit, Store};
    use tracing_subscriber::fmt::MakeWriter;

    use super::*;
    use crate::{RedisSettings, RedisStore};

    /// A log writer that keeps its text in memory.
    #[derive(Clone, Default)]
    struct InMemoryLog(Arc<Mutex<Vec<u8>>>);

    impl InMemoryLog {
        fn text(&self) -> String {
            String::from_utf8(self.0.lock().clone()).unwrap()
        }
    }

    impl Write for InMemoryLog {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl<'a> MakeWriter<'a> for InMemoryLog {
        type Writer = Self;

        fn make_writer(&'a self) -> Self {
            self.clone()
        }
    }

    #[test]
    fn attempt_that_may_have_reverted_charges_is_not_repeated() {
        let foreign = StoreError::Rejected {
            class: slidegate::store::RejectionClass::ForeignValue,
            message: "FOREIGN value not written by slidegate at key".to_owned(),
        };
        for (error, is_repeated) in [
            (StoreError::Unavailable(String::new()), true),
            (StoreError::TimedOut(String::new()), false),
            (foreign, false),
        ] {
            let charges = QueuedRevert::Charges(Receipt::default());
            assert_eq!(charges.can_be_repeated_after(&error), is_repeated, "{error}");
            assert!(QueuedRevert::Permit(Receipt::default()).can_be_repeated_after(&error));
        }
    }

    #[tokio::test]
    async fn units_that_stay_charged_are_logged_once() {
        let log = InMemoryLog::default();
        let subscriber =
            tracing_subscriber::fmt().with_writer(log.clone()).with_ansi(false).finish();
        let _logging = tracing::subscriber::set_default(subscriber);
        // Nothing listens on this port.
        let settings =
            RedisSettings { timeout: Duration::from_millis(20), ..RedisSettings::default() };
        let store = RedisStore::open("redis://127.0.0.1:1", settings).unwrap();
        let scope = Scope::new("domain", "rule", "limit", &["user"]);
        let value = [Value::Text("secret-user")];
        let limits = [
            Limit::concurrent(1, Duration::from_secs(60)).unwrap(),
            Limit::new("5/h".parse().unwrap(), Algorithm::SlidingLog).unwrap(),
        ];
        let charge = |limit: &Limit| Charge {
            counter: store.counter_id(&Hit::new(Key::new(&scope, &value), limit, 1)).unwrap(),
            limit: *limit,
            hit_index: 0,
            phase_us: 0,
            charged_at: slidegate::Timestamp::from_secs(1),
            hit_cost: 1,
            cost: 1,
        };
        for _ in 0..3 {
            store.revert_later(limits.iter().map(charge).collect());
        }
        while log.text().matches("they count until their windows end").count() == 0 {
            sleep(Duration::from_millis(5)).await;
        }
        while store.revert_queue.log.charges.lock().unlogged < 2 {
            sleep(Duration::from_millis(5)).await;
        }
        let text = log.text();
        assert_eq!(text.matches("cannot release a permit").count(), 1, "{text}");
        assert_eq!(text.matches("cannot revert the charges").count(), 1, "{text}");
        assert!(!text.contains("secret-user"), "{text}");
    }
}
