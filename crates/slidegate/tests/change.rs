//! Tests of the counts that remain after a change of the policy, and of policies in observe mode.

use std::num::NonZeroU32;

use slidegate::store::LocalCountsOptions;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Decision, Descriptor, Gate, LimitStatus, ManualClock, MemoryStore, Policy, Request, Store,
    Timestamp,
};

const NO_FAULTS: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };
const ALWAYS_UNAVAILABLE: Faults = Faults { unavailable: 100, ..NO_FAULTS };

fn parse_policy(yaml: &str) -> Policy {
    Policy::from_yaml(yaml).unwrap()
}

fn new_clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

fn new_gate(yaml: &str) -> Gate<MemoryStore<ManualClock>> {
    Gate::new(parse_policy(yaml), MemoryStore::with_clock(new_clock(), 1_000))
}

fn acme_request() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme"), ("plan", "free")]))
}

fn check_acme_request<S: Store>(gate: &Gate<S>) -> Decision<'static> {
    block_on(gate.check_async(&acme_request()))
}

fn peek_remaining_units<S: Store>(gate: &Gate<S>) -> u64 {
    block_on(gate.peek_async(&acme_request())).remaining()
}

#[test]
fn counts_survive_policy_change() {
    let gate =
        new_gate("rules: [{ name: a, per: [tenant], limits: [10/h], algorithm: sliding_log }]");
    (0..4).for_each(|_| assert!(check_acme_request(&gate).is_allowed()));
    let old_policy = gate.policy();
    gate.replace_policy(parse_policy(
        "rules: [{ name: new, limits: [1000/s] }, { name: a, per: [tenant], limits: [5/h], algorithm: sliding_log }]",
    ));
    assert_eq!(peek_remaining_units(&gate), 1);
    let request = acme_request();
    assert!(gate.decide(&old_policy.apply(&request)).is_allowed(), "a request in progress");
    assert_eq!(peek_remaining_units(&gate), 0);
    gate.replace_policy(parse_policy("rules: [{ name: a, per: [tenant], limits: [10/m] }]"));
    assert_eq!(peek_remaining_units(&gate), 10);
}

#[test]
fn charge_can_be_reverted_after_policy_change() {
    let gate = new_gate("rules: [{ name: a, per: [tenant], limits: [3/h] }]");
    let decision = check_acme_request(&gate);
    gate.replace_policy(parse_policy("rules: [{ name: a, per: [tenant], limits: [2/h] }]"));
    assert_eq!(peek_remaining_units(&gate), 1);
    gate.revert(&decision);
    assert_eq!(peek_remaining_units(&gate), 2);
}

#[test]
fn local_counts_and_instance_count_survive_policy_change() {
    let clock = new_clock();
    let store = FaultyStore::new(&clock, 1, ALWAYS_UNAVAILABLE, 1);
    let gate = Gate::new(parse_policy("rules: [{ name: a, limits: [8/h] }]"), store)
        .with_local_counts(LocalCountsOptions {
            instances: NonZeroU32::new(2).unwrap(),
            ..LocalCountsOptions::with_clock(clock)
        });
    assert_eq!((check_acme_request(&gate).remaining(), gate.stats().local_keys), (3, 1));
    gate.replace_policy(parse_policy("rules: [{ name: a, limits: [6/h] }]"));
    assert_eq!((check_acme_request(&gate).remaining(), gate.stats().local_keys), (1, 1));
}

/// Checks a policy in observe mode with each cause of a denial: a limit, `limits: denied`, a missing attribute, a limit
/// that is enforced only for a share of the keys, and an unavailable store.
#[test]
fn policy_in_observe_mode_reports_without_denying() {
    let rules = "
rules:
  - { name: limited, per: [tenant], limits: [1/h] }
  - { name: share, per: [tenant], limits: [1/h], mode: { enforce: 50% } }
  - { name: banned, per: [tenant], limits: [9/h], overrides: [{ when: { plan: free }, limits: denied }] }
  - { name: missing, per: [nowhere], when_missing: deny, limits: [9/h] }
  - { name: off, limits: [0/h], mode: off }
  - { name: lost, limits: [9/h], on_store_error: deny }
";
    let clock = new_clock();
    let store = FaultyStore::new(&clock, 1, NO_FAULTS, 1);
    let enforcing = Gate::new(parse_policy(rules), store.clone());
    assert!(!check_acme_request(&enforcing).is_allowed());
    let observing = Gate::new(enforcing.policy().observing(), store.clone());
    assert!(check_acme_request(&observing).is_allowed());
    let decision = check_acme_request(&observing);
    assert!(decision.is_allowed() && decision.binding().is_none());
    assert!(decision.limits().all(|status| status.is_observed()));
    let exceeded = decision.limits().filter(|status| !status.fits());
    let exceeded: Vec<&str> = exceeded.map(|status| status.rule_name()).collect();
    assert_eq!(exceeded, ["limited", "share", "banned", "missing"]);
    store.set_faults(ALWAYS_UNAVAILABLE);
    assert!(!check_acme_request(&enforcing).is_allowed());
    assert!(check_acme_request(&observing).is_allowed());
}

