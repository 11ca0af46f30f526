//! Tests of the field `cluster` of a policy, and of policies with limits that a store does not support.

use std::cell::RefCell;

use slidegate::store::{ClusterOptions, OnPartition};
use slidegate::{Algorithm, Descriptor, Gate, Limit, MemoryStore, Policy, Request};

fn new_request<'a>(attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    Request::new("default", Descriptor::new(attributes.iter().copied()))
}

const CLUSTER_OPTIONS_POLICY: &str = "
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
fn keys_carry_cluster_options_of_rule() {
    let policy = Policy::from_yaml(CLUSTER_OPTIONS_POLICY).unwrap();
    let cluster_options = |request: &Request<'_>| {
        let matched_rules = policy.apply(request);
        matched_rules.hits().map(|hit| hit.key.cluster_options().copied()).collect::<Vec<_>>()
    };
    let seven = ClusterOptions::new().with_max_unsynced(7).unwrap();
    let a = Some(seven.with_on_partition(OnPartition::Available));
    let b = Some(ClusterOptions::new().with_max_unsynced(3).unwrap());
    assert_eq!(cluster_options(&new_request(&[("tenant", "t")])), [a, a, b, None]);
    assert_eq!(cluster_options(&new_request(&[("tenant", "t"), ("plan", "pro")])), [a, b, None]);
    let requested_options = |domain| {
        let descriptor = Descriptor::new([("tenant", "t")]).with_limit("9/s".parse().unwrap());
        cluster_options(&Request::new(domain, descriptor))
    };
    let d = Some(ClusterOptions::new().with_on_partition(OnPartition::Available));
    assert_eq!(
        (requested_options("default"), requested_options("brought")),
        (vec![a, b, None], vec![d])
    );
    let rules = policy.rules();
    let rule_options: Vec<_> = rules.iter().map(|rule| rule.cluster().copied()).collect();
    assert_eq!(rule_options, [a, b, None, d]);
}

#[test]
fn memory_store_ignores_cluster_options() {
    let policy = "rules: [{ name: a, limits: [30/h], cluster: { max_unsynced: 1 } }]";
    let gate = Gate::new(Policy::from_yaml(policy).unwrap(), MemoryStore::new());
    let is_allowed = || gate.check(&new_request(&[])).is_allowed();
    assert!((0..30).all(|_| is_allowed()) && !is_allowed());
}

/// Returns an error for a limit with algorithm `sliding_log` or `token_bucket`, as a store without these algorithms
/// does.
fn check_limit_support(limit: &Limit) -> Result<(), String> {
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::TokenBucket { .. } => {
            Err(format!("`{}` is not counted here", limit.algorithm()))
        }
        _ => Ok(()),
    }
}

/// Returns the errors of a policy for a store without `sliding_log` and `token_bucket`, as `line:column: message`.
fn unsupported_limit_errors(yaml: &str) -> Vec<String> {
    let errors = Policy::from_yaml_for(yaml, check_limit_support).err();
    let errors = errors.into_iter().flat_map(|errors| errors.0);
    errors.map(|error| format!("{}:{}: {}", error.line, error.column, error.message)).collect()
}

const UNSUPPORTED_LIMITS_POLICY: &str = "
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
fn unsupported_limit_error_has_position_of_limit() {
    let (log, bucket) = ("`sliding_log` is not counted here", "`token_bucket` is not counted here");
    assert_eq!(
        unsupported_limit_errors(UNSUPPORTED_LIMITS_POLICY),
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
    assert!(
        Policy::from_yaml(UNSUPPORTED_LIMITS_POLICY).is_ok(),
        "for a store that supports all algorithms"
    );
}

#[test]
fn unsupported_limit_is_reported_with_other_errors() {
    let yaml = "rules: [{ name: a, limits: [10/s, ten/s], algorithm: sliding_log, moed: off }]";
    let errors = unsupported_limit_errors(yaml);
    assert!(
        errors[0].starts_with("1:29: `sliding_log`") && errors[1].starts_with("1:35: "),
        "{errors:?}"
    );
    assert!(errors.len() == 3 && errors[2].contains("did you mean `mode`"), "{errors:?}");
}

#[test]
fn support_check_receives_every_compiled_limit() {
    let checked = RefCell::new(Vec::new());
    let supports = |limit: &Limit| {
        checked.borrow_mut().push(limit.to_string());
        Ok::<(), String>(())
    };
    let yaml = "rules: [{ name: a, limits: [9/s, { max: 5, window: 1m, algorithm: sliding_buckets, precision: 5s }] }]";
    let policy = Policy::from_yaml_for(yaml, supports).unwrap();
    let counted = policy.rules()[0].settings().limits();
    let counted: Vec<String> = counted.iter().map(|limit| limit.limit().to_string()).collect();
    assert_eq!(checked.into_inner(), counted);
}
