//! Tests of the counts that remain after a change of the policy, and of policies in observe mode.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::num::NonZeroU32;

use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Descriptor, Gate, LimitStatus, ManualClock, MemoryStore, Policy, Request, Ruling, Store,
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

fn check_acme_request<S: Store>(gate: &Gate<S>) -> Ruling {
    block_on(gate.check(&acme_request()))
}

fn peek_remaining_units<S: Store>(gate: &Gate<S>) -> u64 {
    block_on(gate.peek(&acme_request())).decision().remaining()
}

#[test]
fn counts_survive_policy_change() {
    let before =
        new_gate("rules: [{ name: a, per: [tenant], limits: [10/h], algorithm: sliding_log }]");
    (0..4).for_each(|_| assert!(check_acme_request(&before).decision().is_allowed()));
    let after = before.with_policy(parse_policy(
        "rules: [{ name: new, limits: [1000/s] }, { name: a, per: [tenant], limits: [5/h], algorithm: sliding_log }]",
    ));
    assert_eq!(peek_remaining_units(&after), 1);
    assert!(
        check_acme_request(&before).decision().is_allowed(),
        "the old policy continues to count"
    );
    assert_eq!(peek_remaining_units(&after), 0);
    assert_eq!(
        peek_remaining_units(
            &after.with_policy(parse_policy("rules: [{ name: a, per: [tenant], limits: [10/m] }]"))
        ),
        10
    );
}

#[test]
fn charge_can_be_reverted_after_policy_change() {
    let before = new_gate("rules: [{ name: a, per: [tenant], limits: [3/h] }]");
    let ruling = check_acme_request(&before);
    let after =
        before.with_policy(parse_policy("rules: [{ name: a, per: [tenant], limits: [2/h] }]"));
    assert_eq!(peek_remaining_units(&after), 1);
    block_on(after.revert(ruling.decision())).unwrap();
    assert_eq!(peek_remaining_units(&after), 2);
}

#[test]
fn local_counts_and_instance_count_survive_policy_change() {
    let clock = new_clock();
    let store = FaultyStore::new(&clock, 1, ALWAYS_UNAVAILABLE, 1);
    let before = Gate::new(parse_policy("rules: [{ name: a, limits: [8/h] }]"), store)
        .with_local_clock(clock)
        .with_instances(NonZeroU32::new(2).unwrap());
    assert_eq!((check_acme_request(&before).decision().remaining(), before.local_keys()), (3, 1));
    let after = before.with_policy(parse_policy("rules: [{ name: a, limits: [6/h] }]"));
    assert_eq!((check_acme_request(&after).decision().remaining(), after.local_keys()), (1, 1));
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
    assert!(!check_acme_request(&enforcing).decision().is_allowed());
    let observing = enforcing.with_policy(enforcing.policy().observing());
    assert!(check_acme_request(&observing).decision().is_allowed());
    let ruling = check_acme_request(&observing);
    assert!(ruling.decision().is_allowed() && ruling.binding().is_none());
    assert!(ruling.limits().all(|status| status.is_observed()));
    let exceeded = ruling.limits().filter(|status| !status.outcome.fits());
    let exceeded: Vec<&str> = exceeded.map(|status| status.rule.name()).collect();
    assert_eq!(exceeded, ["limited", "share", "banned", "missing"]);
    store.set_faults(ALWAYS_UNAVAILABLE);
    assert!(!check_acme_request(&enforcing).decision().is_allowed());
    assert!(check_acme_request(&observing).decision().is_allowed());
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

/// Checks a request. Returns one pair for each limit of the ruling: the name of its rule, and the tenant whose requests
/// the limit counts.
fn rule_and_tenant_per_limit(
    gate: &Gate<FaultyStore>,
    request: &Request<'_>,
) -> Vec<(String, String)> {
    let matched = gate.policy().apply(request);
    let ruling = block_on(gate.check_matched(&matched));
    let rule_and_tenant = |status: LimitStatus<'_>| {
        let rule_match = status.find_match(&matched).unwrap();
        assert_eq!(rule_match.rule().name(), status.rule.name());
        let values = rule_match.identity().map(|(_, value)| value.to_string());
        (status.rule.name().to_owned(), values.collect::<Vec<_>>().join(","))
    };
    ruling.limits().map(rule_and_tenant).collect()
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
    let gate = Gate::new(parse_policy(rules), store.clone()).with_local_clock(clock);
    let descriptors = ["acme", "bob"].map(|tenant| Descriptor::new([("tenant", tenant)]));
    let request = Request::with_descriptors("default", descriptors);
    let pair = |rule: &str, tenant: &str| (rule.to_owned(), tenant.to_owned());
    let pairs = |tenant| [pair("lenient", tenant), pair("local", tenant), pair("local", tenant)];
    assert_eq!(rule_and_tenant_per_limit(&gate, &request), [pairs("acme"), pairs("bob")].concat());
    store.set_faults(ALWAYS_UNAVAILABLE);
    let local_only = [pairs("acme")[1..].to_vec(), pairs("bob")[1..].to_vec()].concat();
    assert_eq!(rule_and_tenant_per_limit(&gate, &request), local_only);
}
