//! Limits on requests in flight: policies, decisions, permits and guards.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use slidegate::headers::{self, Style};
use slidegate::store::LocalCountsOptions;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::wait::JitterSample;
use slidegate::{
    Decision, Descriptor, Gate, IdempotencyKey, Limit, Limiter, ManualClock, MemoryStore, Permit,
    Policy, Reason, Request, Timestamp,
};

const RATE_AND_IN_FLIGHT: &str = "
rules:
  - name: streams
    per: [user]
    limits: [3/min, { name: in-flight, concurrent: 2, permit_ttl: 60s }]
";

fn gate(policy: &str, clock: &ManualClock) -> Gate<MemoryStore<ManualClock>> {
    Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::with_clock(clock.clone(), 100))
}

fn request(user: &str) -> Request<'_> {
    Request::new("default", Descriptor::new([("user", user)]))
}

fn errors(limits: &str) -> Vec<String> {
    let policy = format!("rules: [{{ name: a, limits: [{limits}] }}]");
    let errors = Policy::from_yaml(&policy).unwrap_err();
    let first_line = |error: String| error.lines().next().unwrap().to_owned();
    errors.0.iter().map(|error| first_line(error.to_string())).collect()
}

#[test]
fn permit_and_rate_are_charged_together_or_not_at_all() {
    let clock = ManualClock::default();
    let gate = gate(RATE_AND_IN_FLIGHT, &clock);
    let remaining = || -> Vec<u64> {
        gate.peek(&request("ann")).limits().map(|status| status.remaining()).collect()
    };
    let first = gate.acquire(&request("ann")).unwrap();
    let second = gate.acquire(&request("ann")).unwrap();
    assert_eq!(remaining(), [1, 0]);
    let denied = gate.check(&request("ann"));
    assert_eq!(denied.reason(), Some(Reason::ConcurrencyExceeded));
    assert_eq!((denied.retry_after(), denied.status()), (None, 429));
    assert!(denied.permit().is_none());
    assert_eq!(remaining(), [1, 0], "the denied request has taken no unit of the rate");
    assert!(gate.acquire(&request("bob")).is_ok(), "each user has their own permits");

    drop(first);
    let third = gate.acquire(&request("ann")).unwrap();
    drop((second, third));
    assert_eq!(remaining(), [0, 2], "a release keeps the unit of the rate");
    let denied = gate.check(&request("ann"));
    assert_eq!(denied.reason(), Some(Reason::LimitExceeded));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(60)));
    assert_eq!(remaining(), [0, 2], "the denied request has taken no permit");
}

#[test]
fn denying_rate_is_binding_before_denying_concurrency() {
    let gate = gate(&RATE_AND_IN_FLIGHT.replace("3/min", "2/s"), &ManualClock::default());
    for _ in 0..2 {
        gate.acquire(&request("ann")).unwrap().into_permit().unwrap();
    }
    let denied = gate.check(&request("ann"));
    assert!(denied.limits().all(|status| !status.fits()));
    assert_eq!(denied.reason(), Some(Reason::LimitExceeded));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(1)));
    let waits: Vec<_> = denied.limits().map(|status| status.retry_after()).collect();
    assert_eq!(waits, [Some(Duration::from_secs(1)), None]);
}

#[test]
fn allowed_request_shows_rate_before_permits_in_flight() {
    let gate = gate(&RATE_AND_IN_FLIGHT.replace("3/min", "100/min"), &ManualClock::default());
    let first = gate.acquire(&request("ann")).unwrap();
    let second = gate.acquire(&request("ann")).unwrap();
    // No permit is left, but 98 of 100 requests are.
    assert_eq!(second.decision().remaining(), 98);
    assert_eq!(first.decision().binding().map(|limit| limit.limit().is_concurrent()), Some(false));
}

#[test]
fn permits_of_dead_holders_are_free_after_time_to_live() {
    let clock = ManualClock::default();
    let gate = gate(&RATE_AND_IN_FLIGHT.replace("3/min", "1000/min"), &clock);
    let permit = |user| gate.acquire(&request(user)).unwrap().into_permit().unwrap();
    let (first, second) = (permit("ann"), permit("ann"));
    assert_eq!(first.ttl(), Duration::from_secs(60));
    clock.advance(Duration::from_secs(59));
    assert!(second.renew(&gate));
    clock.advance(Duration::from_secs(1));
    assert!(!first.renew(&gate), "an expired permit cannot be renewed");
    assert!(!first.release(&gate));
    assert!(gate.acquire(&request("ann")).is_ok(), "the first has expired");
    clock.advance(Duration::from_secs(59));
    assert!(!second.release(&gate));
    assert_eq!(gate.peek(&request("ann")).limits().nth(1).unwrap().remaining(), 2);
}

