//! Tests of calls with an idempotency key and of reservations: nothing is charged or settled twice, whatever is
//! repeated.

use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use slidegate::gate::ReservedCall;
use slidegate::store::{CallId, LocalCountsOptions, SettleResult};
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    ActualCosts, Descriptor, Gate, IdempotencyKey, ManualClock, MemoryStore, Policy, Reason,
    Request,
};

const POLICY: &str = "
rules:
  - { name: requests, per: [user], limits: [1000/h], cost: 1, on_store_error: deny }
  - { name: tokens, per: [user], limits: [100000/h, 900000/d], cost: tokens, on_store_error: deny }
";

fn policy() -> Policy {
    Policy::from_yaml(POLICY).unwrap()
}

fn request(tokens: u64) -> Request<'static> {
    let descriptor = Descriptor::new([("user", "ann"), ("path", "/v1")]);
    Request::new("default", descriptor.with_cost("tokens", tokens))
}

/// Returns the units in use of each limit.
fn used<S: slidegate::Store>(gate: &Gate<S>) -> Vec<u64> {
    loop {
        let decision = block_on(gate.peek_async(&request(0)));
        if !decision.is_degraded() {
            let used =
                |status: slidegate::LimitStatus<'_>| status.limit().capacity() - status.remaining();
            return decision.limits().map(used).collect();
        }
    }
}

#[test]
fn order_of_attributes_does_not_matter() {
    let gate = Gate::new(policy(), MemoryStore::new());
    let key = IdempotencyKey::new("a");
    let swapped = Descriptor::new([("path", "/v1"), ("user", "ann")]).with_cost("tokens", 5);
    assert!(gate.check(&request(5).with_idempotency_key(key)).is_allowed());
    assert!(gate.check(&Request::new("default", swapped).with_idempotency_key(key)).is_allowed());
    assert_eq!(used(&gate), [1, 5, 5]);
    for other in [
        request(6),
        Request::new("default", Descriptor::new([("user", "ann")]).with_cost("tokens", 5)),
        Request::new(
            "default",
            Descriptor::new([("user", "ann"), ("path", "/v2")]).with_cost("tokens", 5),
        ),
    ] {
        let denied = gate.check(&other.with_idempotency_key(key));
        assert_eq!(denied.reason(), Some(Reason::IdempotencyKeyReused));
        assert!(!denied.is_allowed());
    }
}

#[test]
fn repetition_under_other_policy_is_admitted_without_limits() {
    let gate = Gate::new(policy(), MemoryStore::new());
    let key = IdempotencyKey::new("a");
    assert!(gate.check(&request(5).with_idempotency_key(key)).is_allowed());
    gate.replace_policy(Policy::from_yaml(&POLICY.replace("1000/h", "2000/h")).unwrap());
    let repeated = gate.check(&request(5).with_idempotency_key(key));
    assert!(repeated.is_allowed() && repeated.receipt().is_empty());
    assert_eq!(repeated.limits().count(), 0);
    assert_eq!(used(&gate), [1, 5, 5]);
}

#[test]
fn call_is_forgotten_after_its_time() {
    let clock = ManualClock::default();
    let gate = Gate::new(policy(), MemoryStore::with_clock(clock.clone(), 100));
    let key = IdempotencyKey::new("a");
    for (seconds, used_tokens) in [(0, 5), (599, 5), (1, 10)] {
        clock.advance(Duration::from_secs(seconds));
        assert!(gate.check(&request(5).with_idempotency_key(key)).is_allowed());
        assert_eq!(used(&gate)[1], used_tokens);
    }
}

#[test]
fn refund_with_idempotency_key_is_rejected() {
    let gate = Gate::new(policy(), MemoryStore::new());
    let refund = Request::new("default", Descriptor::new([("user", "ann")]).as_refund());
    let key = IdempotencyKey::new("a");
    let denied = gate.check(&refund.with_idempotency_key(key));
    assert_eq!(denied.reason(), Some(Reason::RefundWithIdempotencyKey));
}

#[test]
fn concurrent_repetitions_are_charged_once() {
    let gate = Gate::new(policy(), MemoryStore::new());
    let settled = AtomicU32::new(0);
    for round in 1..=200_u64 {
        let text = format!("call {round}");
        let key = IdempotencyKey::new(&text);
        let call = thread::scope(|scope| {
            let check = || {
                let decision = gate.check(&request(10).with_idempotency_key(key));
                ReservedCall::from_decision(CallId::from_bytes([round as u8; 16]), &decision)
            };
            let threads = [(); 4].map(|()| scope.spawn(check));
            let calls = threads.map(|thread| thread.join().unwrap());
            assert!(calls.iter().all(|call| *call == calls[0]));
            calls.into_iter().next().unwrap()
        });
        assert_eq!(used(&gate), [round, 7 * (round - 1) + 10, 7 * (round - 1) + 10]);
        let actual = ActualCosts::new().with_cost("tokens", 7);
        let ttl = Duration::from_secs(600);
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let result = block_on(call.settle_async(&gate, &actual, ttl, false)).unwrap();
                    settled
                        .fetch_add(u32::from(result == SettleResult::Settled), Ordering::Relaxed);
                });
            }
        });
        assert_eq!(used(&gate), [round, 7 * round, 7 * round]);
        assert_eq!(u64::from(settled.load(Ordering::Relaxed)), round);
    }
}

