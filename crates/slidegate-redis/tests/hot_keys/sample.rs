//! Tests of sampled limits, which send only one request in N to Redis. The count must be right on average, with the
//! documented variance, and an exhausted limit must deny all requests.

use std::time::Duration;

use slidegate::{Descriptor, Gate, ManualClock, Policy, Reason, Request};
use slidegate_redis::{RedisSettings, RedisStore};

use super::instance::{
    Instance, check_with_redis, is_allowed, new_instance, new_instance_with_settings, new_request,
};
use crate::server::Redis;

/// Sampling factor: one request in `SAMPLING_FACTOR` is sent to Redis.
const SAMPLING_FACTOR: u64 = 10;

/// Returns a policy with one limit and a sample of 10 %: one request in ten is sent to Redis.
fn new_sampled_policy(max: u64) -> String {
    format!("rules: [{{ name: a, per: [tenant], limits: [{max}/min], redis: {{ sample: 10% }} }}]")
}

/// Returns the number of units that Redis has charged to a tenant.
async fn charged_units(instance: &Instance, tenant: &str, max: u64) -> u64 {
    let request = Request::new("default", Descriptor::new([("tenant", tenant)]));
    let peeked = instance.peek_async(&request).await;
    assert!(peeked.limits().count() == 1, "a peek is always sent");
    max - peeked.remaining()
}

#[tokio::test]
async fn sampled_count_has_documented_mean_and_variance() {
    const REQUESTS_PER_TENANT: u64 = 50;
    const COST_PER_REQUEST: u64 = 3;
    const TENANT_COUNT: u64 = 1_600;
    const MAX_UNITS_PER_MINUTE: u64 = 1_000_000;
    fastrand::seed(7);
    let redis = Redis::start();
    let instance = new_instance(
        &new_sampled_policy(MAX_UNITS_PER_MINUTE),
        &redis.address(),
        &ManualClock::default(),
    );
    let mut counts = Vec::new();
    for nth in 0..TENANT_COUNT {
        let tenant = nth.to_string();
        for _ in 0..REQUESTS_PER_TENANT {
            let descriptor = Descriptor::new([("tenant", tenant.as_str())]).cost(COST_PER_REQUEST);
            let decision = instance.check_async(&Request::new("default", descriptor)).await;
            assert!(decision.is_allowed() && !decision.is_degraded());
        }
        counts.push(charged_units(&instance, &tenant, MAX_UNITS_PER_MINUTE).await as f64);
    }
    let many = TENANT_COUNT as f64;
    let mean = counts.iter().sum::<f64>() / many;
    let variance = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / (many - 1.0);
    // The number of sent requests is binomial, and each is charged `SAMPLING_FACTOR` times its cost.
    let (expected, expected_variance) = (
        (REQUESTS_PER_TENANT * COST_PER_REQUEST) as f64,
        (REQUESTS_PER_TENANT * COST_PER_REQUEST * COST_PER_REQUEST * (SAMPLING_FACTOR - 1)) as f64,
    );
    let five_sigma = 5.0 * (expected_variance / many).sqrt();
    assert!((mean - expected).abs() < five_sigma, "{mean}, not {expected}");
    // The variance of the variance of an approximately normal distribution.
    let five_sigma = 5.0 * expected_variance * (2.0 / many).sqrt();
    assert!(
        (variance - expected_variance).abs() < five_sigma,
        "{variance}, not {expected_variance}"
    );
}

