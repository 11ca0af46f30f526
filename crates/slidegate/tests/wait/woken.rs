//! Waiting calls that are woken by released permits and returned units. Polls for permits begin 100, 300, 700 and
//! 1,500 ms after the first decision, and up to 20 % later: no test frees capacity near these times.

use std::rc::Rc;
use std::time::Duration;

use slidegate::gate::ReservedCall;
use slidegate::store::CallId;
use slidegate::wait::WaitOptions;
use slidegate::{
    Check, Decision, Descriptor, Gate, MemoryStore, Permit, Policy, Reason, Request, Store,
};
use tokio::task::spawn_local;
use tokio::time::sleep;

use crate::wait::fixture::{RemoteStore, TokioClock, ms, new_exact_limiter, run_on_paused_time};

const IN_FLIGHT: &str = "
rules:
  - { name: streams, per: [user], limits: [{ name: in-flight, concurrent: 1, permit_ttl: 60s }] }
";

const UNITS: &str = "
rules: [{ name: units, per: [user], limits: [10/min], algorithm: sliding_log }]
";

/// A time at which no call polls.
const FREED_AT: u64 = 1_000;

fn gate<S: Store>(policy: &str, store: S) -> Gate<S> {
    Gate::new(Policy::from_yaml(policy).unwrap(), store)
}

fn local_gate(policy: &str) -> (TokioClock, Gate<MemoryStore<TokioClock>>) {
    let clock = TokioClock::new();
    (clock, gate(policy, MemoryStore::with_clock(clock, 1_000)))
}

fn remote_gate(policy: &str) -> (TokioClock, RemoteStore, Gate<RemoteStore>) {
    let clock = TokioClock::new();
    let store = RemoteStore::new(clock);
    (clock, store.clone(), gate(policy, store))
}

fn request(cost: u64) -> Request<'static> {
    Request::new("default", Descriptor::new([("user", "ann")]).cost(cost))
}

/// Waits for a request, and returns its decision and the time of the decision in milliseconds.
async fn wait_until_decided<S: Store>(
    gate: &Gate<S>,
    clock: TokioClock,
    cost: u64,
    max_wait: Duration,
) -> (Decision<'static>, u64) {
    let decision = gate.check_async(&request(cost).with_max_wait(max_wait)).await;
    (decision, clock.elapsed_ms())
}

fn permit_of(decision: &Decision<'_>) -> Permit {
    decision.permit().unwrap()
}

#[test]
fn released_permit_admits_waiting_calls_in_order_of_arrival() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        let held = permit_of(&gate.check(&request(1)));
        let hold = async |arrival: u64| {
            sleep(ms(arrival)).await;
            let (decision, at) = wait_until_decided(&gate, clock, 1, ms(5_000)).await;
            sleep(ms(10)).await;
            assert!(permit_of(&decision).release(&gate));
            at
        };
        let release = async {
            sleep(ms(FREED_AT)).await;
            assert!(held.release(&gate));
        };
        let admitted = tokio::join!(hold(1), hold(2), hold(3), release);
        assert_eq!(admitted, (1_000, 1_010, 1_020, ()));
        let stats = gate.stats().waits;
        assert_eq!((stats.admitted, stats.timed_out, stats.waiting), (3, 0, 0));
        assert!(gate.check(&request(1)).is_allowed(), "no permit is lost");
    });
}

#[test]
fn each_release_of_a_permit_wakes_waiting_call() {
    type Release = fn(&Gate<MemoryStore<TokioClock>>, Permit);
    let ways: [Release; 3] = [
        |gate, permit| assert!(permit.release(gate)),
        |gate, permit| permit.release_later(gate),
        |gate, permit| assert!(slidegate::testkit::block_on(permit.release_async(gate)).unwrap()),
    ];
    for (nth, release) in ways.into_iter().enumerate() {
        run_on_paused_time(async {
            let (clock, gate) = local_gate(IN_FLIGHT);
            let held = permit_of(&gate.check(&request(1)));
            let free = async {
                sleep(ms(FREED_AT)).await;
                release(&gate, held);
            };
            let (waited, ()) = tokio::join!(wait_until_decided(&gate, clock, 1, ms(5_000)), free);
            assert_eq!((waited.0.is_allowed(), waited.1), (true, FREED_AT), "way {nth}");
        });
    }
}

#[test]
fn dropped_guard_wakes_waiting_call() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        let guard = gate.acquire(&request(1)).unwrap();
        let free = async {
            sleep(ms(FREED_AT)).await;
            drop(guard);
        };
        let (waited, ()) = tokio::join!(wait_until_decided(&gate, clock, 1, ms(5_000)), free);
        assert_eq!((waited.0.is_allowed(), waited.1), (true, FREED_AT));
    });
}

