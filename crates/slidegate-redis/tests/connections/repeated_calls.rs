//! Calls that may be sent again although Redis may have received them, and calls that may not.

use std::time::Duration;

use slidegate::store::{
    Adjustment, CallId, CallIdentity, CallSettlement, ChargeOnceResult, ChargeWhen, Hit, Key,
    PermitChange, Receipt, Scope, SettleResult, Value,
};
use slidegate::{Descriptor, Gate, Limit, Policy, Request, Store, StoreError};
use slidegate_redis::{RedisSettings, RedisStore};

use super::fixture::{Counter, repetitions};
use crate::proxy::{Proxy, ReplyFault};
use crate::server::{Folder, LONG, Redis, poll_until};

const TTL: Duration = Duration::from_secs(600);

fn identity(call: u64) -> CallIdentity {
    let mut id = [0; 16];
    id[..8].copy_from_slice(&call.to_le_bytes());
    CallIdentity { id: CallId::from_bytes(id), request_digest: 7, ttl: TTL }
}

fn settlement(id: CallId, receipt: &Receipt, cost: u64) -> CallSettlement {
    let adjustment = Adjustment::SetCost(cost);
    CallSettlement {
        id,
        owner: receipt.charges().first().map(|charge| charge.counter.clone()),
        value_digest: cost,
        ttl: TTL,
        reverted: receipt.charges_to_revert(adjustment).collect(),
        added: receipt.additional_charges(adjustment).collect(),
    }
}

/// Loses the replies of the next calls and then closes the connections, while `call` is in flight. Redis has then
/// carried out the call, and the caller does not know.
async fn lose_reply<T>(proxy: &Proxy, call: impl Future<Output = T>) -> T {
    let lost_before = proxy.corrupted();
    proxy.set_fault(ReplyFault::Drop);
    let close = async {
        poll_until("a reply is lost", LONG, async || proxy.corrupted() > lost_before).await;
        proxy.set_fault(ReplyFault::Pass);
        proxy.close_connections();
    };
    tokio::join!(call, close).0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_id_survives_lost_reply_once() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    let hits = [counter.hit()];
    // Redis knows the scripts afterwards: the reply that a script is unknown is not lost below.
    let ChargeOnceResult::Decided(result) =
        counter.store.charge_once_async(&hits, &identity(0)).await.unwrap()
    else {
        panic!("this is the first call")
    };
    counter.store.settle_async(&settlement(identity(0).id, &result.receipt, 3)).await.unwrap();
    for nth in 1..=repetitions(10) {
        let identity = identity(nth);
        let once = lose_reply(&proxy, counter.store.charge_once_async(&hits, &identity)).await;
        let ChargeOnceResult::Repeated { result: Some(result), .. } = once.unwrap() else {
            panic!("the reply to the first attempt was not lost");
        };
        let settlement = settlement(identity.id, &result.receipt, 3);
        let settled = lose_reply(&proxy, counter.store.settle_async(&settlement)).await;
        assert_eq!(settled, Ok(SettleResult::Repeated));
        assert_eq!(counter.used().await, 3 + 3 * nth);
    }
    assert!(!counter.store.is_breaker_open());
}

/// A denied call has no record by which its repetition would be found.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_with_id_that_charges_denied_requests_is_not_repeated() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    let hits = [Hit { charge: ChargeWhen::Always, ..counter.hit() }];
    counter.store.charge_once_async(&hits, &identity(0)).await.unwrap();
    for nth in 1..=repetitions(5) {
        let identity = identity(nth);
        let lost = lose_reply(&proxy, counter.store.charge_once_async(&hits, &identity)).await;
        assert!(matches!(lost, Err(StoreError::ConnectionLost(_))), "{lost:?}");
        assert_eq!(counter.used().await, 1 + nth);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn charge_without_id_is_not_repeated_after_lost_reply() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    counter.charge().await.unwrap();
    for nth in 1..=repetitions(10) {
        let lost = lose_reply(&proxy, counter.charge()).await;
        let error = lost.unwrap_err();
        assert!(matches!(error, StoreError::ConnectionLost(_)), "{error}");
        assert!(error.may_have_charged());
        assert!(error.to_string().starts_with("the connection to the store was lost"), "{error}");
        assert_eq!(counter.used().await, 1 + nth);
    }
    assert!(!counter.store.is_breaker_open(), "each connection was replaced");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peek_is_repeated_after_lost_reply() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let counter = Counter::open(&proxy.address(), LONG);
    counter.charge().await.unwrap();
    for _ in 0..repetitions(5) {
        assert_eq!(lose_reply(&proxy, counter.used()).await, 1);
    }
}