/// A caller that repeats each call until it gets a decision, over a store that loses calls before and after it charges.
#[test]
fn repeated_calls_over_faulty_store_are_charged_once() {
    for seed in 0..20 {
        let clock = ManualClock::default();
        let faults = Faults { unavailable: 20, lost_before: 20, lost_after: 30 };
        let gate = Gate::new(policy(), FaultyStore::new(&clock, 3, faults, seed));
        let mut tokens = 0;
        for round in 0..40_u64 {
            let text = format!("call {round}");
            let key = IdempotencyKey::new(&text);
            let decision = loop {
                let decision = block_on(gate.check_async(&request(100).with_idempotency_key(key)));
                // A degraded decision denies, because of `on_store_error: deny`.
                if decision.is_allowed() {
                    break decision;
                }
                assert!(decision.is_degraded());
            };
            let id = request(100).with_idempotency_key(key).call_identity().unwrap().id;
            let call = ReservedCall::from_decision(id, &decision);
            let actual = ActualCosts::new().with_cost("tokens", 50 + 10 * (round % 10));
            let ttl = Duration::from_secs(600);
            let mut successes = 0;
            while successes < 3 {
                if let Ok(result) = block_on(call.settle_async(&gate, &actual, ttl, false)) {
                    assert!(matches!(result, SettleResult::Settled | SettleResult::Repeated));
                    successes += 1;
                }
            }
            let again = block_on(gate.check_async(&request(100).with_idempotency_key(key)));
            assert!(again.is_allowed() || again.is_degraded());
            tokens += 50 + 10 * (round % 10);
            assert_eq!(used(&gate), [round + 1, tokens, tokens], "seed {seed}");
        }
    }
}

#[test]
fn dropped_reservation_reverts_its_charges() {
    let clock = ManualClock::default();
    let memory = Gate::new(policy(), MemoryStore::with_clock(clock.clone(), 100));
    let remote = Gate::new(policy(), FaultyStore::new(&clock, 3, Faults::default(), 1));
    drop(memory.reserve(&request(700)).unwrap());
    drop(block_on(remote.reserve_async(&request(700))).unwrap());
    assert_eq!((used(&memory), used(&remote)), (vec![0; 3], vec![0; 3]));

    let actual = ActualCosts::new().with_cost("tokens", 200);
    memory.reserve(&request(700)).unwrap().settle(&actual);
    let reservation = block_on(remote.reserve_async(&request(700))).unwrap();
    assert!(reservation.decision().is_allowed());
    block_on(reservation.settle_async(&actual)).unwrap();
    assert_eq!((used(&memory), used(&remote)), (vec![1, 200, 200], vec![1, 200, 200]));

    memory.reserve(&request(700)).unwrap().keep();
    assert_eq!(used(&memory), [2, 900, 900]);
    assert!(memory.reserve(&request(100_000)).is_err());
    assert_eq!(used(&memory), [2, 900, 900]);
}

#[test]
fn dropped_reservation_with_key_is_settled_by_repetition() {
    let gate = Gate::new(policy(), MemoryStore::with_clock(ManualClock::default(), 100));
    let request = request(700).with_idempotency_key(IdempotencyKey::new("a"));
    drop(gate.reserve(&request).unwrap());
    assert_eq!(used(&gate), [1, 700, 700], "the repetition is charged nothing");
    let repeated = gate.reserve(&request).unwrap();
    assert!(repeated.decision().repeated_after().is_some());
    repeated.settle(ActualCosts::new().with_cost("tokens", 100));
    assert_eq!(used(&gate), [1, 100, 100]);
}

/// While the store is unavailable, the fallback remembers calls.
#[test]
fn degraded_calls_are_charged_once() {
    let clock = ManualClock::default();
    let lost = Faults { unavailable: 100, ..Faults::default() };
    let local = POLICY.replace("on_store_error: deny", "on_store_error: local");
    let gate = Gate::new(Policy::from_yaml(&local).unwrap(), FaultyStore::new(&clock, 1, lost, 1))
        .with_local_counts(LocalCountsOptions::with_clock(clock.clone()));
    let key = IdempotencyKey::new("a");
    for _ in 0..3 {
        let decision = block_on(gate.check_async(&request(60_000).with_idempotency_key(key)));
        assert!(decision.is_allowed() && decision.is_degraded());
    }
    let decision = block_on(gate.check_async(&request(60_000).with_idempotency_key(key)));
    let call = ReservedCall::from_decision(
        request(0).with_idempotency_key(key).call_identity().unwrap().id,
        &decision,
    );
    let actual = ActualCosts::new().with_cost("tokens", 10_000);
    for expected in [SettleResult::Settled, SettleResult::Repeated] {
        let settled = call.settle_async(&gate, &actual, Duration::from_secs(600), true);
        assert_eq!(block_on(settled).unwrap(), expected);
    }
    let peek = block_on(gate.peek_async(&request(0)));
    let remaining: Vec<u64> = peek.limits().map(|status| status.remaining()).collect();
    assert_eq!(remaining, [999, 90_000, 890_000]);
}