#[test]
fn permit_released_in_background_is_noticed_soon() {
    run_on_paused_time(async {
        let (clock, _, gate) = remote_gate(IN_FLIGHT);
        let guard = gate.acquire_async(&request(1)).await.unwrap();
        let free = async {
            sleep(ms(3_500)).await;
            drop(guard);
        };
        let (waited, ()) = tokio::join!(wait_until_decided(&gate, clock, 1, ms(9_000)), free);
        // Woken before the permit is free, and then 100 ms later.
        assert!(waited.0.is_allowed() && waited.1 <= 3_502 + 130, "{}", waited.1);
    });
}

#[test]
fn permits_released_elsewhere_are_polled_with_few_calls() {
    run_on_paused_time(async {
        let (clock, store, first) = remote_gate(IN_FLIGHT);
        let second = gate(IN_FLIGHT, store.clone());
        let held = permit_of(&first.check_async(&request(1)).await);
        let before = store.calls();
        let free = async {
            sleep(ms(30_500)).await;
            assert!(held.release_async(&first).await.unwrap());
        };
        let (waited, ()) = tokio::join!(wait_until_decided(&second, clock, 1, ms(59_000)), free);
        assert!(waited.0.is_allowed() && waited.1 <= 30_500 + 1_210, "{}", waited.1);
        // Five polls within 2.5 s, then at most one each second, and the release.
        assert!((26..=36).contains(&(store.calls() - before)), "{}", store.calls());
    });
}

#[test]
fn expired_permit_admits_waiting_call() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        assert!(gate.check(&request(1)).is_allowed());
        let (decision, at) = wait_until_decided(&gate, clock, 1, ms(70_000)).await;
        assert!(decision.is_allowed() && (60_000..=61_210).contains(&at), "{at}");
    });
}

#[test]
fn wait_for_permit_ends_at_its_deadline() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        let held = permit_of(&gate.check(&request(1)));
        let first = wait_until_decided(&gate, clock, 1, ms(950));
        let behind = async {
            sleep(ms(1)).await;
            wait_until_decided(&gate, clock, 1, ms(40)).await
        };
        let (first, behind) = tokio::join!(first, behind);
        assert_eq!((first.1, behind.1), (950, 41));
        for denied in [first.0, behind.0] {
            assert_eq!(denied.reason(), Some(Reason::ConcurrencyExceeded));
            assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None));
        }
        assert_eq!(gate.stats().waits.timed_out, 2);
        assert!(held.release(&gate) && gate.check(&request(1)).is_allowed());
    });
}

#[test]
fn rate_and_permit_are_both_waited_for() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(
            "
rules:
  - name: streams
    algorithm: sliding_log
    limits: [1/2s, { name: in-flight, concurrent: 1, permit_ttl: 60s }]
",
        );
        let held = permit_of(&gate.check(&request(1)));
        let free = async {
            sleep(ms(500)).await;
            assert!(held.release(&gate));
        };
        let early = gate.check_async(&request(1).with_max_wait(ms(1_500))).await;
        assert_eq!((early.reason(), clock.elapsed_ms()), (Some(Reason::LimitExceeded), 0));
        let (waited, ()) = tokio::join!(wait_until_decided(&gate, clock, 1, ms(5_000)), free);
        assert_eq!((waited.0.is_allowed(), waited.1), (true, 2_000), "the rate comes last");
    });
}

#[test]
fn woken_call_that_is_dropped_passes_its_turn_on() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        let gate = Rc::new(gate);
        let held = permit_of(&gate.check(&request(1)));
        let wait =
            |gate: Rc<_>| async move { wait_until_decided(&gate, clock, 1, ms(5_000)).await };
        let dropped = spawn_local(wait(gate.clone()));
        sleep(ms(1)).await;
        let next = spawn_local(wait(gate.clone()));
        sleep(ms(FREED_AT - 1)).await;
        assert!(held.release(&gate));
        dropped.abort();
        assert!(dropped.await.unwrap_err().is_cancelled());
        let (decision, at) = next.await.unwrap();
        assert_eq!((decision.is_allowed(), at), (true, FREED_AT));
        let stats = gate.stats().waits;
        assert_eq!((stats.admitted, stats.cancelled, stats.waiting), (1, 1, 0));
        assert!(permit_of(&decision).release(&gate));
        assert!(gate.check(&request(1)).is_allowed(), "the dropped call has taken no permit");
    });
}

