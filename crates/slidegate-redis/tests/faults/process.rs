//! Tests of faults of the Redis process.

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{Hit, Key, Scope, Value};
use slidegate::{Algorithm, Limit, Reason, Store, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use super::load::{FaultTrial, Load, STORE_TIMEOUT, new_gate, new_request, patient_settings};
use crate::server::{LONG, Redis, poll_until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn decisions_recover_after_killed_server_restarts() {
    let mut redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    for _ in 0..2 {
        redis.kill();
        trial.wait_for_all("degraded decisions", 200, |record| record.degraded).await;
        redis.restart();
        trial.wait_for_recovery().await;
    }
    trial.end(&redis, true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_server_delays_only_probes() {
    let redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    redis.pause();
    trial.wait_for_open_breakers().await;
    let opened_at: Vec<Timestamp> = trial.loads.iter().map(Load::now).collect();
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    let paused_until: Vec<Timestamp> = trial.loads.iter().map(Load::now).collect();
    redis.resume();
    trial.wait_for_recovery().await;
    let late = trial.loads.iter().map(Load::machine_lateness).max().unwrap();
    let all = trial.end(&redis, false).await;
    for (records, (from, to)) in all.iter().zip(opened_at.into_iter().zip(paused_until)) {
        // Requests that began before the breaker opened wait for their timeout, and are not probes.
        let during_stop: Vec<_> =
            records.iter().filter(|record| record.is_within(from, to)).collect();
        assert!(during_stop.iter().all(|record| record.degraded), "Redis decided nothing");
        // A probe waits for the whole timeout; the clock of a record may round down.
        let shortest_probe = STORE_TIMEOUT - Duration::from_millis(1);
        let probes = during_stop.iter().filter(|record| record.waited() >= shortest_probe).count();
        // Only on a machine that is later than the timeout do other requests wait as long.
        let max_probes = if late < STORE_TIMEOUT { 12 } else { during_stop.len() / 20 };
        assert!(
            (1..=max_probes).contains(&probes),
            "{probes} of {} waited, {late:?} late",
            during_stop.len()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn out_of_memory_server_degrades_decisions_until_memory_freed() {
    let redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "1"]);
    trial.wait_for_all("degraded decisions", 100, |record| record.degraded).await;
    redis.command(&["CONFIG", "SET", "maxmemory", "0"]);
    trial.wait_for_recovery().await;
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_only_server_degrades_decisions_until_writable() {
    let redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    redis.command(&["REPLICAOF", "127.0.0.1", "1"]);
    trial.wait_for_all("degraded decisions", 100, |record| record.degraded).await;
    redis.command(&["REPLICAOF", "NO", "ONE"]);
    trial.wait_for_recovery().await;
    trial.end(&redis, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_degrades_no_decision() {
    let redis = Redis::start();
    let trial = FaultTrial::begin(&redis.address()).await;
    for _ in 0..30 {
        redis.command(&["SCRIPT", "FLUSH"]);
        trial.wait_for_all("decisions", 20, |_| true).await;
    }
    trial.wait_for_recovery().await;
    for records in trial.end(&redis, false).await {
        let degraded = records.iter().filter(|record| record.degraded).count();
        // A slow machine may cause one or two timeouts.
        assert!(degraded <= records.len() / 100, "{degraded} of {}", records.len());
    }
}

/// Takes one unit of a limit. Returns `true` if the unit was allowed.
async fn take_one_unit(store: &RedisStore, limit: &Limit) -> bool {
    let scope = Scope::new("faults", "rule", "limit", &["client"]);
    let key = Key::new(&scope, &[Value::Text("all")]);
    let hit = Hit::new(key, limit, 1);
    store.charge_async(&[hit]).await.unwrap().allowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_callers_load_missing_script_once() {
    let redis = Redis::start();
    let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
    let store = Arc::new(RedisStore::open(&redis.address(), settings).unwrap());
    for round in 1..=3 {
        let mut callers = tokio::task::JoinSet::new();
        for _ in 0..1_000 {
            let store = store.clone();
            callers.spawn(async move {
                let limit = Limit::new("5000/h".parse().unwrap(), Algorithm::SlidingCounter);
                take_one_unit(&store, &limit.unwrap()).await
            });
        }
        assert!(callers.join_all().await.into_iter().all(|allowed| allowed));
        // One load of the script for the first request, and one for the batch of the others.
        assert_eq!(
            redis.calls_of("eval"),
            2 * round,
            "each is sent once a time, and all are charged"
        );
        redis.command(&["SCRIPT", "FLUSH"]);
    }
}

#[tokio::test]
async fn store_connects_when_redis_starts_later() {
    let mut redis = Redis::start();
    redis.kill();
    let gate = new_gate(&redis.address(), "deny", patient_settings());
    let decision = gate.check_async(&new_request("ann")).await;
    assert_eq!(decision.reason(), Some(Reason::StoreUnavailable));
    redis.restart();
    poll_until("the server is reachable", super::load::MAX_RECOVERY_TIME, async || {
        gate.check_async(&new_request("ann")).await.is_allowed()
    })
    .await;
}
