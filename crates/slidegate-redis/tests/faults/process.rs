//! What happens to the process of Redis.

use std::sync::Arc;
use std::time::Duration;

use slidegate::{Algorithm, Hit, Key, Limit, Scope, Store, Value};
use slidegate_redis::{RedisStore, Settings};

use super::load::{Load, Trial, gate, patient, request};
use crate::server::{LONG, Redis, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_and_started_again() {
    let mut redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    for _ in 0..2 {
        redis.kill();
        trial.all_see("degraded decisions", 200, |told| told.degraded).await;
        redis.restart();
        trial.recovers().await;
    }
    trial.end(&redis, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stopped_for_seconds() {
    let redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    redis.pause();
    trial.all_see("degraded decisions", 50, |told| told.degraded).await;
    let marks: Vec<usize> = trial.loads.iter().map(Load::mark).collect();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let until: Vec<usize> = trial.loads.iter().map(Load::mark).collect();
    redis.resume();
    trial.recovers().await;
    let all = trial.end(&redis, false).await;
    for (told, (from, to)) in all.iter().zip(marks.into_iter().zip(until)) {
        let meanwhile = &told[from..to];
        assert!(meanwhile.iter().all(|told| told.degraded), "Redis decided nothing");
        // The breaker is open: only probes wait.
        let waited = meanwhile.iter().filter(|told| told.waited() > Duration::from_millis(50));
        assert!(waited.count() <= 12, "of {}", meanwhile.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory() {
    let redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    trial.all_see("degraded decisions", 100, |told| told.degraded).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    trial.recovers().await;
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only() {
    let redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    trial.all_see("degraded decisions", 100, |told| told.degraded).await;
    redis.command(&["REPLICAOF", "NO", "ONE"]);
    trial.recovers().await;
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_notices_that_scripts_are_flushed() {
    let redis = Redis::start();
    let trial = Trial::begin(&redis.address()).await;
    for _ in 0..30 {
        redis.command(&["SCRIPT", "FLUSH"]);
        trial.all_see("decisions", 20, |_| true).await;
    }
    trial.recovers().await;
    for told in trial.end(&redis, false).await {
        let degraded = told.iter().filter(|told| told.degraded).count();
        // None but for the machine: a time-out or two.
        assert!(degraded <= told.len() / 100, "{degraded} of {}", told.len());
    }
}

/// One hit that has room.
async fn take(store: &RedisStore, limit: &Limit) -> bool {
    let scope = Scope::new("faults", "rule", "limit", &["who"]);
    let key = Key::new(&scope, &[Value::Text("all")]);
    let hit = Hit::new(key, limit, 1);
    store.take(&[hit]).await.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_a_thousand_callers_that_find_no_script_one_sends_it() {
    let redis = Redis::start();
    let settings = Settings { timeout: LONG, ..Settings::default() };
    let store = Arc::new(RedisStore::open(&redis.address(), settings).unwrap());
    for round in 1..=3 {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..1_000 {
            let store = store.clone();
            callers.spawn(async move {
                let limit = Limit::new("5000/h".parse().unwrap(), Algorithm::SlidingWindow);
                take(&store, &limit.unwrap()).await
            });
        }
        assert!(callers.join_all().await.into_iter().all(|allowed| allowed));
        // The script of who came first, and that of the others together.
        assert_eq!(
            redis.calls_of("eval"),
            2 * round,
            "each is sent once a time, and all are charged"
        );
        redis.command(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn redis_may_come_later_than_its_store() {
    let mut redis = Redis::start();
    redis.kill();
    let gate = gate(&redis.address(), "deny", patient());
    assert!(gate.check(&request("ann")).await.decision().is_store_unavailable());
    redis.restart();
    until("it is reached", super::load::RECOVERY, async || {
        gate.check(&request("ann")).await.decision().is_allowed()
    })
    .await;
}
