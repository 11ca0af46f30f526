//! The field `block` of a rule: a key that has exceeded a limit is denied for a time.

use std::collections::VecDeque;
use std::time::Duration;

use fastrand::Rng;
use slidegate::headers::{self, Style};
use slidegate::wait::JitterSample;
use slidegate::{
    Algorithm, Descriptor, Gate, Limit, ManualClock, MemoryStore, Policy, Reason, Request,
    Timestamp,
};

const BLOCK: Duration = Duration::from_secs(600);
const MINUTE: Duration = Duration::from_secs(60);
const INSTANT: Duration = Duration::from_micros(1);

struct Login {
    gate: Gate<MemoryStore<ManualClock>>,
    clock: ManualClock,
}

impl Login {
    fn new(block: &str) -> Self {
        Self::with_rule(&format!("{{ name: login, per: [ip], limits: [5/min], block: {block} }}"))
    }

    fn with_rule(rule: &str) -> Self {
        let clock = ManualClock::default();
        let policy = Policy::from_yaml(&format!("rules: [{rule}]")).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(clock.clone(), 1_000));
        Self { gate, clock }
    }

    /// Sends a request. Returns the reason of a denial, and the wait until the request fits.
    fn attempt(&self, ip: &str) -> (Option<Reason>, Option<Duration>) {
        let decision = self.gate.check(&Request::new("default", Descriptor::new([("ip", ip)])));
        (decision.reason(), decision.retry_after())
    }

    fn exhaust(&self, ip: &str) {
        for _ in 0..5 {
            assert_eq!(self.attempt(ip), (None, Some(Duration::ZERO)));
        }
    }
}

#[test]
fn denial_starts_block_that_later_attempts_do_not_extend() {
    let login = Login::new("10m");
    login.exhaust("192.0.2.7");
    assert_eq!(login.attempt("192.0.2.7"), (Some(Reason::Blocked), Some(BLOCK)));
    login.clock.advance(MINUTE * 9);
    assert_eq!(login.attempt("192.0.2.7"), (Some(Reason::Blocked), Some(MINUTE)));
    assert_eq!(login.attempt("192.0.2.8"), (None, Some(Duration::ZERO)), "another key");
    login.clock.advance(MINUTE - INSTANT);
    assert_eq!(login.attempt("192.0.2.7"), (Some(Reason::Blocked), Some(INSTANT)));
    login.clock.advance(INSTANT);
    login.exhaust("192.0.2.7");
}

#[test]
fn attempts_extend_block_with_extend() {
    let login = Login::new("{ for: 10m, extend: true }");
    login.exhaust("192.0.2.7");
    for _ in 0..5 {
        assert_eq!(login.attempt("192.0.2.7"), (Some(Reason::Blocked), Some(BLOCK)));
        login.clock.advance(MINUTE * 9);
    }
    login.clock.advance(MINUTE);
    login.exhaust("192.0.2.7");
}

#[test]
fn longest_wait_determines_reason() {
    let login = Login::with_rule("{ name: login, per: [ip], limits: [5/h], block: 10m }");
    login.exhaust("192.0.2.7");
    let hour = Duration::from_secs(3_600);
    assert_eq!(login.attempt("192.0.2.7"), (Some(Reason::LimitExceeded), Some(hour)));
}

#[test]
fn reset_ends_block_and_peek_starts_none() {
    let login = Login::new("10m");
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    login.exhaust("192.0.2.7");
    let peek = login.gate.peek(&request);
    assert_eq!((peek.reason(), peek.retry_after()), (Some(Reason::LimitExceeded), Some(MINUTE)));
    assert_eq!(login.attempt("192.0.2.7").0, Some(Reason::Blocked));
    assert_eq!(login.gate.peek(&request).reason(), Some(Reason::Blocked));
    login.gate.reset(&request);
    login.exhaust("192.0.2.7");
}

#[test]
fn observed_block_denies_nothing_and_shows_what_it_would_deny() {
    let rule = "{ name: login, per: [ip], limits: [5/min], block: 10m, mode: observe }";
    let login = Login::with_rule(rule);
    login.exhaust("192.0.2.7");
    login.clock.advance(INSTANT);
    assert_eq!(login.attempt("192.0.2.7").0, None);
    login.clock.advance(MINUTE);
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    let decision = login.gate.check(&request);
    assert!(decision.is_allowed());
    let exceeded = decision.exceeded_limits().map(|limit| limit.id().to_owned());
    assert_eq!(exceeded.collect::<Vec<_>>(), ["block"]);
}

#[test]
fn overrides_share_block_of_key() {
    let login = Login::with_rule(
        "{ name: login, per: [ip], limits: [5/min], block: 10m, overrides: [{ when: { plan: pro }, limits: [9/min] }, { when: { plan: own }, limits: unlimited }] }",
    );
    login.exhaust("192.0.2.7");
    assert_eq!(login.attempt("192.0.2.7").0, Some(Reason::Blocked));
    let with_plan = |plan| {
        let attributes = [("ip", "192.0.2.7"), ("plan", plan)];
        login.gate.check(&Request::new("default", Descriptor::new(attributes))).reason()
    };
    assert_eq!([with_plan("pro"), with_plan("own")], [Some(Reason::Blocked), None]);
}

