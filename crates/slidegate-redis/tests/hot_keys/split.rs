//! Tests of limits that are split over sub-keys. Each sub-key has its share of the units. The sum of the shares is the
//! maximum of the limit.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use slidegate::store::Edit;
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request, Store};

use super::instance::{
    Instance, check_with_redis, is_allowed, new_instance, new_request, script_calls_per_master,
};
use crate::server::Redis;
use crate::server::cluster::Cluster;

const MAX_UNITS_PER_MINUTE: u64 = 100;
const SUB_KEY_COUNT: u16 = 8;

/// Returns the number of units of a sub-key, if 100 units are divided into 8 shares.
fn expected_units_of_sub_key(part: u16) -> u64 {
    if part < 4 { 13 } else { 12 }
}

fn new_split_policy(algorithm: &str) -> String {
    format!(
        "rules: [{{ name: hot, per: [tenant], limits: [{MAX_UNITS_PER_MINUTE}/min], algorithm: {algorithm},
        redis: {{ split: {{ by: [route], into: {SUB_KEY_COUNT} }} }} }}]"
    )
}

/// Returns route names that use all sub-keys.
fn routes_for_all_sub_keys() -> Vec<String> {
    let routes: Vec<String> = (0..64).map(|nth| format!("/route/{nth}")).collect();
    let policy = Policy::from_yaml(&new_split_policy("sliding_window")).unwrap();
    let parts: BTreeSet<u16> =
        routes.iter().map(|route| sub_key_of_route(&policy, route)).collect();
    assert_eq!(parts.len(), usize::from(SUB_KEY_COUNT));
    routes
}

/// Returns the sub-key that a policy chooses for a route.
fn sub_key_of_route(policy: &Policy, route: &str) -> u16 {
    policy.apply(&new_request("acme", route)).hits().next().unwrap().key.sub_key_index().unwrap()
}

/// Returns one route for each sub-key.
fn find_route_of_each_sub_key(policy: &Policy) -> BTreeMap<u16, String> {
    routes_for_all_sub_keys()
        .into_iter()
        .map(|route| (sub_key_of_route(policy, &route), route))
        .collect()
}

/// Sends requests for a route until its sub-key denies. Returns the number of allowed requests.
async fn exhaust_sub_key(instance: &Instance, route: &str) -> u64 {
    let mut allowed = 0;
    while is_allowed(instance, "acme", route).await {
        allowed += 1;
    }
    allowed
}

const TESTED_ALGORITHM_NAMES: [&str; 6] = [
    "sliding_window",
    "sliding_log",
    "sliding_buckets",
    "sliding_counter",
    "fixed_window",
    "token_bucket",
];

#[tokio::test]
async fn sub_keys_allow_exactly_their_shares() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    for algorithm in TESTED_ALGORITHM_NAMES {
        let policy = new_split_policy(algorithm).replace("hot", algorithm);
        let instances = [(); 2].map(|()| new_instance(&policy, &redis.address(), &clock));
        let routes = routes_for_all_sub_keys();
        // Concurrently: each route is requested three times at each instance.
        let checks = (0..6 * routes.len()).map(|nth| {
            let (instance, route) = (&instances[nth % 2], &routes[nth / 2 % routes.len()]);
            async move {
                let allowed = is_allowed(instance, "acme", route).await;
                (sub_key_of_route(&instance.policy(), route), u64::from(allowed))
            }
        });
        let mut allowed = BTreeMap::new();
        for (part, passed) in join_all(checks).await {
            *allowed.entry(part).or_default() += passed;
        }
        let expected: BTreeMap<u16, u64> =
            (0..SUB_KEY_COUNT).map(|part| (part, expected_units_of_sub_key(part))).collect();
        assert_eq!(allowed, expected, "{algorithm}");
        assert_eq!(allowed.values().sum::<u64>(), MAX_UNITS_PER_MINUTE);
    }
}

#[tokio::test]
async fn equal_attributes_choose_same_sub_key() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let policy = new_split_policy("sliding_counter");
    let [one, other] = [(); 2].map(|()| new_instance(&policy, &redis.address(), &clock));
    for route in routes_for_all_sub_keys() {
        redis.command(&["FLUSHALL"]);
        let remaining = check_with_redis(&one, "acme", &route).await.remaining();
        assert_eq!(check_with_redis(&other, "acme", &route).await.remaining(), remaining - 1);
        let part = sub_key_of_route(&one.policy(), &route);
        assert_eq!(redis.keys(), [format!("slidegate:default:hot:{{tenant=acme#{part}}}")]);
    }
    // A missing attribute chooses a sub-key, too.
    redis.command(&["FLUSHALL"]);
    let request = Request::new("default", Descriptor::new([("tenant", "acme")]));
    let mut remaining = Vec::new();
    for instance in [&one, &other, &one] {
        remaining.push(instance.check_async(&request).await.remaining());
    }
    assert!(remaining[0] == remaining[1] + 1 && remaining[1] == remaining[2] + 1, "{remaining:?}");
    assert_eq!(redis.keys().len(), 1);
}