#[tokio::test]
async fn sampled_refund_is_correct_on_average() {
    const REQUESTS_PER_TENANT: u64 = 50;
    const TENANT_COUNT: u64 = 400;
    const MAX_UNITS_PER_MINUTE: u64 = 1_000_000;
    fastrand::seed(8);
    let redis = Redis::start();
    let instance = new_instance(
        &new_sampled_policy(MAX_UNITS_PER_MINUTE),
        &redis.address(),
        &ManualClock::default(),
    );
    let mut sum = 0;
    for nth in 0..TENANT_COUNT {
        let tenant = nth.to_string();
        for nth in 0..2 * REQUESTS_PER_TENANT {
            let descriptor = Descriptor::new([("tenant", tenant.as_str())]);
            // First the charges: the counter rarely has fewer units than are refunded.
            let descriptor = if nth < REQUESTS_PER_TENANT {
                descriptor.cost(3)
            } else {
                descriptor.cost(1).as_refund()
            };
            let decision = instance.check_async(&Request::new("default", descriptor)).await;
            assert!(decision.is_allowed() && !decision.is_degraded());
        }
        sum += charged_units(&instance, &tenant, MAX_UNITS_PER_MINUTE).await;
    }
    let mean = sum as f64 / TENANT_COUNT as f64;
    let variance = (REQUESTS_PER_TENANT * (SAMPLING_FACTOR - 1) * (3 * 3 + 1)) as f64;
    let five_sigma = 5.0 * (variance / TENANT_COUNT as f64).sqrt();
    assert!((mean - (2 * REQUESTS_PER_TENANT) as f64).abs() < five_sigma, "{mean}");
}

#[tokio::test]
async fn rules_with_equal_sampling_rate_send_same_requests() {
    let rules = "rules:
      - { name: a, per: [tenant], limits: [100000/min], redis: { sample: 10% } }
      - { name: b, per: [tenant], limits: [100000/h, 200000/d], redis: { sample: 10% } }
      - { name: c, per: [tenant], limits: [100000/min], redis: { sample: 50% } }";
    let redis = Redis::start();
    let instance = new_instance(rules, &redis.address(), &ManualClock::default());
    let (mut sent, mut known_counts) = (0, [0; 4]);
    for _ in 0..1_000 {
        let decision = check_with_redis(&instance, "acme", "").await;
        let is_known = |name| decision.limits().any(|status| status.policy_name() == name);
        let known = ["a", "b.1h", "b.1d", "c"].map(is_known);
        assert!(known[0] == known[1] && known[1] == known[2], "{known:?}");
        // A request that is sent at 10 % is also sent at 50 %: one call is enough for both.
        assert!(known[3] || !known[0], "{known:?}");
        sent += u64::from(known[3]);
        known.iter().zip(&mut known_counts).for_each(|(known, all)| *all += u64::from(*known));
    }
    // Excludes the first call of each script, which Redis had not loaded.
    let calls = redis.calls_of("evalsha");
    assert!((sent..=sent + 4).contains(&calls), "{calls} calls for {sent} requests");
    assert!(
        (50..200).contains(&known_counts[0]) && (400..600).contains(&known_counts[3]),
        "{known_counts:?}"
    );
}

/// Sends requests until one is denied.
async fn exhaust_limit(instance: &Instance) {
    let mut checks = 0;
    while is_allowed(instance, "acme", "").await {
        checks += 1;
        assert!(checks < 100_000, "a denial must follow");
    }
}

/// Starts Redis and an instance, and sends requests until one is denied.
async fn start_exhausted(rules: &str, deny_cache_ttl: Duration) -> (Redis, ManualClock, Instance) {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let settings = RedisSettings { deny_cache_ttl, ..RedisSettings::default() };
    let instance = new_instance_with_settings(rules, &redis.address(), &clock, settings);
    exhaust_limit(&instance).await;
    (redis, clock, instance)
}

#[tokio::test]
async fn exhausted_sampled_limit_allows_no_request() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let rules = "rules: [{ name: a, per: [tenant], limits: [1000/h], algorithm: sliding_log,
        redis: { sample: 10% } }]";
    // Denials of sampled rules are cached for a second, even if the cache is disabled for others.
    for deny_cache_ttl in [Duration::ZERO, Duration::from_secs(1)] {
        let (redis, clock, instance) = start_exhausted(rules, deny_cache_ttl).await;
        for _ in 0..5 {
            let calls = redis.calls_of("evalsha");
            for _ in 0..200 {
                assert!(!is_allowed(&instance, "acme", "").await);
                clock.advance(Duration::from_micros(4_999));
            }
            assert_eq!(redis.calls_of("evalsha"), calls, "no call");
            // 200 * 4,999 us are 200 us less than a second.
            clock.advance(Duration::from_micros(200));
            assert!(!is_allowed(&instance, "acme", "").await);
            assert_eq!(
                redis.calls_of("evalsha"),
                calls + 1,
                "the first request after a second is sent"
            );
        }
        // Only Redis can decide that units are free again.
        clock.advance(HOUR);
        let calls = redis.calls_of("evalsha");
        let decision = check_with_redis(&instance, "acme", "").await;
        assert!(decision.is_allowed() && decision.binding().is_some());
        assert_eq!(redis.calls_of("evalsha"), calls + 1);
    }
}

