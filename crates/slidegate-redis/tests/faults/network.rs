//! Tests of faults of the network between a store and Redis.

use std::time::Duration;

use futures_util::future::join_all;
use slidegate::clock::{Clock, SystemClock};
use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, ManualClock, Store, StoreError, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use super::load::{FaultTrial, MAX_RECOVERY_TIME, STORE_TIMEOUT, patient_settings};
use crate::proxy::{Proxy, ReplyFault};
use crate::server::{LONG, Redis, elapsed_between, poll_until};

/// Injects each of these faults into many replies under load. Asserts that decisions are made without Redis during the
/// fault, and by Redis again after it.
async fn assert_recovery_from_reply_faults(faults: &[ReplyFault]) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let trial = FaultTrial::begin(&proxy.address()).await;
    for &fault in faults {
        proxy.set_fault(fault);
        let before = proxy.corrupted();
        poll_until("replies are spoilt", LONG, async || proxy.corrupted() >= before + 10).await;
        trial.wait_for_all("degraded decisions", 50, |told| told.degraded).await;
        proxy.set_fault(ReplyFault::Pass);
        trial.wait_for_recovery().await;
    }
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_and_lost_replies_degrade_decisions() {
    assert_recovery_from_reply_faults(&[ReplyFault::Delay(3 * STORE_TIMEOUT), ReplyFault::Drop])
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_reply_degrades_decisions() {
    assert_recovery_from_reply_faults(&[ReplyFault::Cut]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn corrupt_replies_degrade_decisions() {
    assert_recovery_from_reply_faults(&[
        ReplyFault::Flip,
        ReplyFault::Shorten,
        ReplyFault::Insert(b"\0\xff no reply\r\n"),
        ReplyFault::Insert(b"$999999999\r\n"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn huge_reply_lengths_degrade_decisions() {
    // Complete replies to no request are not tested: later replies would be assigned to the wrong requests, and no
    // network does that.
    assert_recovery_from_reply_faults(&[
        ReplyFault::Insert(b"*2000000000\r\n"),
        ReplyFault::Insert(b"*1\r\n*1\r\n*1\r\n*1\r\n"),
    ])
    .await;
}

/// A store with one counter.
struct SingleCounterStore {
    store: RedisStore,
    scope: Scope,
    limit: Limit,
}

impl SingleCounterStore {
    fn open(address: &str, settings: RedisSettings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = RedisStore::open(address, settings).unwrap().with_clock(clock);
        let scope = Scope::new("faults", "rule", "limit", &["client"]);
        let limit = Limit::new("100000/d".parse().unwrap(), Algorithm::SlidingLog).unwrap();
        Self { store, scope, limit }
    }

    fn hit(&self) -> Hit<'_> {
        let key = Key::new(&self.scope, &[Value::Text("all")]);
        Hit::new(key, &self.limit, 1)
    }

    async fn charged_units(&self) -> u64 {
        100_000 - self.store.peek_async(&[self.hit()]).await.unwrap()[0].remaining()
    }
}

/// Numbers of units, grouped by the result of their call: charged, possibly charged, and not charged.
#[derive(Debug, Default)]
struct ChargeTally {
    charged: u64,
    unknown: u64,
    not_charged: u64,
}

impl ChargeTally {
    fn record_call_result<T>(&mut self, result: Result<T, StoreError>, units: u64) {
        match result {
            Ok(_) => self.charged += units,
            Err(StoreError::TimedOut(_)) => self.unknown += units,
            Err(_) => self.not_charged += units,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_lost_reply_is_not_repeated() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let settings = RedisSettings { timeout: Duration::from_millis(30), ..RedisSettings::default() };
    let proxied = SingleCounterStore::open(&proxy.address(), settings);
    let direct = SingleCounterStore::open(
        &redis.address(),
        RedisSettings { timeout: LONG, ..patient_settings() },
    );
    let mut tally = ChargeTally::default();
    poll_until("the store responds", MAX_RECOVERY_TIME, async || {
        let result = proxied.store.charge_async(&[proxied.hit()]).await;
        let is_ok = result.is_ok();
        tally.record_call_result(result, 1);
        is_ok
    })
    .await;
    for fault in [
        ReplyFault::Drop,
        ReplyFault::Cut,
        ReplyFault::Delay(Duration::from_millis(60)),
        ReplyFault::Shorten,
    ] {
        proxy.set_fault(fault);
        // As many calls as the breaker allows in a while; in between, some succeed.
        for nth in 0..40 {
            let hit = proxied.hit();
            if nth % 2 == 0 {
                tally.record_call_result(proxied.store.charge_async(&[hit]).await, 1);
            } else {
                tally.record_call_result(
                    proxied.store.charge_many_async(&[&[hit], &[hit], &[hit]]).await,
                    3,
                );
            }
            if nth % 8 == 7 {
                proxy.set_fault(ReplyFault::Pass);
                poll_until("the store responds", MAX_RECOVERY_TIME, async || {
                    let result = proxied.store.charge_async(&[proxied.hit()]).await;
                    let is_ok = result.is_ok();
                    tally.record_call_result(result, 1);
                    is_ok
                })
                .await;
                redis.command(&["SCRIPT", "FLUSH"]);
                proxy.set_fault(fault);
            }
        }
        proxy.set_fault(ReplyFault::Pass);
        poll_until("the store responds", MAX_RECOVERY_TIME, async || {
            let result = proxied.store.charge_async(&[proxied.hit()]).await;
            let is_ok = result.is_ok();
            tally.record_call_result(result, 1);
            is_ok
        })
        .await;
    }
    // Calls in flight have arrived.
    drop(proxied);
    let charged = direct.charged_units().await;
    println!("{tally:?}, charged {charged}");
    assert!(tally.unknown >= 20, "{tally:?}");
    let most = tally.charged + tally.unknown;
    assert!((tally.charged..=most).contains(&charged), "{charged} charged, {tally:?}");
    redis.assert_all_expire();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batch_after_script_flush_takes_one_round_trip() {
    const REPLY_DELAY: Duration = Duration::from_millis(300);
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = SingleCounterStore::open(
        &proxy.address(),
        RedisSettings { timeout: LONG, ..patient_settings() },
    );
    let small = Limit::new("20/d".parse().unwrap(), Algorithm::SlidingCounter).unwrap();
    let (log, window) = (counter.hit(), Hit { limit: &small, ..counter.hit() });
    let hits: Vec<[Hit<'_>; 1]> =
        (0..60).map(|nth| if nth % 2 == 0 { [log] } else { [window] }).collect();
    let batch: Vec<&[Hit<'_>]> = hits.iter().map(|hits| &hits[..]).collect();
    for round in 0..3 {
        let taken = counter.store.charge_many_async(&batch).await.unwrap();
        for (nth, taken) in taken.iter().enumerate() {
            assert_eq!(taken.receipt.charges().len(), usize::from(taken.allowed));
            let is_allowed = nth % 2 == 0 || (round == 0 && nth < 40);
            assert_eq!(taken.allowed, is_allowed, "round {round}, the {nth}th");
        }
        redis.command(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(counter.charged_units().await, 90);
    // One call per round, which found no script and was repeated with its text; and one that peeked.
    assert_eq!((redis.calls_of("evalsha"), redis.calls_of("eval")), (3 + 1, 3 + 1));
    counter.store.charge_many_async(&batch).await.unwrap();
    proxy.set_fault(ReplyFault::Delay(REPLY_DELAY));
    let clock = SystemClock::new();
    let began = clock.now();
    counter.store.charge_many_async(&batch).await.unwrap();
    let took = elapsed_between(began, clock.now());
    // The proxy delays each chunk of replies, of which there may be several.
    assert!(took < 6 * REPLY_DELAY, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_batch_reports_possible_charges() {
    let redis = Redis::start();
    let counter = SingleCounterStore::open(
        &redis.address(),
        RedisSettings { timeout: LONG, ..patient_settings() },
    );
    let other = Scope::new("faults", "spoilt", "limit", &["client"]);
    let (good, bad) =
        (counter.hit(), Hit { key: Key::new(&other, &[Value::Text("all")]), ..counter.hit() });
    counter.store.charge_async(&[bad]).await.unwrap();
    let key = redis.keys().remove(0);
    redis.command(&["DEL", &key]);
    redis.command(&["LPUSH", &key, "x"]);
    let error = counter.store.charge_many_async(&[&[good], &[bad]]).await.unwrap_err();
    assert!(matches!(error, StoreError::TimedOut(_)), "{error}");
    // The message names the cause, and not the key, which can contain values of clients.
    let text = error.to_string();
    assert!(text.contains("(foreign)") && !text.contains(&key), "{text}");
    let error = counter.store.charge_many_async(&[&[bad]]).await.unwrap_err();
    assert_eq!(
        (error.class(), error.keys_with_foreign_values()),
        ("wrongtype", Some(&*key)),
        "{error}"
    );
    assert_eq!(counter.charged_units().await, 1);
    assert!(
        counter
            .store
            .charge_many_async(&[&[], &[good], &[]])
            .await
            .unwrap()
            .iter()
            .all(|counter| counter.allowed)
    );
    assert_eq!(counter.store.charge_many_async(&[&[], &[]]).await.unwrap().len(), 2);
    assert!(counter.store.charge_many_async(&[]).await.unwrap().is_empty());
}

/// Tests a call that takes longer than the timeout, because Redis stalls once. The circuit breaker counts one failure,
/// regardless of the number of requests that waited for this call.
///
/// The clock of the runtime is paused while the requests begin, so that all have the same deadline. If one began
/// later, it would be sent in another call when the first call times out.
#[tokio::test]
async fn slow_call_counts_as_one_breaker_failure() {
    const CONCURRENT_REQUEST_COUNT: usize = 50;
    let redis = Redis::start();
    let counter = SingleCounterStore::open(&redis.address(), patient_settings());
    let crowd = async || {
        let hits = [counter.hit()];
        join_all((0..CONCURRENT_REQUEST_COUNT).map(|_| counter.store.charge_async(&hits))).await
    };
    poll_until("the store responds", MAX_RECOVERY_TIME, async || {
        counter.store.charge_async(&[counter.hit()]).await.is_ok()
    })
    .await;
    redis.command(&["CLIENT", "PAUSE", "600000", "WRITE"]);
    // The runtime advances the clock to the next timeout when all requests wait.
    tokio::time::pause();
    let results = crowd().await;
    tokio::time::resume();
    let timed_out =
        results.iter().filter(|counter| matches!(counter, Err(StoreError::TimedOut(_))));
    assert_eq!(timed_out.count(), 1, "{results:?}");
    let is_late = |counter: &&Result<_, _>| matches!(counter, Err(StoreError::Unavailable(_)));
    assert_eq!(results.iter().filter(is_late).count(), CONCURRENT_REQUEST_COUNT - 1, "{results:?}");
    assert!(!counter.store.is_breaker_open());
    redis.command(&["CLIENT", "UNPAUSE"]);
    let results = crowd().await;
    assert!(results.iter().all(Result::is_ok), "{results:?}");
}
