//! The circuit breaker after a lost connection: it closes within about a second, whatever it has waited before.

use std::time::Duration;

use tokio::time::Instant;

use super::fixture::Counter;
use crate::proxy::{Proxy, ReplyFault};
use crate::server::{LONG, Redis, poll_until};

/// Maximum time until the breaker closes after the connection is restored.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(1);

/// Time after which the breaker has its longest backoff, from 2.5 to 5 seconds.
const TIME_TO_LONGEST_BACKOFF: Duration = Duration::from_secs(8);

/// Time from the loss of a probe's reply until the store has failed to open another connection.
const TIME_OF_FAILED_PROBE: Duration = Duration::from_millis(1_200);

/// Redis does not respond for a while, so the backoff grows. Then its connection is closed, and can be restored at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn breaker_closes_soon_after_lost_connection() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), Duration::from_millis(200));
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    proxy.set_fault(ReplyFault::Drop);
    let began = Instant::now();
    let (mut dropped, mut probed_at) = (proxy.corrupted(), None);
    poll_until("the store has sent a late probe", 3 * LONG, async || {
        let _ = counter.charge().await;
        if began.elapsed() > TIME_TO_LONGEST_BACKOFF && proxy.corrupted() > dropped {
            probed_at = Some(Instant::now());
        }
        dropped = proxy.corrupted();
        probed_at.is_some_and(|probed_at| probed_at.elapsed() > TIME_OF_FAILED_PROBE)
    })
    .await;
    assert!(counter.store.is_breaker_open());
    proxy.set_fault(ReplyFault::Pass);
    proxy.close_connections();
    let recovery_time = poll_until("the breaker is closed", LONG, async || {
        let _ = counter.charge().await;
        !counter.store.is_breaker_open()
    })
    .await;
    assert!(recovery_time < MAX_RECOVERY_TIME, "{recovery_time:?}");
}
