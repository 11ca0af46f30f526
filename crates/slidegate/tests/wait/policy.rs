//! Waiting requests to a gate.

use slidegate::wait::WaitOptions;
use slidegate::{Descriptor, Gate, IdempotencyKey, MemoryStore, Policy, Reason, Request};
use tokio::time::{sleep, timeout};

use crate::wait::fixture::{TokioClock, ms, run_on_paused_time};

fn new_gate(policy: &str) -> (TokioClock, Gate<MemoryStore<TokioClock>>) {
    let clock = TokioClock::new();
    let policy = Policy::from_yaml(policy).unwrap();
    (clock, Gate::new(policy, MemoryStore::with_clock(clock, 1_000)))
}

fn request() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme")]))
}

#[test]
fn rule_that_always_charges_does_not_wait() {
    run_on_paused_time(async {
        let (clock, gate) =
            new_gate("rules: [{ name: a, limits: [2/s], charge: always, algorithm: sliding_log }]");
        for expected in [true, true, false] {
            let decision = gate.check_async(&request().with_max_wait(ms(5_000))).await;
            assert_eq!((decision.is_allowed(), clock.elapsed_ms()), (expected, 0));
        }
        // The denied request was charged once.
        sleep(ms(1_001)).await;
        assert_eq!(gate.peek(&request()).remaining(), 2);
    });
}

#[test]
fn request_with_refund_is_decided_once() {
    run_on_paused_time(async {
        let (clock, gate) = new_gate(
            "
defaults: { algorithm: sliding_log }
rules:
  - { name: used, when: { kind: used }, limits: [10/s] }
  - { name: other, when: { kind: other }, limits: [1/s] }
",
        );
        let descriptor = |kind| Descriptor::new([("kind", kind)]);
        let used = || Request::new("default", descriptor("used").cost(8));
        assert!(gate.check(&used()).is_allowed());
        assert!(gate.check(&Request::new("default", descriptor("other"))).is_allowed());
        let both = [descriptor("used").cost(1).as_refund(), descriptor("other")];
        let both = Request::with_descriptors("default", both);
        assert!(!gate.check_async(&both.clone().with_max_wait(ms(5_000))).await.is_allowed());
        assert_eq!(clock.elapsed_ms(), 0);
        assert_eq!(gate.peek(&used()).remaining(), 3, "refunded once");
    });
}

#[test]
fn larger_limit_of_new_policy_admits_waiting_request() {
    run_on_paused_time(async {
        let policy =
            |max| format!("rules: [{{ name: a, limits: [{max}/min], algorithm: sliding_log }}]");
        let (clock, gate) = new_gate(&policy(1));
        assert!(gate.check(&request()).is_allowed());
        let waiting = async {
            assert!(gate.wait_async(&request()).await.is_ok());
            clock.elapsed_ms()
        };
        let reload = async {
            sleep(ms(30)).await;
            gate.replace_policy(Policy::from_yaml(&policy(2)).unwrap());
        };
        assert_eq!(tokio::join!(waiting, reload).0, 30);
    });
}

#[test]
fn wait_ends_when_new_policy_charges_denied_requests() {
    run_on_paused_time(async {
        let policy = |more| {
            let policy =
                format!("rules: [{{ name: a, limits: [2/s]{more}, algorithm: sliding_log }}]");
            Policy::from_yaml(&policy).unwrap()
        };
        let (clock, gate) = new_gate("rules: [{ name: a, limits: [1/h], algorithm: sliding_log }]");
        assert!(gate.check(&request()).is_allowed());
        let waiting = async {
            let is_allowed = gate.wait_async(&request()).await.is_ok();
            (is_allowed, clock.elapsed_ms())
        };
        let reload = async {
            sleep(ms(30)).await;
            // Fills the counter of the new policy before the waiting request is decided by it.
            gate.replace_policy(policy(", charge: always"));
            let _ = gate.report(&Request::new("default", Descriptor::new([]).cost(2)));
        };
        assert_eq!(tokio::join!(waiting, reload).0, (false, 30));
        sleep(ms(1_001)).await;
        assert_eq!(gate.peek(&request()).remaining(), 2);
    });
}

#[test]
fn banned_and_observed_requests_do_not_wait() {
    run_on_paused_time(async {
        let (clock, gate) = new_gate("rules: [{ name: a, limits: denied }]");
        let banned = gate.check_async(&request().with_max_wait(ms(5_000))).await;
        assert_eq!((banned.reason(), banned.retry_after()), (Some(Reason::Banned), None));
        gate.replace_policy(
            Policy::from_yaml("rules: [{ name: a, limits: [1/s], mode: observe }]").unwrap(),
        );
        for _ in 0..3 {
            assert!(gate.check_async(&request().with_max_wait(ms(5_000))).await.is_allowed());
        }
        assert_eq!(clock.elapsed_ms(), 0);
    });
}

#[test]
fn max_of_zero_bans_regardless_of_burst() {
    run_on_paused_time(async {
        for burst in [0, 10] {
            let limit =
                format!("{{ max: 0, window: 1s, algorithm: token_bucket, burst: {burst} }}");
            let (_, gate) = new_gate(&format!("rules: [{{ name: a, limits: [{limit}] }}]"));
            let banned = gate.check_async(&request()).await;
            assert_eq!(banned.reason(), Some(Reason::Banned), "{burst}");
        }
    });
}

