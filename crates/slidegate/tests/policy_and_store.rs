//! What a policy says to a store in a cluster, and a store to a policy by whose limits it cannot count.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::cell::RefCell;

use slidegate::{
    Algorithm, ClusterOptions, Descriptor, Gate, Limit, MemoryStore, OnPartition, Policy, Request,
};

fn request<'a>(attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    Request::new("default", Descriptor::new(attributes.iter().copied()))
}

const IN_A_CLUSTER: &str = "
rules:
  - name: a
    per: [tenant]
    limits: [30/s, 100/m]
    redis: { slot_by: [tenant] }
    cluster: { max_unsynced: 7, on_partition: available }
    overrides:
      - { when: { plan: pro }, limits: [90/s] }
  - { name: b, limits: [5/s], cluster: { max_unsynced: 3 } }
  - { name: c, limits: [5/h] }
  - { name: d, domain: brought, limits: requested, cluster: { on_partition: available } }
";

#[test]
fn what_a_rule_says_to_clusters_rides_along_with_each_of_its_keys() {
    let policy = Policy::from_yaml(IN_A_CLUSTER).unwrap();
    let told = |request: &Request<'_>| {
        let applied = policy.apply(request);
        let hits = applied.hits();
        hits.iter().map(|hit| hit.key.cluster().copied()).collect::<Vec<_>>()
    };
    let seven = ClusterOptions::new().with_max_unsynced(7).unwrap();
    let a = Some(seven.with_on_partition(OnPartition::Available));
    let b = Some(ClusterOptions::new().with_max_unsynced(3).unwrap());
    assert_eq!(told(&request(&[("tenant", "t")])), [a, a, b, None]);
    assert_eq!(told(&request(&[("tenant", "t"), ("plan", "pro")])), [a, b, None]);
    let brought = |domain| {
        let descriptor = Descriptor::new([("tenant", "t")]).with_limit("9/s".parse().unwrap());
        told(&Request::new(domain, descriptor))
    };
    let d = Some(ClusterOptions::new().with_on_partition(OnPartition::Available));
    assert_eq!((brought("default"), brought("brought")), (vec![a, b, None], vec![d]));
    let rules = policy.rules();
    let of_rules: Vec<_> = rules.iter().map(|rule| rule.cluster().copied()).collect();
    assert_eq!(of_rules, [a, b, None, d]);
}

#[test]
fn memory_enforces_the_whole_limit_whatever_is_said_to_clusters() {
    let policy = "rules: [{ name: a, limits: [30/h], cluster: { max_unsynced: 1 } }]";
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
    let is_allowed = || gate.check_now(&request(&[])).decision().is_allowed();
    assert!((0..30).all(|_| is_allowed()) && !is_allowed());
}

/// A store that cannot count by two algorithms.
fn supports(limit: &Limit) -> Result<(), String> {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::TokenBucket { .. } => {
            Err(format!("`{}` is not counted here", limit.algorithm()))
        }
        _ => Ok(()),
    }
}

/// `line:column: message`
fn refused(yaml: &str) -> Vec<String> {
    let errors = Policy::from_yaml_for(yaml, supports).err();
    let errors = errors.into_iter().flat_map(|errors| errors.0);
    errors.map(|error| format!("{}:{}: {}", error.line, error.column, error.message)).collect()
}

const REFUSED: &str = "
defaults: { algorithm: token_bucket }
rules:
  - name: by-default
    limits: [10/s, { max: 9, window: 1m, algorithm: fixed_window }]
  - name: own
    algorithm: sliding_window
    limits:
      - 10/s
      - { max: 9, window: 1m, algorithm: sliding_log }
      - { max: 5, window: 1h }
    overrides:
      - { when: { plan: pro }, limits: [90/s] }
      - { when: { plan: log }, limits: [90/s, 900/m], algorithm: sliding_log }
      - { when: { plan: free }, algorithm: token_bucket }
      - { when: { plan: odd }, mode: observe }
      - { when: { plan: live }, limits: unlimited }
      - { when: { plan: evil }, limits: denied }
  - { name: asked, domain: brought, limits: requested }
  - { name: asked, domain: other, limits: requested, algorithm: sliding_log }
  - { name: asked, domain: third, limits: requested, algorithm: sliding_buckets }
";

#[test]
fn every_limit_that_the_store_cannot_count_is_a_mistake_at_its_place() {
    let (log, bucket) = ("`sliding_log` is not counted here", "`token_bucket` is not counted here");
    assert_eq!(
        refused(REFUSED),
        [
            format!("5:14: {bucket}"),
            format!("10:9: {log}"),
            format!("14:41: {log}"),
            format!("14:47: {log}"),
            format!("15:44: {bucket}"),
            format!("19:45: {bucket}"),
            format!("20:65: {log}"),
        ]
    );
    assert!(Policy::from_yaml(REFUSED).is_ok(), "for a store that counts by all");
}

#[test]
fn what_the_store_refuses_is_told_with_all_else_that_is_wrong() {
    let yaml = "rules: [{ name: a, limits: [10/s, ten/s], algorithm: sliding_log, moed: off }]";
    let told = refused(yaml);
    assert!(
        told[0].starts_with("1:29: `sliding_log`") && told[1].starts_with("1:35: "),
        "{told:?}"
    );
    assert!(told.len() == 3 && told[2].contains("did you mean `mode`"), "{told:?}");
}

#[test]
fn the_store_is_asked_for_limits_as_they_are_counted() {
    let asked = RefCell::new(Vec::new());
    let supports = |limit: &Limit| {
        asked.borrow_mut().push(limit.to_string());
        Ok::<(), String>(())
    };
    let yaml = "rules: [{ name: a, limits: [9/s, { max: 5, window: 1m, algorithm: sliding_buckets, precision: 5s }] }]";
    let policy = Policy::from_yaml_for(yaml, supports).unwrap();
    let counted = policy.rules()[0].settings().limits();
    let counted: Vec<String> = counted.iter().map(|limit| limit.limit().to_string()).collect();
    assert_eq!(asked.into_inner(), counted);
}