#[test]
fn full_queue_of_permits_has_its_own_reason() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(IN_FLIGHT);
        let gate = gate
            .with_wait_options(WaitOptions { max_waiting_per_key: 1, ..WaitOptions::default() });
        let held = permit_of(&gate.check(&request(1)));
        let full = async {
            sleep(ms(1)).await;
            let denied = gate.check_async(&request(1).with_max_wait(ms(5_000))).await;
            assert_eq!(
                (denied.reason(), denied.retry_after(), clock.elapsed_ms()),
                (Some(Reason::WaitQueueFull), None, 1)
            );
            assert!(held.release(&gate));
        };
        let (waited, ()) = tokio::join!(wait_until_decided(&gate, clock, 1, ms(5_000)), full);
        assert!(waited.0.is_allowed());
    });
}

/// Charges ten units, and returns three with `free` while two calls wait. The first needs three units.
async fn assert_returned_units_wake<S: Store>(
    (clock, gate): (TokioClock, Gate<S>),
    freed_at: impl Fn(u64) -> u64,
    free: impl AsyncFn(&Gate<S>, &Decision<'static>),
) {
    assert!(gate.check_async(&request(7)).await.is_allowed());
    let charged = gate.check_async(&request(3)).await;
    let free = async {
        sleep(ms(FREED_AT)).await;
        free(&gate, &charged).await;
    };
    let started = clock.elapsed_ms();
    let second = async {
        sleep(ms(10)).await;
        gate.check_async(&request(1).with_max_wait(ms(60_500))).await
    };
    let first = wait_until_decided(&gate, clock, 3, ms(60_500));
    let (first, second, ()) = tokio::join!(first, second, free);
    assert_eq!((first.0.is_allowed(), first.1 - started), (true, freed_at(FREED_AT)));
    // The first call takes the units that were returned: the second one waits for the window.
    assert!(second.is_allowed() && clock.elapsed_ms() >= 60_000);
    assert_eq!(gate.stats().waits.waiting, 0);
}

#[test]
fn returned_units_wake_first_waiting_call() {
    let reserved =
        |decision: &Decision<'_>| ReservedCall::from_decision(CallId::unique(), decision);
    run_on_paused_time(async {
        let local = || local_gate(UNITS);
        let same = |at| at;
        assert_returned_units_wake(local(), same, async |gate, charged| gate.revert(charged)).await;
        assert_returned_units_wake(local(), same, async |gate, charged| gate.settle(charged, 0))
            .await;
        assert_returned_units_wake(local(), same, async |gate, _| gate.refund(&request(3))).await;
        assert_returned_units_wake(local(), same, async |gate, charged| {
            let settled = reserved(charged).settle_async(gate, &0.into(), ms(60_000), false).await;
            settled.unwrap();
        })
        .await;
        let refund = || {
            let three = Descriptor::new([("user", "ann")]).cost(3).as_refund();
            Request::new("default", three)
        };
        assert_returned_units_wake(local(), same, async |gate, _| {
            assert!(gate.check(&refund()).is_allowed());
        })
        .await;
        let remote = || {
            let (clock, _, gate) = remote_gate(UNITS);
            (clock, gate)
        };
        // The round trips of the change and of the decision.
        let later = |at| at + 4;
        assert_returned_units_wake(remote(), later, async |gate, charged| {
            gate.revert_async(charged).await.unwrap();
        })
        .await;
        assert_returned_units_wake(remote(), later, async |gate, charged| {
            gate.settle_async(charged, 0).await.unwrap();
        })
        .await;
        assert_returned_units_wake(remote(), later, async |gate, charged| {
            let settled = reserved(charged).settle_async(gate, &0.into(), ms(60_000), false).await;
            settled.unwrap();
        })
        .await;
        assert_returned_units_wake(remote(), later, async |gate, _| {
            assert!(gate.check_async(&refund()).await.is_allowed());
        })
        .await;
        assert_returned_units_wake(remote(), later, async |gate, _| {
            gate.refund_async(&request(3)).await.unwrap();
        })
        .await;
    });
}

#[test]
fn reservation_wakes_waiting_call() {
    run_on_paused_time(async {
        for is_settled in [true, false] {
            let (clock, gate) = local_gate(UNITS);
            let reservation = gate.reserve(&request(10)).unwrap();
            let free = async {
                sleep(ms(FREED_AT)).await;
                if is_settled { reservation.settle(4) } else { drop(reservation) }
            };
            let waited = wait_until_decided(&gate, clock, 6, ms(60_500));
            let (waited, ()) = tokio::join!(waited, free);
            assert_eq!((waited.0.is_allowed(), waited.1), (true, FREED_AT), "{is_settled}");
            let used = if is_settled { 10 } else { 6 };
            assert_eq!(gate.peek(&request(1)).remaining(), 10 - used, "charged once");
        }
    });
}

#[test]
fn settlement_and_revert_of_limiter_wake_waiting_call() {
    run_on_paused_time(async {
        for is_async in [true, false] {
            let (clock, limiter) = new_exact_limiter(&["10/min"]);
            let decisions = [
                limiter.check(Check::new("key").cost(6)),
                limiter.check(Check::new("key").cost(4)),
            ];
            let free = async {
                sleep(ms(70)).await;
                if is_async {
                    limiter.settle_async(&decisions[0], 1).await.unwrap()
                } else {
                    limiter.settle(&decisions[0], 1)
                }
                sleep(ms(30)).await;
                if is_async {
                    limiter.revert_async(&decisions[1]).await.unwrap()
                } else {
                    limiter.revert(&decisions[1])
                }
            };
            let wait = async |cost| {
                let decision =
                    limiter.check_async(Check::new("key").cost(cost).max_wait(ms(60_500))).await;
                (decision.is_allowed(), clock.elapsed_ms())
            };
            let waited = tokio::join!(wait(5), wait(4), free);
            assert_eq!(waited, ((true, 70), (true, 100), ()), "{is_async}");
            assert_eq!(limiter.peek("key").remaining(), 0, "charged once");
        }
    });
}

#[test]
fn other_keys_and_larger_settlements_wake_nobody() {
    run_on_paused_time(async {
        let (_, store, gate) = remote_gate(UNITS);
        let bob = || Request::new("default", Descriptor::new([("user", "bob")]).cost(4));
        let decisions = [gate.check_async(&bob()).await, gate.check_async(&request(9)).await];
        let free = async {
            sleep(ms(FREED_AT)).await;
            let before = store.calls();
            gate.revert_async(&decisions[0]).await.unwrap();
            gate.settle_async(&decisions[1], 12).await.unwrap();
            sleep(ms(100)).await;
            assert_eq!(store.calls() - before, 2, "only the changes");
        };
        let five = request(5);
        let five = five.with_max_wait(ms(60_000));
        let waited = gate.check_async(&five);
        assert!(tokio::join!(waited, free).0.is_allowed());
    });
}

/// Without a second decision, the call would sleep although the units are free.
#[test]
fn units_returned_during_first_decision_are_noticed() {
    run_on_paused_time(async {
        for policy in [IN_FLIGHT, UNITS] {
            let clock = TokioClock::new();
            let store = RemoteStore::new(clock).with_charge_response(ms(50));
            let gate = gate(policy, store.clone());
            let charged = gate.check_async(&request(10)).await;
            let (before, started) = (store.calls(), clock.elapsed_ms());
            let free = async {
                sleep(ms(10)).await;
                match charged.permit() {
                    Some(permit) => assert!(permit.release_async(&gate).await.unwrap()),
                    None => gate.revert_async(&charged).await.unwrap(),
                }
            };
            let waited = wait_until_decided(&gate, clock, 10, ms(61_000));
            let (waited, ()) = tokio::join!(waited, free);
            assert_eq!((waited.0.is_allowed(), waited.1 - started), (true, 102));
            assert_eq!(store.calls() - before, 3, "two decisions, and one change");
        }
    });
}

#[test]
fn call_that_waits_for_settlements_is_admitted_by_one() {
    run_on_paused_time(async {
        let (clock, gate) = local_gate(UNITS);
        let first = gate.check(&request(10));
        let call = |max_wait| request(4).with_max_wait(max_wait).waiting_for_settlements();
        let denied = gate.check_async(&request(4).with_max_wait(ms(5_000))).await;
        assert_eq!((denied.is_allowed(), clock.elapsed_ms()), (false, 0), "denied at once");
        let wait = async {
            let decision = gate.check_async(&call(ms(5_000))).await;
            (decision.is_allowed(), clock.elapsed_ms())
        };
        let settle = async {
            sleep(ms(FREED_AT)).await;
            gate.settle(&first, 6);
        };
        assert_eq!(tokio::join!(wait, settle), ((true, FREED_AT), ()));
        let denied = gate.check_async(&call(ms(500))).await;
        assert_eq!((denied.is_allowed(), clock.elapsed_ms()), (false, FREED_AT + 500));
        let too_large = request(11).with_max_wait(ms(500)).waiting_for_settlements();
        let denied = gate.check_async(&too_large).await;
        assert_eq!(denied.reason(), Some(Reason::CostExceedsMax));
        assert_eq!(clock.elapsed_ms(), FREED_AT + 500, "a cost that never fits does not wait");
    });
}
