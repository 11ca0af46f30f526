//! Connections that are closed while no call is in flight: by Redis, by `CLIENT KILL`, by a restart, or by a proxy.

use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::Edit;
use slidegate::{Store, StoreError};
use slidegate_redis::{RedisSettings, RedisStore};

use super::fixture::{Counter, repetitions};
use crate::proxy::{Proxy, ReplyFault};
use crate::server::cluster::{Cluster, SHARDS};
use crate::server::sentinel::Service;
use crate::server::{Folder, LONG, Redis, free_port, poll_until};

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
        server.close_client_connections();
    }
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_closed_by_idle_timeout_serves_next_call() {
    const STORES: u64 = 20;
    let redis = Redis::with_args(&["--timeout", "1"]);
    let counters: Vec<Counter> =
        (0..STORES).map(|_| Counter::open(&redis.address(), LONG)).collect();
    let checks = counters.iter().map(|counter| {
        count_calls_without_redis(counter, repetitions(2), async || {
            tokio::time::sleep(Duration::from_secs(3)).await;
        })
    });
    let failed: u64 = join_all(checks).await.into_iter().sum();
    assert_eq!(failed, 0);
    assert_eq!(counters[0].used().await, STORES * (repetitions(2) + 1));
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

/// The runtime does not report the close before the call, because no task runs in between.
#[tokio::test]
async fn connection_closed_unnoticed_serves_next_call() {
    let redis = Redis::start();
    let counter = Counter::open(&redis.address(), LONG);
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        redis.close_client_connections();
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
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
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
    let counter = Counter::open(&proxy.address(), LONG);
    counter.charge().await.unwrap();
    for _ in 0..repetitions(20) {
        proxy.close_connections();
        // The connection may be closed while the call is in flight.
        let result = counter.charge().await;
        assert!(matches!(result, Ok(_) | Err(StoreError::ConnectionLost(_))), "{result:?}");
        assert!(!counter.store.is_breaker_open());
    }
}

/// A call times out, and its connection has received the reply to another call during this time: it works, so it is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_server_keeps_its_connection() {
    const REPLY_DELAY: Duration = Duration::from_millis(400);
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), REPLY_DELAY * 3 / 2);
    counter.charge().await.unwrap();
    // The proxy delays one reply after the other.
    proxy.set_fault(ReplyFault::Delay(REPLY_DELAY));
    let refund = async || {
        let hits = [counter.hit()];
        counter.store.edit_async(&hits, Edit::Refund).await
    };
    let second = async {
        tokio::time::sleep(REPLY_DELAY / 4).await;
        refund().await
    };
    let (first, second) = tokio::join!(counter.charge(), second);
    proxy.set_fault(ReplyFault::Pass);
    first.unwrap();
    assert!(matches!(second, Err(StoreError::TimedOut(_))), "{second:?}");
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    assert_eq!(proxy.accepted(), 1);
}

/// A server that hangs is given one further connection at a time. The calls use the old one again when it continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_server_gets_few_connections() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), Duration::from_millis(500));
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    let before = proxy.accepted();
    redis.pause();
    for _ in 0..4 {
        counter.charge().await.unwrap_err();
    }
    redis.resume();
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    let opened = proxy.accepted() - before;
    assert!(opened <= 3, "{opened} connections");
}

/// While Redis accepts no more connections, a connection on which a call timed out is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_connection_is_kept_if_no_other_can_be_opened() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), Duration::from_millis(200));
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    redis.command(&["CONFIG", "SET", "maxclients", "1"]);
    proxy.set_fault(ReplyFault::Delay(Duration::from_millis(400)));
    counter.charge().await.unwrap_err();
    proxy.set_fault(ReplyFault::Pass);
    poll_until("Redis serves calls", LONG, async || counter.charge().await.is_ok()).await;
    assert!(!counter.store.is_breaker_open());
}

/// The end of a TLS connection is a message before the end of the stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_tls_connection_serves_next_call() {
    let folder = Folder::new();
    let certificate = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let (pem, key, port) = (folder.file("ca.pem"), folder.file("key.pem"), free_port());
    std::fs::write(&pem, certificate.cert.pem()).unwrap();
    std::fs::write(&key, certificate.signing_key.serialize_pem()).unwrap();
    let tls_port = port.to_string();
    let args = ["--tls-port", &tls_port, "--tls-cert-file", &pem, "--tls-key-file", &key];
    let redis = Redis::with_args(
        &[&args[..], &["--tls-ca-cert-file", &pem, "--tls-auth-clients", "no"]].concat(),
    );
    let settings = RedisSettings {
        timeout: LONG,
        ca_file: Some(pem.clone().into()),
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&format!("rediss://localhost:{port}/"), settings).unwrap();
    let counter = Counter::with_store(store);
    let failed = count_calls_without_redis(&counter, repetitions(20), async || {
        kill_clients_and_wait(&[&redis]).await;
    })
    .await;
    assert_eq!(failed, 0);
    assert_eq!(counter.used().await, repetitions(20) + 1);
}

/// Connections are closed at random times while calls are in flight. No call is charged twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_during_random_closes_are_charged_at_most_once() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    counter.charge().await.unwrap();
    let calls = 40 * repetitions(20);
    let killer = async {
        loop {
            tokio::time::sleep(Duration::from_micros(fastrand::u64(200..5_000))).await;
            if fastrand::bool() {
                proxy.close_connections()
            } else {
                redis.close_client_connections()
            }
        }
    };
    let callers = (0..4).map(|_| async {
        let (mut charged, mut unknown) = (0, 0);
        for _ in 0..calls / 4 {
            match counter.charge().await {
                Ok(_) => charged += 1,
                Err(StoreError::ConnectionLost(_)) => unknown += 1,
                Err(error) => panic!("{error}"),
            }
        }
        (charged, unknown)
    });
    let results = tokio::select! {
        results = join_all(callers) => results,
        () = killer => unreachable!("the killer does not end"),
    };
    let (charged, unknown) =
        results.into_iter().fold((1, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
    let used = counter.used().await;
    println!("{charged} charged, {unknown} unknown, {used} used, {} connections", proxy.accepted());
    assert!((charged..=charged + unknown).contains(&used), "{charged}, {unknown}, {used}");
}