#[test]
fn deserialized_permit_is_released_by_other_process() {
    let gate = gate(RATE_AND_IN_FLIGHT, &ManualClock::default());
    let permit = gate.check(&request("ann")).permit().unwrap();
    let text = serde_json::to_string(&permit).unwrap();
    let decoded: Permit = serde_json::from_str(&text).unwrap();
    assert_eq!(decoded, permit);
    assert!(decoded.release(&gate));
    assert!(!permit.release(&gate));
    let without_charges = r#"{"charges":[],"is_degraded":false}"#;
    assert!(serde_json::from_str::<Permit>(without_charges).is_err());
}

/// A request takes one permit, whatever it costs. Peeks, requests of cost 0, and reports take none.
#[test]
fn cost_does_not_change_number_of_permits() {
    let policy = "
rules: [{ name: a, limits: [1000/min, { name: in-flight, concurrent: 2, permit_ttl: 60s }] }]
";
    let gate = gate(policy, &ManualClock::default());
    let request = |cost| Request::new("default", Descriptor::new([]).cost(cost));
    let free = || gate.peek(&request(1)).limits().nth(1).unwrap().remaining();
    let permit = gate.check(&request(500)).permit().unwrap();
    assert_eq!(free(), 1);
    assert!(gate.check(&request(0)).permit().is_none());
    assert!(gate.report(&request(5)).permit().is_none());
    assert_eq!(free(), 1);
    let _ = gate.check(&Request::new("default", Descriptor::new([]).cost(500).as_refund()));
    assert_eq!(free(), 1, "a refund releases no permit");
    let decision = gate.check(&request(1));
    gate.settle(&decision, 300);
    assert_eq!(free(), 0, "a settlement takes no permit");
    gate.settle(&decision, 0);
    assert_eq!(free(), 0, "a settlement releases no permit");
    assert!(permit.release(&gate));
    assert_eq!(free(), 1);
    gate.revert(&decision);
    assert_eq!(free(), 2, "a reverted request is not in flight");
}

#[test]
fn guard_of_repeated_call_does_not_release_permit() {
    let gate = gate(
        "rules: [{ name: a, limits: [{ name: in-flight, concurrent: 1, permit_ttl: 60s }] }]",
        &ManualClock::default(),
    );
    let keyed = || request("ann").with_idempotency_key(IdempotencyKey::new("a"));
    let first = gate.acquire(&keyed()).unwrap();
    let repeated = gate.acquire(&keyed()).unwrap();
    assert_eq!(repeated.permit().map(Permit::ttl), first.permit().map(Permit::ttl));
    drop(repeated);
    assert!(gate.acquire(&request("bob")).is_err(), "the first call is still in flight");
    drop(first);
    assert!(gate.acquire(&request("bob")).is_ok());
}

#[test]
fn observed_concurrency_denies_nothing() {
    let policy = RATE_AND_IN_FLIGHT.replace("per:", "mode: observe\n    per:");
    let gate = gate(&policy.replace("3/min", "1000/min"), &ManualClock::default());
    let guards: Vec<_> = (0..3).map(|_| gate.acquire(&request("ann")).unwrap()).collect();
    let with_permit = guards.iter().filter(|guard| guard.permit().is_some()).count();
    assert_eq!(with_permit, 2, "the third does not fit");
}

/// With `charge: always`, a denied request is counted by the rates, but it is not in flight.
#[test]
fn denied_request_takes_no_permit_with_charge_always() {
    let policy = RATE_AND_IN_FLIGHT.replace("per:", "charge: always\n    per:");
    let gate = gate(&policy.replace("3/min", "1/min"), &ManualClock::default());
    assert!(gate.acquire(&request("ann")).is_ok());
    assert!(gate.acquire(&request("ann")).is_err());
    assert_eq!(gate.peek(&request("ann")).limits().nth(1).unwrap().remaining(), 2);
}

#[test]
fn raised_and_lowered_max_keeps_permits() {
    let clock = ManualClock::default();
    let gate = gate(&RATE_AND_IN_FLIGHT.replace("3/min", "1000/min"), &clock);
    let permits: Vec<_> =
        (0..2).map(|_| gate.acquire(&request("ann")).unwrap().into_permit().unwrap()).collect();
    let replace = |limit: &str| {
        let policy = RATE_AND_IN_FLIGHT.replace("3/min", "1000/min");
        let policy = policy.replace("concurrent: 2, permit_ttl: 60s", limit);
        gate.replace_policy(Policy::from_yaml(&policy).unwrap());
    };
    replace("concurrent: 1, permit_ttl: 30s");
    assert!(permits[0].release(&gate));
    assert!(gate.acquire(&request("ann")).is_err(), "one is in flight");
    replace("concurrent: 3, permit_ttl: 30s");
    assert_eq!(gate.peek(&request("ann")).limits().nth(1).unwrap().remaining(), 2);
    assert!(permits[1].release(&gate));
}

#[test]
fn threads_never_hold_more_permits_than_max() {
    let policy = "
rules: [{ name: a, limits: [{ name: in-flight, concurrent: 3, permit_ttl: 60s }] }]
";
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
    let (in_flight, admitted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let request = Request::new("default", Descriptor::new([]));
    thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let Ok(guard) = gate.acquire(&request) else { continue };
                    admitted.fetch_add(1, Ordering::Relaxed);
                    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 3);
                    assert!(guard.renew());
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    drop(guard);
                }
            });
        }
    });
    assert!(admitted.load(Ordering::Relaxed) > 2_000);
    assert_eq!(gate.peek(&request).remaining(), 3);
}