#[test]
fn call_whose_bytes_do_not_fit_does_not_wait() {
    run_on_paused_time(async {
        let (_, gate) = new_gate("rules: [{ name: a, limits: [1/s], algorithm: sliding_log }]");
        let gate = gate.with_wait_options(WaitOptions {
            max_waiting_bytes: 100_000,
            ..WaitOptions::default()
        });
        let text = "a".repeat(60_000);
        let request = Request::new("default", Descriptor::new([("note", text.as_str())]));
        assert!(gate.check(&request).is_allowed());
        let late = async {
            sleep(ms(1)).await;
            let bytes = gate.stats().waits.waiting_bytes;
            assert!((60_000..62_000).contains(&bytes), "{bytes}");
            let denied = gate.check_async(&request.clone().with_max_wait(ms(5_000))).await;
            assert_eq!(denied.reason(), Some(Reason::WaitQueueFull));
        };
        let waiting = request.clone().with_max_wait(ms(5_000));
        let (waited, ()) = tokio::join!(gate.check_async(&waiting), late);
        assert!(waited.is_allowed());
        assert_eq!((gate.stats().waits.queue_full, gate.stats().waits.waiting_bytes), (1, 0));
    });
}

#[test]
fn dropped_wait_charges_nothing() {
    run_on_paused_time(async {
        let (clock, gate) =
            new_gate("rules: [{ name: a, limits: [10/s], algorithm: sliding_log }]");
        let used = Request::new("default", Descriptor::new([]).cost(4));
        assert!(gate.check(&used).is_allowed());
        let (policy, eight) = (gate.policy(), Request::new("default", Descriptor::new([]).cost(8)));
        let eight = eight.with_max_wait(ms(5_000));
        let matched = policy.apply(&eight);
        let call = gate.decide_async(&matched);
        assert!(timeout(ms(50), call).await.is_err());
        assert_eq!(clock.elapsed_ms(), 50);
        assert_eq!(gate.peek(&used).remaining(), 6);
        assert_eq!((gate.stats().waits.cancelled, gate.stats().waits.waiting), (1, 0));
    });
}

#[test]
fn waiting_repetitions_are_charged_once() {
    run_on_paused_time(async {
        let (clock, gate) =
            new_gate("rules: [{ name: a, limits: [10/s], algorithm: sliding_log }]");
        let eight = Request::new("default", Descriptor::new([]).cost(8));
        let one = Request::new("default", Descriptor::new([]).cost(1));
        assert!(gate.check(&eight).is_allowed());
        let (policy, key) = (gate.policy(), IdempotencyKey::new("a"));
        let call = async |request: &Request<'_>| {
            let request = request.clone().with_idempotency_key(key).with_max_wait(ms(5_000));
            gate.decide_async(&policy.apply(&request)).await
        };
        let (first, second, other) = tokio::join!(call(&eight), call(&eight), call(&one));
        assert!(first.is_allowed() && second.is_allowed());
        assert_eq!((first.repeated_after(), second.repeated_after()), (None, Some(ms(0))));
        let waits = (first.waited(), second.waited(), clock.elapsed_ms());
        assert_eq!(waits, (ms(1_000), ms(1_000), 1_000));
        assert_eq!(other.reason(), Some(Reason::IdempotencyKeyReused));
        assert_eq!(gate.peek(&one).remaining(), 2);
        assert_eq!(gate.stats().waits.waiting, 0);
        // No call waits any more, so a repetition is recognized immediately.
        let repeated = call(&eight).await;
        assert!(repeated.is_allowed() && repeated.repeated_after().is_some());
        assert_eq!(repeated.waited(), ms(0));
    });
}

#[test]
fn repetition_does_not_wait_behind_other_calls() {
    run_on_paused_time(async {
        let (clock, gate) = new_gate("rules: [{ name: a, limits: [1/s], algorithm: sliding_log }]");
        let one = Request::new("default", Descriptor::new([]).cost(1)).with_max_wait(ms(1_500));
        let repeated = one.clone().with_idempotency_key(IdempotencyKey::new("a"));
        assert!(gate.check_async(&repeated).await.is_allowed());
        let repetitions = async {
            sleep(ms(10)).await;
            let same = gate.check_async(&repeated).await;
            assert!(same.is_allowed() && same.repeated_after() == Some(ms(10)), "{same:?}");
            assert_eq!(same.waited(), ms(0));
            let policy = gate.policy();
            let same = gate.decide_async(&policy.apply(&repeated)).await;
            assert!(same.is_allowed() && same.repeated_after() == Some(ms(10)), "{same:?}");
            // Another call still has to wait longer than it can.
            let other = repeated.clone().with_idempotency_key(IdempotencyKey::new("b"));
            assert!(!gate.check_async(&other.with_max_wait(ms(500))).await.is_allowed());
            assert_eq!(clock.elapsed_ms(), 10);
        };
        let (waited, ()) = tokio::join!(gate.check_async(&one), repetitions);
        assert!(waited.is_allowed());
        assert_eq!((clock.elapsed_ms(), gate.stats().waits.admitted), (1_000, 1));
    });
}