#[test]
fn report_and_refund_neither_start_nor_end_block() {
    let login = Login::new("10m");
    let descriptor = || Descriptor::new([("ip", "192.0.2.7")]).cost(7);
    let request = Request::new("default", descriptor());
    let _ = login.gate.report(&request);
    assert_eq!(login.gate.peek(&request).limits().count(), 1, "no block");
    assert_eq!(login.attempt("192.0.2.7").0, Some(Reason::Blocked));
    let _ = login.gate.check(&Request::new("default", descriptor().as_refund()));
    assert_eq!(login.attempt("192.0.2.7").0, Some(Reason::Blocked));
    login.gate.refund(&request);
    assert_eq!(login.attempt("192.0.2.7").0, Some(Reason::Blocked));
    login.gate.reset(&request);
    assert_eq!(login.attempt("192.0.2.7").0, None);
}

#[test]
fn block_is_not_binding_beside_limit_on_requests_in_flight() {
    let login = Login::with_rule(
        "{ name: login, per: [ip], limits: [{ name: in-flight, concurrent: 2, permit_ttl: 60s }], block: 10m }",
    );
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    let decision = login.gate.check(&request);
    let binding = decision.binding().unwrap();
    assert_eq!((binding.id(), binding.remaining()), ("in-flight", 1));
}

#[test]
fn headers_show_limit_and_not_block() {
    let login = Login::new("10m");
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    let decision = login.gate.check(&request);
    let names = |decision: &slidegate::Decision<'_>| {
        let shown = decision.limits().filter(|limit| limit.is_in_headers());
        shown.map(|limit| limit.policy_name().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(names(&decision), ["login"]);
    login.exhaust("192.0.2.8");
    assert_eq!(login.attempt("192.0.2.8").0, Some(Reason::Blocked));
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.8")]));
    assert_eq!(names(&login.gate.check(&request)), ["login"]);
}

/// Compares random attempts with an oracle, which keeps the time of each admitted request, and the end of the block.
#[test]
fn blocks_equal_those_of_oracle() {
    for seed in 0..200 {
        let mut rng = Rng::with_seed(seed);
        let extends = rng.bool();
        let login = Login::with_rule(&format!(
            "{{ name: login, per: [ip], limits: [5/min], block: {{ for: 10m, extend: {extends} }} }}"
        ));
        let (mut now, mut admitted) = (Duration::ZERO, VecDeque::new());
        let mut blocked_until = Duration::ZERO;
        for _ in 0..300 {
            // A tick of the block is 0.1 ms, so that the times of charges are not rounded.
            let max_step_ms = [0, 0, 0, 2, 1_000, 60_000, 700_000][rng.usize(..7)];
            let step = Duration::from_millis(rng.u64(..=max_step_ms));
            login.clock.advance(step);
            now += step;
            admitted.retain(|&at| at + MINUTE > now);
            let (is_blocked, is_full) = (now < blocked_until, admitted.len() == 5);
            if if is_blocked { extends } else { is_full } {
                blocked_until = now + BLOCK;
            }
            let wait = blocked_until.saturating_sub(now);
            let expected = match is_blocked || is_full {
                true => (Some(Reason::Blocked), Some(wait)),
                false => (None, Some(Duration::ZERO)),
            };
            assert_eq!(login.attempt("192.0.2.7"), expected, "seed {seed} at {now:?}");
            if !is_blocked && !is_full {
                admitted.push_back(now);
            }
        }
    }
}

#[test]
fn store_without_exact_counts_rejects_block() {
    let supports = |limit: &Limit| match limit.algorithm() {
        Algorithm::SlidingLog => Err("no logs"),
        _ => Ok(()),
    };
    let yaml = "rules: [{ name: login, limits: [5/min], block: 10m }]";
    let errors = Policy::from_yaml_for(yaml, supports).unwrap_err().to_string();
    assert!(errors.contains("`block` is not available in a cluster"), "{errors}");
}

#[test]
fn policy_errors_name_remedy() {
    let error = |rule: &str| {
        let policy = Policy::from_yaml(&format!("rules: [{{ name: login, {rule} }}]"));
        policy.map(|_| "no error".to_owned()).unwrap_or_else(|errors| errors.to_string())
    };
    for (rule, expected) in [
        ("limits: [5/min], block: soon", "soon"),
        ("limits: [5/min], block: { extend: true }", "for: 10m"),
        ("limits: unlimited, block: 10m", "`block` needs a list of limits"),
        ("limits: [5/min], block: 10m, mode: jointly", "denies on its own"),
        ("limits: [{ name: block, max: 5, window: 1m }], block: 10m", "another `name`"),
        ("limits: [5/min], block: 10m, redis: { sample: 10% }", "exact counts"),
    ] {
        assert!(error(rule).contains(expected), "{rule}: {}", error(rule));
    }
}

#[test]
fn headers_of_blocked_request_state_end_of_block() {
    let login = Login::new("10m");
    login.exhaust("192.0.2.7");
    login.attempt("192.0.2.7");
    login.clock.advance(MINUTE);
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    let decision = login.gate.check(&request);
    for style in [Style::Ietf, Style::Draft03] {
        let headers = headers::write(style, &decision, Timestamp::default(), JitterSample::NONE);
        let has = |name: &str, value: &str| {
            headers.iter().any(|header| header.0 == name && header.1.ends_with(value))
        };
        assert!(has("retry-after", "540"), "{headers:?}");
        assert!(has("ratelimit", ";t=540") || has("ratelimit-reset", "540"), "{headers:?}");
    }
}
