//! Tests of the units that rules charge and require: costs per rule, reports of consumed units, debts, and required
//! free units. Other tests cover limits in mode `jointly`, which deny a request only if none of them has capacity for
//! it.

use std::time::Duration;

use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request, Timestamp};

type TestGate = Gate<MemoryStore<ManualClock>>;

fn new_gate(yaml: &str) -> TestGate {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    Gate::new(Policy::from_yaml(yaml).unwrap(), MemoryStore::with_clock(clock, 10_000))
}

/// Creates a gate whose policy has a single rule with these YAML fields.
fn gate_with_rule(fields: &str) -> TestGate {
    new_gate(&format!("rules: [{{ name: a, {fields} }}]"))
}

fn new_request<'a>(attributes: &[(&'a str, &'a str)], cost: u64) -> Request<'a> {
    Request::new("default", Descriptor::new(attributes.iter().copied()).cost(cost))
}

#[test]
fn charge_always_rule_charges_denied_request() {
    let gate =
        gate_with_rule("per: [user], limits: [1000/min], algorithm: sliding_log, charge: always");
    let user = [("user", "u")];
    let check = |cost: u64| gate.check(&new_request(&user, cost));
    assert!(check(0).is_allowed());
    assert!(check(700).is_allowed());
    let denied = check(2_500);
    assert!(!denied.is_allowed() && denied.remaining() == 0);
    assert_eq!(denied.receipt().charges()[0].cost, 2_500, "charged although denied");
    let wait = denied.retry_after().unwrap();
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(60), "until one unit fits");
    assert!(!check(0).is_allowed(), "in debt");
    let banned = gate_with_rule("per: [user], charge: always, limits: denied");
    let decision = banned.check(&new_request(&user, 5));
    assert!(!decision.is_allowed() && decision.receipt().is_empty());
}

#[test]
fn denial_by_charge_always_rule_charges_no_other_rule() {
    let gate = new_gate(
        "
rules:
  - { name: requests, per: [user], limits: [10/h], cost: 1 }
  - { name: tokens, per: [user], limits: [100/h], charge: always }
",
    );
    let user = [("user", "u")];
    let decision = gate.check(&new_request(&user, 500));
    let left: Vec<u64> = decision.limits().map(|limit| limit.remaining()).collect();
    assert_eq!((decision.is_allowed(), left), (false, vec![10, 0]));
}

/// Returns the remaining units of each limit that applies to the descriptor.
fn remaining_units(gate: &TestGate, descriptor: Descriptor<'_>) -> Vec<u64> {
    let decision = gate.peek(&Request::new("default", descriptor.cost(0)));
    decision.limits().map(|limit| limit.remaining()).collect()
}

const POLICY_WITH_DIFFERENT_COSTS: &str = "
rules:
  - { name: requests, per: [user], limits: [10/h], cost: 1 }
  - { name: exports, per: [user], limits: [100/h], cost: 20 }
  - { name: tokens, per: [user], limits: [1000/h], cost: tokens }
  - { name: bytes, per: [user], limits: [5000/h] }
";

#[test]
fn each_rule_charges_its_own_cost() {
    let gate = new_gate(POLICY_WITH_DIFFERENT_COSTS);
    let ann = || Descriptor::new([("user", "ann")]);
    let check = |descriptor| gate.check(&Request::new("default", descriptor));
    assert!(check(ann()).is_allowed());
    assert_eq!(
        remaining_units(&gate, ann()),
        [9, 80, 1000, 4999],
        "a named cost that is absent charges nothing"
    );
    assert!(check(ann().cost(7).with_cost("tokens", 300)).is_allowed());
    assert_eq!(remaining_units(&gate, ann()), [8, 60, 700, 4992]);
    let denied = check(ann().with_cost("tokens", 701));
    assert!(!denied.is_allowed());
    assert_eq!(denied.binding().unwrap().policy_name(), "tokens");
    assert_eq!(
        remaining_units(&gate, ann()),
        [8, 60, 700, 4992],
        "a denied request charges nothing"
    );
}

#[test]
fn exhausted_rule_denies_request_without_named_cost() {
    let gate = gate_with_rule("per: [user], limits: [100/h], cost: tokens");
    let ann = || Descriptor::new([("user", "ann")]);
    let check = |descriptor| gate.check(&Request::new("default", descriptor));
    assert!(check(ann().with_cost("tokens", 100)).is_allowed());
    assert!(!check(ann()).is_allowed(), "no unit is left");
    assert!(!check(ann().with_cost("other", 5)).is_allowed());
}

