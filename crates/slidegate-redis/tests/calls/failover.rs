//! Calls and settlements while a Sentinel service fails over.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::{ChargeOnceResult, ChargeResult, SettleResult};
use slidegate::{ManualClock, Store, StoreError};
use slidegate_redis::{RedisSettings, RedisStore};
use tokio::runtime::Handle;

use super::fixture::{TestRequest, decided, identity, settlement};
use crate::server::sentinel::{Service, master_named_by};
use crate::server::wait_until;

/// The number of calls that are settled during the failover. As many other calls are charged during it.
const CALLS: u8 = 60;
const RESERVED_UNITS: u64 = 10;
const ACTUAL_UNITS: u64 = 3;

/// Repeats a call to the store until it succeeds.
async fn repeat_until_ok<T>(mut call: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    loop {
        match call().await {
            Ok(result) => return result,
            Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
        }
    }
}

/// Charges a call with an id until the store responds.
async fn charge(store: &RedisStore, request: &TestRequest, call: u8, cost: u64) -> ChargeResult {
    let hits = request.hits(cost);
    match repeat_until_ok(async || store.charge_once_async(&hits, &identity(call)).await).await {
        ChargeOnceResult::Decided(result)
        | ChargeOnceResult::Repeated { result: Some(result), .. } => result,
        other => panic!("{other:?}"),
    }
}

/// The master is killed while settlements and calls are repeated. It has carried out some that the new master
/// does not know. The new master applies them when they are repeated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_during_failover_are_applied_once() {
    let mut service = Service::start();
    let settings =
        RedisSettings { timeout: Duration::from_millis(500), ..RedisSettings::default() };
    // The clock is constant, because a revert keeps the units that may have leaked from a token bucket since the charge.
    let store =
        RedisStore::open(&service.address(), settings).unwrap().with_clock(ManualClock::default());
    let reserved = TestRequest::new(1);
    let mut settlements = Vec::new();
    for call in 1..=CALLS {
        let hits = reserved.hits(RESERVED_UNITS);
        let result = store.charge_once_async(&hits, &identity(call)).await.unwrap();
        settlements.push(settlement(call, &decided(result).receipt, ACTUAL_UNITS));
    }
    let mut connection = service.master().connection();
    redis::cmd("SET").arg("last").arg(1).exec(&mut connection).unwrap();
    let replicas: u64 = redis::cmd("WAIT").arg(1).arg(30_000).query(&mut connection).unwrap();
    assert_eq!(replicas, 1, "the replica has all reservations");

    let charged = TestRequest::new(1).of_client("bob");
    let (applied, has_failed_over) = (&AtomicUsize::new(0), &AtomicBool::new(false));
    let apply_all = async || {
        loop {
            // The last round begins after the failover.
            let is_last = has_failed_over.load(Ordering::SeqCst);
            for (call, settlement) in (CALLS + 1..).zip(&settlements) {
                let settled = repeat_until_ok(async || store.settle_async(settlement).await).await;
                assert!(
                    matches!(settled, SettleResult::Settled | SettleResult::Repeated),
                    "{settled:?}"
                );
                assert!(charge(&store, &charged, call, 1).await.allowed);
                applied.fetch_add(1, Ordering::SeqCst);
            }
            if is_last {
                return;
            }
        }
    };
    let fail_over = || {
        wait_until("some calls are applied", || applied.load(Ordering::SeqCst) > 20);
        service.master_mut().kill();
        wait_until("the Sentinels report the new master", || {
            let new = Some(service.replica().port());
            service.sentinels.iter().all(|sentinel| master_named_by(sentinel) == new)
        });
        has_failed_over.store(true, Ordering::SeqCst);
    };
    std::thread::scope(|scope| {
        scope.spawn(fail_over);
        let callers = join_all((0..3).map(|_| apply_all()));
        tokio::task::block_in_place(|| Handle::current().block_on(callers))
    });
    assert_eq!(reserved.used(&store).await, [ACTUAL_UNITS * u64::from(CALLS); 6]);
    assert_eq!(charged.used(&store).await, [u64::from(CALLS); 6]);
}
