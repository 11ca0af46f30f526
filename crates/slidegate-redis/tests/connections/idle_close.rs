//! Connections that are closed while no call is in flight: by Redis, by `CLIENT KILL`, by a restart, or by a proxy.

use std::time::Duration;

use slidegate::Store;
use slidegate_redis::{RedisStore, Settings};

use super::fixture::{Counter, kill_clients, repetitions};
use crate::proxy::Proxy;
use crate::server::cluster::{Cluster, SHARDS};
use crate::server::sentinel::Service;
use crate::server::{LONG, Redis};

/// Charges one unit after each interruption. Returns the number of calls that Redis did not serve.
async fn count_calls_without_redis(
    counter: &Counter,
    repetitions: u64,
    mut interrupt: impl AsyncFnMut(),
) -> u64 {
    counter.charge().await.unwrap();
    let mut failed = 0;
    for _ in 0..repetitions {
        interrupt().await;
        if let Err(error) = counter.charge().await {
            println!("{error}");
            failed += 1;
        }
    }
    failed
}

/// Closes all connections of clients, and waits until the store has received this.
async fn kill_clients_and_wait(servers: &[&Redis]) {
    for server in servers {
        kill_clients(server);
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closed_by_idle_timeout_serves_next_call() {
    let redis = Redis::with_args(&["--timeout", "1"]);
    let counter = Counter::open(&redis.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(3), async || {
        tokio::time::sleep(Duration::from_secs(3)).await;
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(3) + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connection_serves_next_call() {
    for protocol in ["", "?protocol=resp3"] {
        let redis = Redis::start();
        let counter = Counter::open(&format!("{}{protocol}", redis.address()), LONG);
        let failed = count_calls_without_redis(&counter, repetitions(20), async || {
            kill_clients_and_wait(&[&redis]).await;
        })
        .await;
        assert_eq!(failed, 0, "{protocol}");
        assert_eq!(counter.used().await, repetitions(20) + 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connection_to_sentinel_master_serves_next_call() {
    let service = Service::start();
    let counter = Counter::open(&service.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        kill_clients_and_wait(&[service.master()]).await;
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(20) + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_to_cluster_serve_next_call() {
    let cluster = Cluster::start();
    let counter = Counter::open(&cluster.address(), LONG);
    let masters: Vec<&Redis> = cluster.nodes[..SHARDS].iter().map(|node| &**node).collect();
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        kill_clients_and_wait(&masters).await;
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(20) + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_serves_next_call() {
    let mut redis = Redis::start();
    let counter = Counter::open(&redis.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(5), async || {
        redis.kill();
        redis.restart();
    })
    .await;
    assert_eq!(failed, 0);
}

/// The store is not told of the close before the call: no task of its runtime runs in between.
#[tokio::test]
async fn connection_closed_unnoticed_serves_next_call() {
    let redis = Redis::start();
    let counter = Counter::open(&redis.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        kill_clients(&redis);
        std::thread::sleep(Duration::from_millis(50));
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(20) + 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closed_by_proxy_serves_next_call() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        proxy.close_connections();
        tokio::time::sleep(Duration::from_millis(20)).await;
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(20) + 1);
}

/// Each forgotten connection fails at most one call: the one that finds it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forgotten_connection_fails_at_most_one_call() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), Duration::from_millis(200));
    counter.charge().await.unwrap();
    for round in 0..repetitions(5) {
        proxy.forget_connections();
        let mut failed = 0;
        for _ in 0..5 {
            failed += u64::from(counter.charge().await.is_err());
        }
        assert!(failed <= 1, "{failed} calls of round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connections_leave_breaker_closed() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let settings = Settings { timeout: LONG, ..Settings::default() };
    let store = RedisStore::open(&proxy.address(), settings).unwrap();
    let counter = Counter::with_store(store);
    for _ in 0..repetitions(20) {
        counter.charge().await.unwrap();
        proxy.close_connections();
        let _ = counter.charge().await;
        assert!(!counter.store.is_breaker_open());
    }
    assert!(counter.store.peek_async(&[counter.hit()]).await.is_ok());
}