#[test]
fn every_limit_has_unique_index() {
    let policy = parse_policy(
        "
rules:
  - name: a
    per: [tenant]
    when_missing: deny
    limits: [1/s, 9/h]
    overrides: [{ when: { plan: pro }, limits: [5/s] }, { when: { plan: top }, limits: unlimited }]
  - { name: b, limits: [3/min] }
",
    );
    let limits: Vec<_> = policy.limits().map(|(rule, limit)| (rule.name(), limit.id())).collect();
    assert_eq!(limits, [("a", "1s"), ("a", "1h"), ("a", "1s"), ("a", "missing"), ("b", "1m")]);
    for (index, (_, limit)) in policy.limits().enumerate() {
        assert_eq!(limit.index(), index);
    }
}

/// Checks a request. Returns one pair for each limit of the decision: the name of its rule, and the tenant whose requests
/// the limit counts.
fn rule_and_tenant_per_limit(
    gate: &Gate<FaultyStore>,
    request: &Request<'_>,
) -> Vec<(String, String)> {
    let policy = gate.policy();
    let matched = policy.apply(request);
    let decision = block_on(gate.decide_async(&matched));
    let rule_and_tenant = |status: LimitStatus<'_>| {
        let rule_match = status.find_match(&matched).unwrap();
        assert_eq!(rule_match.rule().name(), status.rule_name());
        let values = rule_match.identity().map(|(_, value)| value.to_string());
        (status.rule_name().to_owned(), values.collect::<Vec<_>>().join(","))
    };
    decision.limits().map(rule_and_tenant).collect()
}

#[test]
fn limit_status_finds_its_rule_match_among_descriptors() {
    let rules = "
rules:
  - { name: lenient, per: [tenant], limits: [1/h], on_store_error: allow }
  - { name: local, per: [tenant], limits: [5/h, 1/s] }
";
    let clock = new_clock();
    let store = FaultyStore::new(&clock, 1, NO_FAULTS, 1);
    let gate = Gate::new(parse_policy(rules), store.clone())
        .with_local_counts(LocalCountsOptions::with_clock(clock));
    let descriptors = ["acme", "bob"].map(|tenant| Descriptor::new([("tenant", tenant)]));
    let request = Request::with_descriptors("default", descriptors);
    let pair = |rule: &str, tenant: &str| (rule.to_owned(), tenant.to_owned());
    let pairs = |tenant| [pair("lenient", tenant), pair("local", tenant), pair("local", tenant)];
    assert_eq!(rule_and_tenant_per_limit(&gate, &request), [pairs("acme"), pairs("bob")].concat());
    store.set_faults(ALWAYS_UNAVAILABLE);
    let local_only = [pairs("acme")[1..].to_vec(), pairs("bob")[1..].to_vec()].concat();
    assert_eq!(rule_and_tenant_per_limit(&gate, &request), local_only);
}

#[test]
fn gate_follows_policy_file_and_rejects_invalid_policy() {
    let folder = std::env::temp_dir().join(format!("slidegate-follow-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("policy.yaml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("rules: [{ name: a, limits: [1/h] }]");
    let (sender, reloads) = std::sync::mpsc::channel();
    let gate = Gate::follow_policy_file(&file, MemoryStore::new(), move |reload| {
        let reload = reload.map(|policy| policy.rules().len());
        sender.send(reload.map_err(|error| error.to_string())).unwrap();
    })
    .unwrap();
    let next_reload = || reloads.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
    assert!(gate.check(&acme_request()).is_allowed());
    write("rules: [{ name: a, limits: [3/h] }, { name: b, limits: [9/h] }]");
    assert_eq!(next_reload(), Ok(2));
    assert_eq!(gate.check(&acme_request()).remaining(), 1);
    write("rules: [{ name: a, limits: [3 per hour] }]");
    let error = next_reload().unwrap_err();
    assert!(error.contains("policy.yaml is invalid") && error.contains("3 per hour"), "{error}");
    std::fs::remove_file(&file).unwrap();
    let error = next_reload().unwrap_err();
    assert!(error.starts_with("cannot read the policy file "), "{error}");
    assert_eq!(gate.check(&acme_request()).remaining(), 0, "the last valid policy stays");
    write("rules: []");
    assert_eq!(next_reload(), Ok(0));
    drop(gate);
    assert!(reloads.recv_timeout(std::time::Duration::from_secs(60)).is_err(), "the thread ends");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn missing_or_invalid_policy_file_is_rejected() {
    let follow = |path: &str| Gate::follow_policy_file(path, MemoryStore::new(), |_| {}).err();
    let error = follow("/nonexistent/policy.yaml").unwrap().to_string();
    assert!(error.starts_with("cannot read the policy file /nonexistent/policy.yaml: "), "{error}");
}