/// While the store is unavailable, permits are counted in memory, and released there.
#[test]
fn permit_of_outage_is_released_in_memory() {
    let clock = ManualClock::default();
    let store = FaultyStore::new(&clock, 1, Faults { unavailable: 100, ..Faults::default() }, 1);
    let gate = Gate::new(
        Policy::from_yaml(&RATE_AND_IN_FLIGHT.replace("3/min", "1000/min")).unwrap(),
        store,
    )
    .with_local_counts(LocalCountsOptions::with_clock(clock.clone()));
    let acquire = || block_on(gate.acquire_async(&request("ann")));
    let (first, second) = (acquire().unwrap(), acquire().unwrap());
    assert!(first.decision().is_degraded());
    assert_eq!(acquire().unwrap_err().decision().reason(), Some(Reason::ConcurrencyExceeded));
    clock.advance(Duration::from_secs(59));
    assert!(block_on(second.renew_async()).unwrap());
    assert!(block_on(first.release_async()).unwrap());
    clock.advance(Duration::from_secs(59));
    assert!(block_on(second.renew_async()).unwrap());
    let third = acquire().unwrap();
    assert!(acquire().is_err());
    drop((second, third));
    assert!(acquire().is_ok());
}

#[test]
fn invalid_concurrent_limit_is_reported_with_remedy() {
    for (limit, expected) in [
        (
            "{ concurrent: 2 }",
            "1:29: `permit_ttl` is missing; add it, for example `permit_ttl: 60s`",
        ),
        (
            "{ concurrent: 2, permit_ttl: 10ms }",
            "1:58: a permit_ttl of 10ms is not supported; write a duration from 1s to 24h",
        ),
        (
            "{ concurrent: 2, permit_ttl: 2d }",
            "1:58: a permit_ttl of 2d is not supported; write a duration from 1s to 24h",
        ),
        (
            "{ concurrent: 10001, permit_ttl: 60s }",
            "1:43: 10001 requests in flight are too many; the maximum is 10000",
        ),
        (
            "{ concurrent: 2, permit_ttl: 60s, max: 9 }",
            "1:68: a limit with `concurrent` has no `max`; remove `max`, or write it in another limit of the rule",
        ),
        (
            "{ concurrent: 2, permit_ttl: 60s, algorithm: sliding_log }",
            "1:74: a limit with `concurrent` has no `algorithm`; remove `algorithm`, or write it in another limit of the rule",
        ),
        (
            "{ max: 2, window: 60s, permit_ttl: 60s }",
            "1:64: `permit_ttl` is only for a limit with `concurrent`; remove it, or replace `max` and `window` by `concurrent`",
        ),
    ] {
        assert_eq!(errors(limit), [expected], "{limit}");
    }
    let two = "{ concurrent: 2, permit_ttl: 60s }, { concurrent: 3, permit_ttl: 60s }";
    assert!(errors(two)[0].contains("two limits of this rule have the name `concurrent`"));
    let sampled = "rules: [{ name: a, limits: [{ concurrent: 20, permit_ttl: 60s }], redis: { sample: 10% } }]";
    let message = Policy::from_yaml(sampled).unwrap_err().to_string();
    assert!(message.contains("each request in flight needs its own permit; remove `sample`"));
    let algorithm = "rules: [{ name: a, limits: [9/s], algorithm: concurrent }]";
    assert!(Policy::from_yaml(algorithm).is_err());
}

#[test]
fn limiter_rejects_concurrent_limit() {
    let limit = Limit::concurrent(20, Duration::from_secs(60)).unwrap();
    let error = Limiter::new([limit]).unwrap_err().to_string();
    assert_eq!(
        error,
        "`20 concurrent, permit_ttl 1m` needs permits, which a limiter does not release; use a gate with a policy"
    );
}

#[test]
fn header_states_concurrent_requests() {
    let gate = gate(RATE_AND_IN_FLIGHT, &ManualClock::default());
    let headers = |decision: &Decision<'_>| -> Vec<String> {
        let now = Timestamp::from_secs(1_750_000_000);
        let headers = headers::write(Style::Ietf, decision, now, JitterSample::NONE);
        headers.into_iter().map(|(name, value)| format!("{name}: {value}")).collect()
    };
    let first = gate.acquire(&request("ann")).unwrap();
    let policy = r#"ratelimit-policy: "streams.1m";q=3;w=60, "streams.in-flight";q=2;qu="concurrent-requests""#;
    assert_eq!(headers(first.decision()), [policy, r#"ratelimit: "streams.1m";r=2;t=60"#]);
    let _second = gate.acquire(&request("ann")).unwrap();
    let denied = gate.check(&request("ann"));
    assert_eq!(headers(&denied), [policy, r#"ratelimit: "streams.in-flight";r=0"#]);
}
