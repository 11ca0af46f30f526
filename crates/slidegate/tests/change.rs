//! What stays when the policy of a gate changes, and what a policy says that only watches.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use std::num::NonZeroU32;

use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Descriptor, Gate, LimitStatus, ManualClock, MemoryStore, Policy, Request, Ruling, Store,
    Timestamp,
};

const UP: Faults = Faults { unavailable: 0, lost_before: 0, lost_after: 0 };
const DOWN: Faults = Faults { unavailable: 100, ..UP };

fn policy(yaml: &str) -> Policy {
    Policy::from_yaml(yaml).unwrap()
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_750_000_020))
}

fn gate(yaml: &str) -> Gate<MemoryStore<ManualClock>> {
    Gate::new(policy(yaml), MemoryStore::with_clock(clock(), 1_000))
}

fn acme() -> Request<'static> {
    Request::new("default", Descriptor::new([("tenant", "acme"), ("plan", "free")]))
}

fn check<S: Store>(gate: &Gate<S>) -> Ruling {
    block_on(gate.check(&acme()))
}

fn left<S: Store>(gate: &Gate<S>) -> u64 {
    block_on(gate.peek(&acme())).decision().remaining()
}

#[test]
fn counts_survive_another_policy_and_another_max() {
    let before =
        gate("rules: [{ name: a, per: [tenant], limits: [10/h], algorithm: sliding_log }]");
    (0..4).for_each(|_| assert!(check(&before).decision().is_allowed()));
    let after = before.with_policy(policy(
        "rules: [{ name: new, limits: [1000/s] }, { name: a, per: [tenant], limits: [5/h], algorithm: sliding_log }]",
    ));
    assert_eq!(left(&after), 1);
    assert!(check(&before).decision().is_allowed(), "what is under way counts on");
    assert_eq!(left(&after), 0);
    assert_eq!(
        left(&after.with_policy(policy("rules: [{ name: a, per: [tenant], limits: [10/m] }]"))),
        10
    );
}

#[test]
fn what_the_old_policy_charged_is_given_back_under_the_new_one() {
    let before = gate("rules: [{ name: a, per: [tenant], limits: [3/h] }]");
    let ruling = check(&before);
    let after = before.with_policy(policy("rules: [{ name: a, per: [tenant], limits: [2/h] }]"));
    assert_eq!(left(&after), 1);
    block_on(after.revert(ruling.decision())).unwrap();
    assert_eq!(left(&after), 2);
}

#[test]
fn what_is_counted_locally_survives_too_and_so_does_the_part_of_an_instance() {
    let clock = clock();
    let store = FaultyStore::new(&clock, 1, DOWN, 1);
    let before = Gate::new(policy("rules: [{ name: a, limits: [8/h] }]"), store)
        .with_local_clock(clock)
        .expecting_instances(NonZeroU32::new(2).unwrap());
    assert_eq!((check(&before).decision().remaining(), before.local_keys()), (3, 1));
    let after = before.with_policy(policy("rules: [{ name: a, limits: [6/h] }]"));
    assert_eq!((check(&after).decision().remaining(), after.local_keys()), (1, 1));
}

/// Every way to be denied: by a limit, a ban, a missing attribute, a share of the keys, a lost store.
#[test]
fn a_policy_that_observes_denies_nothing_and_tells_what_it_would_have() {
    let rules = "
rules:
  - { name: limited, per: [tenant], limits: [1/h] }
  - { name: share, per: [tenant], limits: [1/h], mode: { enforce: 50% } }
  - { name: banned, per: [tenant], limits: [9/h], overrides: [{ when: { plan: free }, limits: denied }] }
  - { name: missing, per: [nowhere], when_missing: deny, limits: [9/h] }
  - { name: off, limits: [0/h], mode: off }
  - { name: lost, limits: [9/h], on_store_error: deny }
";
    let clock = clock();
    let store = FaultyStore::new(&clock, 1, UP, 1);
    let enforcing = Gate::new(policy(rules), store.clone());
    assert!(!check(&enforcing).decision().is_allowed());
    let observing = enforcing.with_policy(enforcing.policy().observing());
    assert!(check(&observing).decision().is_allowed());
    let ruling = check(&observing);
    assert!(ruling.decision().is_allowed() && ruling.binding().is_none());
    assert!(ruling.limits().all(|standing| standing.is_observed()));
    let full = ruling.limits().filter(|standing| !standing.outcome.fits());
    let full: Vec<&str> = full.map(|standing| standing.rule.name()).collect();
    assert_eq!(full, ["limited", "share", "banned", "missing"]);
    store.set_faults(DOWN);
    assert!(!check(&enforcing).decision().is_allowed());
    assert!(check(&observing).decision().is_allowed());
}

#[test]
fn every_limit_has_a_place_of_its_own() {
    let policy = policy(
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
    for (nth, (_, limit)) in policy.limits().enumerate() {
        assert_eq!(limit.index(), nth);
    }
}

/// The rule, and the tenant that was counted.
fn asked_by(gate: &Gate<FaultyStore>, request: &Request<'_>) -> Vec<(String, String)> {
    let applied = gate.policy().apply(request);
    let ruling = block_on(gate.check_matched(&applied));
    let who = |standing: LimitStatus<'_>| {
        let one = standing.asked_by(&applied).unwrap();
        assert_eq!(one.rule().name(), standing.rule.name());
        let values = one.identity().map(|(_, value)| value.to_string());
        (standing.rule.name().to_owned(), values.collect::<Vec<_>>().join(","))
    };
    ruling.limits().map(who).collect()
}

#[test]
fn a_limit_knows_who_asked_for_it_also_of_several_and_without_a_store() {
    let rules = "
rules:
  - { name: lenient, per: [tenant], limits: [1/h], on_store_error: allow }
  - { name: local, per: [tenant], limits: [5/h, 1/s] }
";
    let clock = clock();
    let store = FaultyStore::new(&clock, 1, UP, 1);
    let gate = Gate::new(policy(rules), store.clone()).with_local_clock(clock);
    let descriptors = ["acme", "bob"].map(|tenant| Descriptor::new([("tenant", tenant)]));
    let request = Request::of_descriptors("default", descriptors);
    let pair = |rule: &str, tenant: &str| (rule.to_owned(), tenant.to_owned());
    let of = |tenant| [pair("lenient", tenant), pair("local", tenant), pair("local", tenant)];
    assert_eq!(asked_by(&gate, &request), [of("acme"), of("bob")].concat());
    store.set_faults(DOWN);
    let without = [of("acme")[1..].to_vec(), of("bob")[1..].to_vec()].concat();
    assert_eq!(asked_by(&gate, &request), without);
}