/// A store with a limit on requests in flight.
struct InFlight {
    store: RedisStore,
    scope: Scope,
    limit: Limit,
}

impl InFlight {
    fn open(address: &str) -> Self {
        let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
        Self {
            store: RedisStore::open(address, settings).unwrap(),
            scope: Scope::new("connections", "streams", "in-flight", &["user"]),
            limit: Limit::concurrent(1, TTL).unwrap(),
        }
    }

    async fn acquire(&self) -> Option<Receipt> {
        let hit = Hit::new(Key::new(&self.scope, &[Value::Text("ann")]), &self.limit, 1);
        let result = self.store.charge_async(&[hit]).await.unwrap();
        result.allowed.then_some(result.receipt)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permit_is_released_despite_lost_reply() {
    let redis = Redis::start();
    let proxy = Proxy::start(redis.port()).await;
    let in_flight = InFlight::open(&proxy.address());
    for _ in 0..repetitions(5) {
        let permit = in_flight.acquire().await.unwrap();
        let renew = in_flight.store.change_permit_async(&permit, PermitChange::Renew);
        assert_eq!(lose_reply(&proxy, renew).await, Ok(true));
        let release = in_flight.store.change_permit_async(&permit, PermitChange::Release);
        lose_reply(&proxy, release).await.unwrap();
    }
    let permit = in_flight.acquire().await.unwrap();
    lose_reply(&proxy, async { in_flight.store.revert_later(permit) }).await;
    let direct = InFlight::open(&redis.address());
    poll_until("the permit is released", LONG, async || direct.acquire().await.is_some()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_permit_is_released_after_restart() {
    let folder = Folder::new();
    // The server keeps its data.
    let mut redis = Redis::with_args(&["--dir", &folder.file("")]);
    let timeout = Duration::from_millis(100);
    let in_flight = InFlight::open(&redis.address());
    let permit = in_flight.acquire().await.unwrap();
    // Another store has a short timeout, so that its first attempts fail.
    let store =
        RedisStore::open(&redis.address(), RedisSettings { timeout, ..RedisSettings::default() })
            .unwrap();
    poll_until("the store is connected", LONG, async || store.is_reachable()).await;
    redis.command(&["SAVE"]);
    redis.kill();
    store.revert_later(permit);
    tokio::time::sleep(3 * timeout).await;
    redis.restart();
    poll_until("the permit is released", LONG, async || in_flight.acquire().await.is_some()).await;
}

/// A policy with a reservation and a limit on requests in flight, over a connection that is closed before each step.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn guards_succeed_after_idle_close() {
    let redis = Redis::start();
    let policy = Policy::from_yaml(
        "rules:
  - { name: tokens, when: { kind: tokens }, per: [user], limits: [10000000/h] , on_store_error: deny }
  - { name: streams, when: { kind: stream }, per: [user], limits: [{ concurrent: 1, permit_ttl: 600s }], on_store_error: deny }",
    );
    let settings = RedisSettings { timeout: LONG, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let gate = Gate::new(policy.unwrap(), store);
    let request = |kind, cost| {
        let descriptor = Descriptor::new([("user", "ann"), ("kind", kind)]);
        Request::new("default", descriptor.cost(cost))
    };
    let mut used = 0;
    for _ in 0..repetitions(5) {
        redis.close_client_connections();
        let decision = gate.check_async(&request("tokens", 999)).await;
        assert!(decision.is_allowed() && !decision.is_degraded());
        redis.close_client_connections();
        gate.settle_async(&decision, 500).await.unwrap();
        used += 500;
        redis.close_client_connections();
        let guard = gate.acquire_async(&request("stream", 1)).await.unwrap();
        redis.close_client_connections();
        drop(guard);
        poll_until("the permit is released", LONG, async || {
            let Ok(guard) = gate.acquire_async(&request("stream", 1)).await else { return false };
            // A release in the background would be in flight when the connections are closed next.
            guard.release_async().await.unwrap()
        })
        .await;
    }
    let peeked = gate.peek_async(&request("tokens", 0)).await;
    assert_eq!(peeked.remaining(), 10_000_000 - used);
}
