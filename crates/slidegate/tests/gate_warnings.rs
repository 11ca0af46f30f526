//! Tests of the warnings of a gate: costs that no rule charges, so that their units are not limited, and limits that its
//! store does not support.

use slidegate::gate::PolicyFileError;
use slidegate::{ActualCosts, Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

use crate::log::Log;

const POLICY: &str = "
rules:
  - { name: requests, limits: [1000/min], cost: 1 }
  - { name: tokens, limits: [1000/min], cost: tokens }
  - { name: pages, when: { kind: scan }, limits: [1000/min], cost: pages }
  - { name: images, domain: other, limits: [10/min], cost: images }
";

/// Returns the lines that `call` logs. It gets a gate of its own.
fn log_of(call: impl Fn(&Gate)) -> Vec<String> {
    let gate = Gate::new(Policy::from_yaml(POLICY).unwrap(), MemoryStore::new());
    log_lines(|| call(&gate))
}

/// Returns the lines that `run` logs.
fn log_lines(run: impl FnOnce()) -> Vec<String> {
    let log = Log::new();
    run();
    log.take_lines()
}

fn request(cost: &str) -> Request<'_> {
    Request::new("default", Descriptor::new([]).with_cost(cost, 50))
}

fn named(cost: &str, units: u64) -> ActualCosts<'_> {
    ActualCosts::new().with_cost(cost, units)
}

/// Asserts that each call logs one warning, however often it is made, about the cost `token`.
#[track_caller]
fn assert_warns_once(call: impl Fn(&Gate)) {
    let lines = log_of(|gate| (0..3).for_each(|_| call(gate)));
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains(r#"cost="token" did_you_mean="tokens""#), "{}", lines[0]);
}

#[test]
fn misspelt_cost_of_request_is_warned_about_once() {
    assert_warns_once(|gate| drop(gate.check(&request("token"))));
    assert_warns_once(|gate| drop(gate.report(&request("token"))));
    assert_warns_once(|gate| drop(gate.reserve(&request("token")).unwrap()));
    assert_warns_once(|gate| gate.refund(&request("token")));
}

#[test]
fn misspelt_cost_of_settlement_is_warned_about_once() {
    assert_warns_once(|gate| {
        let decision = gate.check(&request("tokens"));
        gate.settle(&decision, named("token", 10));
    });
    assert_warns_once(|gate| {
        let reservation = gate.reserve(&request("tokens")).unwrap();
        reservation.settle(named("token", 10));
    });
}

#[test]
fn settled_cost_without_name_is_warned_about_once() {
    let costs = Descriptor::new([("kind", "scan")]).with_cost("tokens", 50).with_cost("pages", 5);
    let request = Request::new("default", costs);
    let lines = log_of(|gate| {
        for _ in 0..3 {
            gate.settle(&gate.check(&request), 10);
        }
    });
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains(r#"charged="pages, tokens""#), "{}", lines[0]);
}

#[test]
fn known_costs_cause_no_warning() {
    let lines = log_of(|gate| {
        let decision = gate.check(&request("tokens"));
        gate.settle(&decision, named("tokens", 10));
        // No rule that applies charges it, but a rule of another domain does.
        gate.settle(&decision, named("images", 10));
        let _ = gate.report(&request("tokens"));
        gate.reserve(&request("tokens")).unwrap().settle(ActualCosts::cancelled());
    });
    assert_eq!(lines, [""; 0]);
}

#[test]
fn replaced_policy_causes_new_warning() {
    let lines = log_of(|gate| {
        let _ = gate.report(&request("token"));
        gate.replace_policy(Policy::from_yaml(POLICY).unwrap());
        let _ = gate.report(&request("token"));
    });
    assert_eq!(lines.len(), 2, "{lines:#?}");
}

#[test]
fn costs_from_clients_cause_bounded_warnings() {
    let lines = log_of(|gate| {
        for nth in 0..100 {
            let _ = gate.check(&request(&format!("cost\n{nth}")));
        }
    });
    assert_eq!(lines.len(), 16, "each warning is one line");
}

/// A policy with three limits, of which the store of `examples/store.rs` supports the last one.
const POLICY_WITH_UNSUPPORTED_LIMITS: &str = "
rules:
  - { name: default-algorithm, limits: [9/s, 9/min] }
  - name: override
    limits: [9/s]
    algorithm: sliding_buckets
    overrides: [{ when: { plan: pro }, limits: [99/s], algorithm: token_bucket }]
  - { name: supported, limits: [9/s], algorithm: sliding_buckets }
";

#[test]
fn rules_with_unsupported_limits_are_warned_about() {
    let policy = || Policy::from_yaml(POLICY_WITH_UNSUPPORTED_LIMITS).unwrap();
    let store = crate::example_store::MapStore::new(ManualClock::default());
    let lines = log_lines(|| Gate::new(policy(), store).replace_policy(policy()));
    let rules = ["default-algorithm", "override"].repeat(2);
    assert_eq!(lines.len(), rules.len(), "{lines:#?}");
    for (line, rule) in lines.iter().zip(rules) {
        let fields = format!(
            r#"rule="{rule}" domain="default" reason="use sliding_buckets, the only algorithm of this store""#
        );
        assert!(line.contains(&fields), "{line}");
    }
    let lines = log_lines(|| drop(Gate::new(policy(), MemoryStore::new())));
    assert_eq!(lines, [""; 0]);
}

#[test]
fn policy_file_with_unsupported_limits_is_rejected() {
    let path = format!("{}/unsupported-limits.yaml", env!("CARGO_TARGET_TMPDIR"));
    std::fs::write(&path, POLICY_WITH_UNSUPPORTED_LIMITS).unwrap();
    let store = crate::example_store::MapStore::new(ManualClock::default());
    let error = Gate::follow_policy_file(path, store, |_| {}).err().unwrap();
    let PolicyFileError::Invalid { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.0.len(), 3, "{source}");
}
