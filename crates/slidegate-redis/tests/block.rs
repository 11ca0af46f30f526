//! Tests the field `block` of a rule with several stores over one Redis.

use std::time::Duration;

use slidegate::{Descriptor, Gate, ManualClock, Policy, Reason, Request, Timestamp};
use slidegate_redis::{RedisSettings, RedisStore};

use crate::server::{LONG, Redis};

const BLOCK: Duration = Duration::from_secs(600);

fn open_gate(redis: &Redis, clock: &ManualClock, block: &str) -> Gate<RedisStore> {
    let settings = RedisSettings {
        timeout: LONG,
        // Keys expire by the clock of Redis, which the test does not set.
        expiry_margin: Duration::from_secs(1_000_000),
        ..RedisSettings::default()
    };
    let store = RedisStore::open(&redis.address(), settings).unwrap().with_clock(clock.clone());
    let rule = format!("{{ name: login, per: [ip], limits: [5/min], block: {block} }}");
    Gate::new(Policy::from_yaml(&format!("rules: [{rule}]")).unwrap(), store)
}

async fn attempt(gate: &Gate<RedisStore>) -> (Option<Reason>, Option<Duration>) {
    let request = Request::new("default", Descriptor::new([("ip", "192.0.2.7")]));
    let decision = gate.check_async(&request).await;
    assert!(!decision.is_degraded());
    (decision.reason(), decision.retry_after())
}

#[tokio::test(flavor = "multi_thread")]
async fn simultaneous_attempts_at_two_stores_start_one_block() {
    let (redis, clock) = (Redis::start(), ManualClock::at(Timestamp::from_secs(1_750_000_020)));
    let gates = [(); 2].map(|()| open_gate(&redis, &clock, "10m"));
    for _ in 0..5 {
        let attempts = (0..200).map(|nth| attempt(&gates[nth % 2]));
        let results = futures_util::future::join_all(attempts).await;
        let admitted = results.iter().filter(|(reason, _)| reason.is_none()).count();
        assert_eq!(admitted, 5);
        clock.advance(BLOCK - Duration::from_millis(1));
        for gate in &gates {
            let wait = Some(Duration::from_millis(1));
            assert_eq!(attempt(gate).await, (Some(Reason::Blocked), wait));
        }
        clock.advance(Duration::from_millis(1));
    }
}

#[tokio::test]
async fn cached_denials_do_not_hide_attempts_that_extend_block() {
    let (redis, clock) = (Redis::start(), ManualClock::at(Timestamp::from_secs(1_750_000_020)));
    for (block, expected_calls) in [("10m", 0), ("{ for: 10m, extend: true }", 10)] {
        redis.command(&["FLUSHALL"]);
        let gate = open_gate(&redis, &clock, block);
        for _ in 0..5 {
            assert_eq!(attempt(&gate).await.0, None);
        }
        assert_eq!(attempt(&gate).await, (Some(Reason::Blocked), Some(BLOCK)));
        let calls = redis.calls_of("evalsha") + redis.calls_of("eval");
        for _ in 0..10 {
            assert_eq!(attempt(&gate).await, (Some(Reason::Blocked), Some(BLOCK)));
        }
        let calls = redis.calls_of("evalsha") + redis.calls_of("eval") - calls;
        assert_eq!(calls, expected_calls, "{block}");
    }
}