#[tokio::test]
async fn exhausted_sampled_limit_denies_requests_with_other_limits() {
    let rules = "rules:
      - { name: a, per: [tenant], limits: [1000/h], redis: { sample: 10% } }
      - { name: b, per: [user], limits: [100/min] }";
    for deny_cache_ttl in [Duration::ZERO, Duration::from_secs(1)] {
        let (_redis, clock, instance) = start_exhausted(rules, deny_cache_ttl).await;
        for nth in 0..2_000 {
            let user = nth.to_string();
            let descriptor = Descriptor::new([("tenant", "acme"), ("user", user.as_str())]);
            let decision = instance.check_async(&Request::new("default", descriptor)).await;
            assert!(!decision.is_allowed(), "{nth}");
            clock.advance(Duration::from_millis(5));
        }
    }
}

#[tokio::test]
async fn exhausted_sampled_limit_that_charges_denied_requests_allows_none() {
    let rules = "rules: [{ name: a, per: [tenant], limits: [1000/h], charge: always,
        algorithm: sliding_log, redis: { sample: 10% } }]";
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(rules, &redis.address(), &clock);
    exhaust_limit(&instance).await;
    for nth in 0..2_000 {
        assert!(!is_allowed(&instance, "acme", "").await, "{nth}");
        clock.advance(Duration::from_millis(5));
    }
}

#[tokio::test]
async fn higher_cost_is_denied_after_sampled_denial() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(&new_sampled_policy(1_000), &redis.address(), &clock);
    exhaust_limit(&instance).await;
    for cost in 2..100 {
        let descriptor = Descriptor::new([("tenant", "acme")]).cost(cost);
        let decision = instance.check_async(&Request::new("default", descriptor)).await;
        assert!(!decision.is_allowed(), "{cost}");
    }
}

#[tokio::test]
async fn one_probe_is_charged_after_sampled_denial() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(&new_sampled_policy(1_000), &redis.address(), &clock);
    exhaust_limit(&instance).await;
    clock.advance(Duration::from_secs(120));
    let checks = (0..200).map(|_| check_with_redis(&instance, "acme", ""));
    let decisions = futures_util::future::join_all(checks).await;
    let allowed = decisions.iter().filter(|decision| decision.is_allowed()).count();
    assert_eq!(allowed, 1);
    for denial in decisions.iter().filter(|decision| !decision.is_allowed()) {
        let wait = denial.retry_after().unwrap();
        assert!(Duration::ZERO < wait && wait < Duration::from_secs(1), "{wait:?}");
    }
    assert_eq!(charged_units(&instance, "acme", 1_000).await, SAMPLING_FACTOR);
    let mut unsampled = 0;
    // Each is sent with a probability of 1/`SAMPLING_FACTOR`.
    for _ in 0..20 {
        unsampled +=
            usize::from(check_with_redis(&instance, "acme", "").await.limits().count() == 0);
    }
    assert!(unsampled > 0, "others pass without a call");
}

#[tokio::test]
async fn on_store_error_applies_to_unsent_sampled_requests() {
    fastrand::seed(3);
    let mut redis = Redis::start();
    let rules = new_sampled_policy(1_000).replace("per:", "on_store_error: deny, per:");
    let timeout = Duration::from_millis(50);
    let settings = RedisSettings { timeout, ..RedisSettings::default() };
    let store = RedisStore::open(&redis.address(), settings).unwrap();
    let instance = Gate::new(Policy::from_yaml(&rules).unwrap(), store);
    charged_units(&instance, "acme", 1_000).await;
    redis.kill();
    while !instance.store().is_breaker_open() {
        let _ = instance.check_async(&new_request("acme", "")).await;
    }
    for _ in 0..1_000 {
        let decision = instance.check_async(&new_request("acme", "")).await;
        assert_eq!(
            (decision.reason(), decision.is_degraded()),
            (Some(Reason::StoreUnavailable), true)
        );
    }
}
