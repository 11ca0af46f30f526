//! Rules that count in one hash slot are one script call, and those in several are all-or-none as well.

use futures_util::future::join_all;
use slidegate::{ManualClock, Ruling};

use super::instance::{Instance, ask, calls, instance, is_allowed, request};
use crate::server::cluster::Cluster;

const OF_TENANT: u64 = 100;
const OF_ROUTE: u64 = 40;
const ROUTES: [&str; 4] = ["/a", "/b", "/c", "/d"];

const CALLERS: usize = 200;

/// A rule for the tenant, and one for each of his routes.
fn policy(redis: &str) -> String {
    format!(
        "rules:
        - {{ name: all, per: [tenant], limits: [{OF_TENANT}/h] }}
        - {{ name: each, per: [tenant, route], limits: [{OF_ROUTE}/h], {redis} }}"
    )
}

const TOGETHER: &str = "redis: { slot_by: [tenant] }";

/// What the calls of one request are, once everybody knows the scripts.
async fn calls_of_a_request(cluster: &Cluster, instance: &Instance) -> u64 {
    for _ in 0..2 {
        assert!(is_allowed(instance, "first", "/a").await);
    }
    let before: u64 = calls(cluster).iter().sum();
    assert!(is_allowed(instance, "first", "/a").await);
    calls(cluster).iter().sum::<u64>() - before
}

fn remaining(ruling: &Ruling) -> [u64; 2] {
    let mut limits = ruling.limits().map(|standing| standing.outcome.remaining());
    [limits.next().unwrap(), limits.next().unwrap()]
}

/// Many at once, and what is counted afterwards is what was allowed. How many that were.
async fn storm(instance: &Instance, tenant: &str) -> u64 {
    let asks = (0..CALLERS).map(|nth| async move {
        let mut allowed = [0; ROUTES.len()];
        for turn in 0..3 {
            let place = (nth + turn) % ROUTES.len();
            allowed[place] += u64::from(is_allowed(instance, tenant, ROUTES[place]).await);
        }
        allowed
    });
    let each = join_all(asks).await;
    let mut in_all = 0;
    for (place, route) in ROUTES.iter().enumerate() {
        let allowed: u64 = each.iter().map(|allowed| allowed[place]).sum();
        let peeked = instance.peek(&request(tenant, route)).await;
        assert_eq!(remaining(&peeked)[1], OF_ROUTE - allowed, "{route}");
        in_all += allowed;
    }
    let peeked = instance.peek(&request(tenant, ROUTES[0])).await;
    assert_eq!(remaining(&peeked)[0], OF_TENANT - in_all);
    in_all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_with_a_slot_in_common_are_decided_by_one_call_all_or_none() {
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let instance = instance(&policy(TOGETHER), &cluster.address(), &clock);
    assert_eq!(calls_of_a_request(&cluster, &instance).await, 1);
    // 160 in all routes are more than the tenant has.
    assert_eq!(storm(&instance, "acme").await, OF_TENANT);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_in_two_slots_are_looked_at_and_then_charged_all_or_none() {
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let [one, other] = [(); 2].map(|()| {
        instance(&policy("redis: {}").replace(", redis: {}", ""), &cluster.address(), &clock)
    });
    let slots = ["{tenant=first}", "{tenant=first,route=/a}"].map(|key| cluster.slot_of(key));
    assert_ne!(slots[0], slots[1]);
    assert_eq!(calls_of_a_request(&cluster, &one).await, 4, "two look, and two charge");
    let mut allowed = storm(&one, "acme").await;
    // Some were denied for what others were charged in vain; that is there again.
    for instance in [&other, &one] {
        for route in ROUTES {
            while is_allowed(instance, "acme", route).await {
                allowed += 1;
            }
        }
    }
    assert_eq!(allowed, OF_TENANT);
}

#[tokio::test]
async fn a_sampled_rule_in_another_slot_is_held_once_it_is_exhausted() {
    fastrand::seed(5);
    let (cluster, clock) = (Cluster::start(), ManualClock::default());
    let rules = "rules:
        - { name: all, per: [tenant], limits: [100/h], redis: { sample: 10% } }
        - { name: each, per: [tenant, route], limits: [100000/h] }";
    let instance = instance(rules, &cluster.address(), &clock);
    while is_allowed(&instance, "acme", "/a").await {}
    for _ in 0..200 {
        let denial = ask(&instance, "acme", "/a").await;
        assert!(!denial.decision().is_allowed());
        assert_eq!(denial.binding().unwrap().rule.name(), "all");
    }
}
