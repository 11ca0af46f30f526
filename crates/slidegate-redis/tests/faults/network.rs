//! What happens between a store and Redis.

use std::time::Duration;

use futures_util::future::join_all;
use slidegate::{
    Algorithm, Clock, Hit, Key, Limit, ManualClock, Scope, Store, StoreError, SystemClock,
    Timestamp, Value,
};
use slidegate_redis::{RedisStore, Settings};

use super::load::{RECOVERY, TIMEOUT, Trial, patient};
use crate::proxy::{Mode, Proxy};
use crate::server::{LONG, Redis, until};

/// Under load: replies are spoilt in some way, until many have been, and then no more.
async fn spoilt(modes: &[Mode]) {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let trial = Trial::begin(&proxy.address()).await;
    for &mode in modes {
        proxy.set(mode);
        let before = proxy.spoilt();
        until("replies are spoilt", LONG, async || proxy.spoilt() >= before + 10).await;
        trial.all_see("degraded decisions", 50, |told| told.degraded).await;
        proxy.set(Mode::Pass);
        trial.recovers().await;
    }
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_late_or_never_come() {
    spoilt(&[Mode::Delay(3 * TIMEOUT), Mode::Swallow]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_in_the_midst_of_a_reply() {
    spoilt(&[Mode::Cut]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_are_spoilt() {
    spoilt(&[
        Mode::Flip,
        Mode::Shorten,
        Mode::Insert(b"\0\xff no reply\r\n"),
        Mode::Insert(b"$999999999\r\n"),
    ])
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replies_that_claim_to_be_vast() {
    // Not among them: whole replies that nobody asked for. Whose is whose after such a one nobody can tell,
    // and no network does that.
    spoilt(&[Mode::Insert(b"*2000000000\r\n"), Mode::Insert(b"*1\r\n*1\r\n*1\r\n*1\r\n")]).await;
}

/// A store whose every call is one unit of one key.
struct Counted {
    store: RedisStore,
    scope: Scope,
    limit: Limit,
}

impl Counted {
    fn open(address: &str, settings: Settings) -> Self {
        let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
        let store = RedisStore::open(address, settings).unwrap().with_clock(clock);
        let scope = Scope::new("faults", "rule", "limit", &["who"]);
        let limit = Limit::new("100000/d".parse().unwrap(), Algorithm::SlidingLog).unwrap();
        Self { store, scope, limit }
    }

    fn hit(&self) -> Hit<'_> {
        let key = Key::new(&self.scope, &[Value::Text("all")]);
        Hit::new(key, &self.limit, 1)
    }

    async fn charged(&self) -> u64 {
        100_000 - self.store.peek(&[self.hit()]).await.unwrap()[0].remaining()
    }
}

/// How calls went: those that were charged, that may have been, and that were not.
#[derive(Debug, Default)]
struct Went {
    charged: u64,
    unknown: u64,
    not: u64,
}

impl Went {
    fn note<T>(&mut self, answer: Result<T, StoreError>, units: u64) {
        match answer {
            Ok(_) => self.charged += units,
            Err(StoreError::TimedOut(_)) => self.unknown += units,
            Err(_) => self.not += units,
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_have_been_charged_is_not_charged_again() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let settings = Settings { timeout: Duration::from_millis(30), ..Settings::default() };
    let far = Counted::open(&proxy.address(), settings);
    let near = Counted::open(&redis.address(), Settings { timeout: LONG, ..patient() });
    let mut went = Went::default();
    until("it answers", RECOVERY, async || {
        let answer = far.store.take(&[far.hit()]).await;
        let is_ok = answer.is_ok();
        went.note(answer, 1);
        is_ok
    })
    .await;
    for mode in [Mode::Swallow, Mode::Cut, Mode::Delay(Duration::from_millis(60)), Mode::Shorten] {
        proxy.set(mode);
        // As many as the breaker lets through in a while; between them, some go well.
        for nth in 0..40 {
            let hit = far.hit();
            if nth % 2 == 0 {
                went.note(far.store.take(&[hit]).await, 1);
            } else {
                went.note(far.store.take_many(&[&[hit], &[hit], &[hit]]).await, 3);
            }
            if nth % 8 == 7 {
                proxy.set(Mode::Pass);
                until("it answers", RECOVERY, async || {
                    let answer = far.store.take(&[far.hit()]).await;
                    let is_ok = answer.is_ok();
                    went.note(answer, 1);
                    is_ok
                })
                .await;
                redis.command(&["SCRIPT", "FLUSH"]);
                proxy.set(mode);
            }
        }
        proxy.set(Mode::Pass);
        until("it answers", RECOVERY, async || {
            let answer = far.store.take(&[far.hit()]).await;
            let is_ok = answer.is_ok();
            went.note(answer, 1);
            is_ok
        })
        .await;
    }
    // What was on its way has arrived.
    drop(far);
    let charged = near.charged().await;
    println!("{went:?}, charged {charged}");
    assert!(went.unknown >= 20, "{went:?}");
    let most = went.charged + went.unknown;
    assert!((went.charged..=most).contains(&charged), "{charged} charged, {went:?}");
    redis.assert_all_expire();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_is_one_round_trip_and_in_order_also_when_scripts_are_gone() {
    const LATE: Duration = Duration::from_millis(300);
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let one = Counted::open(&proxy.address(), Settings { timeout: LONG, ..patient() });
    let small = Limit::new("20/d".parse().unwrap(), Algorithm::SlidingWindow).unwrap();
    let (log, window) = (one.hit(), Hit { limit: &small, ..one.hit() });
    let hits: Vec<[Hit<'_>; 1]> =
        (0..60).map(|nth| if nth % 2 == 0 { [log] } else { [window] }).collect();
    let asks: Vec<&[Hit<'_>]> = hits.iter().map(|hits| &hits[..]).collect();
    for round in 0..3 {
        let taken = one.store.take_many(&asks).await.unwrap();
        for (nth, taken) in taken.iter().enumerate() {
            assert_eq!(taken.receipt.charges.len(), usize::from(taken.allowed));
            let is_allowed = nth % 2 == 0 || (round == 0 && nth < 40);
            assert_eq!(taken.allowed, is_allowed, "round {round}, the {nth}th");
        }
        redis.command(&["SCRIPT", "FLUSH"]);
    }
    assert_eq!(one.charged().await, 90);
    // One call a round, which found no script and was sent as a whole; and one that counted.
    assert_eq!((redis.calls_of("evalsha"), redis.calls_of("eval")), (3 + 1, 3 + 1));
    one.store.take_many(&asks).await.unwrap();
    proxy.set(Mode::Delay(LATE));
    let clock = SystemClock::new();
    let began = clock.now();
    one.store.take_many(&asks).await.unwrap();
    let took = Duration::from_micros(clock.now().as_micros() - began.as_micros());
    // The proxy delays each bundle of replies, of which there may be a few.
    assert!(took < 6 * LATE, "{took:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_batch_that_fails_for_one_may_have_been_charged_for_others() {
    let redis = Redis::start();
    let one = Counted::open(&redis.address(), Settings { timeout: LONG, ..patient() });
    let other = Scope::new("faults", "spoilt", "limit", &["who"]);
    let (good, bad) =
        (one.hit(), Hit { key: Key::new(&other, &[Value::Text("all")]), ..one.hit() });
    one.store.take(&[bad]).await.unwrap();
    let key = redis.keys().remove(0);
    redis.command(&["DEL", &key]);
    redis.command(&["LPUSH", &key, "x"]);
    let error = one.store.take_many(&[&[good], &[bad]]).await.unwrap_err();
    assert!(matches!(error, StoreError::TimedOut(_)), "{error}");
    let error = one.store.take_many(&[&[bad]]).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert_eq!(one.charged().await, 1);
    assert!(one.store.take_many(&[&[], &[good], &[]]).await.unwrap().iter().all(|one| one.allowed));
    assert_eq!(one.store.take_many(&[&[], &[]]).await.unwrap().len(), 2);
    assert!(one.store.take_many(&[]).await.unwrap().is_empty());
}

/// Redis stalls once, for longer than the timeout. That is one failed call, however many requests waited for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_slow_call_degrades_only_the_requests_that_it_carried_and_those_that_expired_behind_it()
{
    const CROWD: usize = 50;
    let redis = Redis::start();
    let settings = Settings { timeout: Duration::from_millis(400), ..Settings::default() };
    let one = Counted::open(&redis.address(), settings);
    until("it answers", RECOVERY, async || one.store.take(&[one.hit()]).await.is_ok()).await;
    let crowd = async || {
        let hits = [one.hit()];
        join_all((0..CROWD).map(|_| one.store.take(&hits))).await
    };
    redis.command(&["CLIENT", "PAUSE", "600"]);
    let answers = crowd().await;
    let timed_out = answers.iter().filter(|one| matches!(one, Err(StoreError::TimedOut(_))));
    assert_eq!(timed_out.count(), 1, "{answers:?}");
    let is_late = |one: &&Result<_, _>| matches!(one, Err(StoreError::Unavailable(_)));
    assert_eq!(answers.iter().filter(is_late).count(), CROWD - 1, "{answers:?}");
    assert!(!one.store.is_breaker_open());
    let answers = crowd().await;
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
}