#[tokio::test]
async fn cost_above_sub_key_share_never_fits() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(&new_split_policy("sliding_window"), &redis.address(), &clock);
    for (part, route) in find_route_of_each_sub_key(&instance.policy()) {
        let at_cost = |cost| {
            let descriptor = Descriptor::new([("tenant", "acme"), ("route", route.as_str())]);
            Request::new("default", descriptor.cost(cost))
        };
        let denial = instance.check_async(&at_cost(expected_units_of_sub_key(part) + 1)).await;
        assert!(!denial.is_allowed() && !denial.is_degraded());
        assert_eq!(denial.retry_after(), None, "though {MAX_UNITS_PER_MINUTE} is more");
        assert!(instance.check_async(&at_cost(expected_units_of_sub_key(part))).await.is_allowed());
        let denial = instance.check_async(&at_cost(1)).await;
        assert!(denial.retry_after().is_some_and(|wait| wait > Duration::ZERO));
    }
}

#[tokio::test]
async fn revert_frees_units_of_charged_sub_key() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(&new_split_policy("sliding_log"), &redis.address(), &clock);
    let routes = find_route_of_each_sub_key(&instance.policy());
    let decision = check_with_redis(&instance, "acme", &routes[&3]).await;
    for (part, route) in &routes {
        assert_eq!(
            exhaust_sub_key(&instance, route).await,
            expected_units_of_sub_key(*part) - u64::from(*part == 3)
        );
    }
    instance.revert_async(&decision).await.unwrap();
    for (part, route) in &routes {
        assert_eq!(exhaust_sub_key(&instance, route).await, u64::from(*part == 3), "{part}");
    }
}

#[tokio::test]
async fn refund_frees_units_of_matching_sub_key() {
    let (redis, clock) = (Redis::start(), ManualClock::default());
    let instance = new_instance(&new_split_policy("sliding_window"), &redis.address(), &clock);
    let routes = find_route_of_each_sub_key(&instance.policy());
    for (part, route) in &routes {
        assert_eq!(exhaust_sub_key(&instance, route).await, expected_units_of_sub_key(*part));
    }
    let descriptor = Descriptor::new([("tenant", "acme"), ("route", &*routes[&3])]);
    let refund = Request::new("default", descriptor.cost(4).as_refund());
    assert_eq!(instance.check_async(&refund).await.limits().next().unwrap().remaining(), 4);
    for (part, route) in &routes {
        assert_eq!(
            exhaust_sub_key(&instance, route).await,
            if *part == 3 { 4 } else { 0 },
            "{part}"
        );
    }
}

#[tokio::test]
async fn sub_keys_spread_over_masters_and_reset_together() {
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let instance = new_instance(&new_split_policy("sliding_window"), &cluster.address(), &clock);
    let routes = find_route_of_each_sub_key(&instance.policy());
    let slot = |part: &u16| cluster.slot_of(&format!("{{tenant=acme#{part}}}"));
    let slots: BTreeSet<u16> = routes.keys().map(slot).collect();
    assert_eq!(slots.len(), usize::from(SUB_KEY_COUNT));
    for route in routes.values() {
        // Loads the script on every master.
        assert!(is_allowed(&instance, "acme", route).await);
    }
    let before = script_calls_per_master(&cluster);
    for route in routes.values() {
        for _ in 0..5 {
            assert!(is_allowed(&instance, "acme", route).await);
        }
    }
    let after = script_calls_per_master(&cluster);
    let calls_per_master: Vec<u64> =
        after.iter().zip(before).map(|(after, before)| after - before).collect();
    assert_eq!(
        calls_per_master.iter().sum::<u64>(),
        5 * u64::from(SUB_KEY_COUNT),
        "one call per request: {calls_per_master:?}"
    );
    assert!(
        calls_per_master.iter().all(|&calls_per_master| calls_per_master > 0),
        "{calls_per_master:?}"
    );

    for (part, route) in &routes {
        assert_eq!(exhaust_sub_key(&instance, route).await, expected_units_of_sub_key(*part) - 6);
    }
    // A reset covers all sub-keys, regardless of the route of the request.
    let request = new_request("acme", &routes[&0]);
    let policy = instance.policy();
    let applied = policy.apply(&request);
    let hits: Vec<_> = applied.hits().collect();
    instance.store().edit_async(&hits, Edit::Reset).await.unwrap();
    for (part, route) in &routes {
        assert_eq!(exhaust_sub_key(&instance, route).await, expected_units_of_sub_key(*part));
    }
}

#[test]
fn memory_store_does_not_split_limit() {
    for algorithm in TESTED_ALGORITHM_NAMES {
        let policy = Policy::from_yaml(&new_split_policy(algorithm)).unwrap();
        let gate = Gate::new(policy, MemoryStore::with_clock(ManualClock::default(), 1_000));
        let routes = routes_for_all_sub_keys();
        let checks = (0..3 * MAX_UNITS_PER_MINUTE as usize).map(|nth| &routes[nth % 2]);
        let passes = |route: &&String| gate.check(&new_request("acme", route)).is_allowed();
        assert_eq!(checks.filter(passes).count() as u64, MAX_UNITS_PER_MINUTE, "{algorithm}");
        let descriptor = Descriptor::new([("tenant", "other")]).cost(MAX_UNITS_PER_MINUTE);
        let whole = gate.check(&Request::new("default", descriptor));
        assert!(whole.is_allowed());
    }
}
