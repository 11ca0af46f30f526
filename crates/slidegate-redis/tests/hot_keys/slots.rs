//! Tests of requests that match two rules. If the keys of both rules are in one hash slot, Redis decides them in one
//! script call. If the keys are in two slots, there are several script calls, but either both rules are charged or
//! none.

use futures_util::future::join_all;
use slidegate::{Decision, ManualClock};

use super::instance::{
    Instance, check_with_redis, is_allowed, new_instance, new_request, script_calls_per_master,
};
use crate::server::cluster::Cluster;

const MAX_REQUESTS_PER_TENANT: u64 = 100;
const MAX_REQUESTS_PER_ROUTE: u64 = 40;
const ROUTES: [&str; 4] = ["/a", "/b", "/c", "/d"];

const CONCURRENT_CALLER_COUNT: usize = 200;

/// Returns a policy with two rules: a limit for each tenant, and a limit for each route of a tenant. The second rule
/// has the Redis options `redis`.
fn new_tenant_and_route_policy(redis: &str) -> String {
    format!(
        "rules:
        - {{ name: all, per: [tenant], limits: [{MAX_REQUESTS_PER_TENANT}/h] }}
        - {{ name: each, per: [tenant, route], limits: [{MAX_REQUESTS_PER_ROUTE}/h], {redis} }}"
    )
}

const SAME_SLOT_PER_TENANT_OPTION: &str = "redis: { slot_by: [tenant] }";

/// Returns the number of script calls for one request, once all scripts have been loaded.
async fn count_script_calls_per_request(cluster: &Cluster, instance: &Instance) -> u64 {
    for _ in 0..2 {
        assert!(is_allowed(instance, "first", "/a").await);
    }
    let before: u64 = script_calls_per_master(cluster).iter().sum();
    assert!(is_allowed(instance, "first", "/a").await);
    script_calls_per_master(cluster).iter().sum::<u64>() - before
}

fn remaining_units_per_limit(decision: &Decision<'_>) -> [u64; 2] {
    let mut limits = decision.limits().map(|status| status.remaining());
    [limits.next().unwrap(), limits.next().unwrap()]
}

/// Sends concurrent requests of a tenant, and asserts that the charged units of all limits equal the number of allowed
/// requests. Returns this number.
async fn count_allowed_concurrent_requests(instance: &Instance, tenant: &str) -> u64 {
    let checks = (0..CONCURRENT_CALLER_COUNT).map(|nth| async move {
        let mut allowed = [0; ROUTES.len()];
        for turn in 0..3 {
            let route_index = (nth + turn) % ROUTES.len();
            allowed[route_index] +=
                u64::from(is_allowed(instance, tenant, ROUTES[route_index]).await);
        }
        allowed
    });
    let each = join_all(checks).await;
    let mut total = 0;
    for (route_index, route) in ROUTES.iter().enumerate() {
        let allowed: u64 = each.iter().map(|allowed| allowed[route_index]).sum();
        let peeked = instance.peek_async(&new_request(tenant, route)).await;
        assert_eq!(
            remaining_units_per_limit(&peeked)[1],
            MAX_REQUESTS_PER_ROUTE - allowed,
            "{route}"
        );
        total += allowed;
    }
    let peeked = instance.peek_async(&new_request(tenant, ROUTES[0])).await;
    assert_eq!(remaining_units_per_limit(&peeked)[0], MAX_REQUESTS_PER_TENANT - total);
    total
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_one_slot_share_one_script_call() {
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let instance = new_instance(
        &new_tenant_and_route_policy(SAME_SLOT_PER_TENANT_OPTION),
        &cluster.address(),
        &clock,
    );
    assert_eq!(count_script_calls_per_request(&cluster, &instance).await, 1);
    // The limits of all routes add up to 160, more than the tenant has.
    assert_eq!(count_allowed_concurrent_requests(&instance, "acme").await, MAX_REQUESTS_PER_TENANT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_two_slots_charge_all_or_none() {
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let [one, other] = [(); 2].map(|()| {
        new_instance(
            &new_tenant_and_route_policy("redis: {}").replace(", redis: {}", ""),
            &cluster.address(),
            &clock,
        )
    });
    let slots = ["{tenant=first}", "{tenant=first,route=/a}"].map(|key| cluster.slot_of(key));
    assert_ne!(slots[0], slots[1]);
    assert_eq!(count_script_calls_per_request(&cluster, &one).await, 4, "two look, and two charge");
    let mut allowed = count_allowed_concurrent_requests(&one, "acme").await;
    // Some requests were denied because of charges that were reverted later. These units are free again.
    for instance in [&other, &one] {
        for route in ROUTES {
            while is_allowed(instance, "acme", route).await {
                allowed += 1;
            }
        }
    }
    assert_eq!(allowed, MAX_REQUESTS_PER_TENANT);
}

#[tokio::test]
async fn exhausted_sampled_rule_denies_requests_in_two_slots() {
    fastrand::seed(5);
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let rules = "rules:
        - { name: all, per: [tenant], limits: [100/h], redis: { sample: 10% } }
        - { name: each, per: [tenant, route], limits: [100000/h] }";
    let instance = new_instance(rules, &cluster.address(), &clock);
    while is_allowed(&instance, "acme", "/a").await {}
    for _ in 0..200 {
        let denial = check_with_redis(&instance, "acme", "/a").await;
        assert!(!denial.is_allowed());
        assert_eq!(denial.binding().unwrap().rule_name(), "all");
    }
}