#[test]
fn usage_report_charges_only_costs_in_request() {
    let gate = new_gate(POLICY_WITH_DIFFERENT_COSTS);
    let ann = || Descriptor::new([("user", "ann")]);
    let report = |descriptor| gate.report(&Request::new("default", descriptor));
    let decision = report(ann().with_cost("tokens", 1_800));
    assert!(decision.is_allowed(), "a report never denies");
    let charged: Vec<&str> = decision.limits().map(|limit| limit.policy_name()).collect();
    assert_eq!(charged, ["tokens"]);
    assert!(decision.limits().all(|limit| !limit.is_observed()));
    assert_eq!(remaining_units(&gate, ann()), [10, 100, 0, 5000]);
    assert!(!gate.check(&Request::new("default", ann())).is_allowed());
    assert!(report(ann().cost(4_000).with_cost("none", 3)).is_allowed());
    assert_eq!(remaining_units(&gate, ann()), [10, 100, 0, 1000]);
    assert_eq!(report(ann()).limits().count(), 0, "nothing to report");
}

#[test]
fn usage_report_is_not_denied_by_other_rules() {
    let gate = new_gate(
        "
rules:
  - { name: rate, per: [user], limits: [10/s] }
  - { name: tokens, per: [user], limits: [100000/d], cost: tokens }
",
    );
    let ann = Descriptor::new([("user", "ann")]).with_cost("tokens", 1_800);
    let decision = gate.report(&Request::new("default", ann));
    let left: Vec<u64> = decision.limits().map(|limit| limit.remaining()).collect();
    assert_eq!(left, [98_200]);
}

#[test]
fn rule_denies_unless_required_units_are_free() {
    let gate = gate_with_rule("per: [user], limits: [100/h], cost: tokens, required: 30");
    let ann = || Descriptor::new([("user", "ann")]);
    let check = |descriptor| gate.check(&Request::new("default", descriptor));
    assert!(check(ann().with_cost("tokens", 70)).is_allowed());
    assert!(check(ann()).is_allowed(), "30 are free");
    assert!(!check(ann().with_cost("tokens", 31)).is_allowed());
    let _ = gate.report(&Request::new("default", ann().with_cost("tokens", 1)));
    assert!(!check(ann()).is_allowed(), "29 are free");
}

#[test]
fn rule_requiring_zero_units_denies_above_max() {
    let gate = gate_with_rule("per: [user], limits: [100/h], required: 0");
    let check = |cost: u64| gate.check(&new_request(&[("user", "u")], cost));
    assert!(check(100).is_allowed() && check(0).is_allowed(), "at max");
    assert!(!check(1).is_allowed());
    let _ = gate.report(&new_request(&[("user", "u")], 1));
    let denied = check(0);
    assert!(!denied.is_allowed() && denied.retry_after().is_some(), "above max");
    let banned = gate_with_rule("per: [user], limits: denied, required: 0");
    assert!(!banned.check(&new_request(&[("user", "u")], 0)).is_allowed());
}

#[test]
fn request_is_denied_if_no_joint_limit_fits() {
    let gate = new_gate(
        "
rules:
  - { name: own, per: [user], limits: [2/h], mode: jointly, algorithm: sliding_log }
  - { name: shared, per: [team], limits: [3/d], mode: jointly, algorithm: sliding_log }
  - { name: all, limits: [100/h] }
",
    );
    let check = |user, team| {
        let descriptor = Descriptor::new([("user", user), ("team", team)]);
        gate.check(&Request::new("default", descriptor))
    };
    for _ in 0..2 {
        assert!(check("ann", "red").is_allowed());
    }
    let shared = check("ann", "red");
    assert!(shared.is_allowed(), "the team's quota fits");
    let left: Vec<u64> = shared.limits().map(|limit| limit.remaining()).collect();
    assert_eq!(left, [0, 0, 97], "a joint limit that does not fit is not charged");
    let denied = check("ann", "red");
    assert!(!denied.is_allowed());
    assert_eq!(denied.binding().unwrap().policy_name(), "own", "the soonest of the joint limits");
    assert!(check("bob", "red").is_allowed(), "bob's own quota fits");
}

#[test]
fn settlement_corrects_only_unnamed_cost() {
    let gate = new_gate(POLICY_WITH_DIFFERENT_COSTS);
    let ann = || Descriptor::new([("user", "ann")]);
    for (settled, expected) in [(4, [9, 80, 700, 4996]), (30, [8, 60, 400, 4966])] {
        let request = Request::new("default", ann().cost(10).with_cost("tokens", 300));
        let decision = gate.check(&request);
        gate.settle(&decision, settled);
        assert_eq!(remaining_units(&gate, ann()), expected);
    }
}
