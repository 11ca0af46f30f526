//! Tests of rules for the descriptors that Envoy sends.

use slidegate::policy::NoMatchReason;
use slidegate::{
    Decision, Descriptor, Gate, ManualClock, MemoryStore, Policy, Quota, Request, Timestamp,
};

type TestGate = Gate<MemoryStore<ManualClock>>;

fn new_test_gate(yaml: &str) -> TestGate {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    Gate::new(Policy::from_yaml(yaml).unwrap(), MemoryStore::with_clock(clock, 10_000))
}

fn new_exact_descriptor<'a>(attributes: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    Descriptor::new(attributes.iter().copied()).exact()
}

fn new_request<'a>(descriptors: impl IntoIterator<Item = Descriptor<'a>>) -> Request<'a> {
    Request::with_descriptors("default", descriptors)
}

/// Returns the names of the rules that apply to a request with one descriptor.
fn matching_rule_names(policy: &Policy, descriptor: Descriptor<'_>) -> Vec<String> {
    let request = new_request([descriptor]);
    policy.apply(&request).matches().map(|matched| matched.rule().name().to_owned()).collect()
}

/// Returns a row for each limit of a decision: index of the descriptor, name of the limit, max, and remaining units.
fn descriptor_limit_max_and_remaining<'d>(
    decision: &'d Decision<'_>,
) -> Vec<(usize, &'d str, u64, u64)> {
    let limits = decision.limits().map(|status| {
        let max = status.limit().quota().max();
        (status.descriptor(), status.policy_name(), max, status.remaining())
    });
    limits.collect()
}

fn parse_quota(text: &str) -> Quota {
    text.parse().unwrap()
}

const NAMED_ATTRIBUTES_POLICY: &str = "
routes: ['/users/{id}']
rules:
  - { name: all, limits: [9/s] }
  - { name: user, per: [user], limits: [9/s], overrides: [{ when: { plan: pro }, limits: [99/s] }] }
  - { name: either, per: [key|ip], limits: [9/s] }
  - { name: not-a, when: { method: { not: A } }, limits: [9/s] }
  - { name: strict, per: [strict], when_missing: deny, limits: [9/s] }
  - { name: route, per: [route], limits: [9/s] }
  - { name: open, per: [guest], limits: unlimited }
";

#[test]
fn exact_descriptor_matches_rules_naming_all_attributes() {
    let policy = Policy::from_yaml(NAMED_ATTRIBUTES_POLICY).unwrap();
    for (attributes, rules) in [
        (&[][..], &["all"][..]),
        (&[("user", "u")], &["user"]),
        (&[("user", "u"), ("plan", "free")], &["user"]),
        (&[("plan", "pro")], &[]),
        (&[("user", "u"), ("other", "o")], &[]),
        (&[("key", "k")], &["either"]),
        (&[("key", "k"), ("ip", "192.0.2.7")], &["either"]),
        (&[("method", "B")], &["not-a"]),
        (&[("method", "A")], &[]),
        (&[("strict", "s")], &["strict"]),
        (&[("path", "/users/7")], &["route"]),
        (&[("path", "/elsewhere")], &[]),
        (&[("guest", "g")], &["open"]),
    ] {
        assert_eq!(
            matching_rule_names(&policy, new_exact_descriptor(attributes)),
            rules,
            "{attributes:?}"
        );
    }
}

#[test]
fn inexact_descriptor_matches_rules_despite_additional_attributes() {
    let policy = Policy::from_yaml(NAMED_ATTRIBUTES_POLICY).unwrap();
    let rules = matching_rule_names(&policy, Descriptor::new([("user", "u"), ("other", "o")]));
    assert_eq!(rules, ["all", "user", "not-a", "strict", "open"]);
}

#[test]
fn descriptor_rule_requires_exact_names_in_order() {
    let policy = Policy::from_yaml(
        "rules: [{ name: a, descriptor: [plan, user, 'user#2'], when: { plan: pro }, per: [user], limits: [9/s] }]",
    )
    .unwrap();
    let applies = |names: &[(&str, &str)]| {
        let exact = matching_rule_names(&policy, new_exact_descriptor(names)).len();
        assert_eq!(
            exact,
            matching_rule_names(&policy, Descriptor::new(names.iter().copied())).len()
        );
        exact == 1
    };
    assert!(applies(&[("plan", "pro"), ("user", "u"), ("user#2", "v")]));
    assert!(!applies(&[("plan", "free"), ("user", "u"), ("user#2", "v")]));
    assert!(!applies(&[("user", "u"), ("plan", "pro"), ("user#2", "v")]));
    assert!(!applies(&[("plan", "pro"), ("user", "u")]));
    assert!(!applies(&[("plan", "pro"), ("user", "u"), ("user#2", "v"), ("x", "")]));
}

#[test]
fn descriptor_rule_conditions_are_not_normalized() {
    let policy = Policy::from_yaml(
        "
rules:
  - { name: a, descriptor: [path, method], when: { path: 'api*', method: get }, limits: [9/s] }
  - { name: net, descriptor: [net], when: { net: { literal: [10.0.0.0/8, 'a*'] } }, limits: [9/s] }
  - { name: rest, descriptor: [net], when: { net: { not: { literal: [10.0.0.0/8, 'a*'] } } }, limits: [9/s] }
",
    )
    .unwrap();
    assert_eq!(
        matching_rule_names(&policy, new_exact_descriptor(&[("path", "api/x"), ("method", "get")])),
        ["a"]
    );
    for (value, rule) in
        [("10.0.0.0/8", "net"), ("10.0.0.1", "rest"), ("a*", "net"), ("ab", "rest")]
    {
        assert_eq!(
            matching_rule_names(&policy, new_exact_descriptor(&[("net", value)])),
            [rule],
            "{value}"
        );
    }
}

#[test]
fn replaced_rule_applies_to_no_descriptor() {
    let gate = new_test_gate(
        "
rules:
  - { name: read, per: [read], limits: [5/min] }
  - { name: write, per: [write], limits: [5/min] }
  - { name: search, per: [search], replaces: [read, special], limits: [9/min] }
  - { name: special, per: [special], replaces: [write], limits: [9/min] }
",
    );
    let check = |names: &[&str]| {
        let descriptors: Vec<_> =
            names.iter().map(|name| new_exact_descriptor(&[(name, "1")])).collect();
        let decision = gate.check(&new_request(descriptors));
        descriptor_limit_max_and_remaining(&decision)
            .iter()
            .map(|row| (row.0, row.1.to_owned(), row.3))
            .collect::<Vec<_>>()
    };
    let left = |index: usize, name: &str, left: u64| (index, name.to_owned(), left);
    assert_eq!(check(&["read", "write"]), [left(0, "read", 4), left(1, "write", 4)]);
    // A replaced rule still replaces others, so the order of rules does not matter.
    assert_eq!(check(&["read", "search", "special", "write"]), [left(1, "search", 8)]);
    assert_eq!(check(&["read", "write"]), [left(0, "read", 3), left(1, "write", 3)]);

    let input = new_request([
        new_exact_descriptor(&[("read", "1")]),
        new_exact_descriptor(&[("search", "1")]),
    ]);
    let policy = gate.policy();
    let reasons: Vec<_> = policy.explain(&input).filter_map(|(_, result)| result.err()).collect();
    assert!(reasons.contains(&NoMatchReason::Replaced("search")), "{reasons:?}");
}

#[test]
fn denied_request_charges_none_of_its_descriptors() {
    let gate = new_test_gate(
        "rules: [{ name: a, per: [a], limits: [2/min] }, { name: b, per: [b], limits: [1/min] }]",
    );
    let both =
        || new_request([new_exact_descriptor(&[("a", "1")]), new_exact_descriptor(&[("b", "1")])]);
    assert!(gate.check(&both()).is_allowed());
    for _ in 0..3 {
        let decision = gate.check(&both());
        assert!(!decision.is_allowed());
        assert_eq!(descriptor_limit_max_and_remaining(&decision), [(0, "a", 2, 1), (1, "b", 1, 0)]);
    }
}

#[test]
fn requested_limit_replaces_max_and_keeps_counter() {
    let gate = new_test_gate(
        "rules: [{ name: a, per: [a], limits: [2/min, 100/h], algorithm: sliding_log }]",
    );
    let check = |limit: Option<&str>| {
        let descriptor = new_exact_descriptor(&[("a", "1")]);
        let descriptor = match limit {
            Some(limit) => descriptor.with_limit(parse_quota(limit)),
            None => descriptor,
        };
        let decision = gate.check(&new_request([descriptor]));
        let algorithm = decision.limits().next().unwrap().limit().algorithm().name();
        assert_eq!(algorithm, "sliding_log");
        let rows = descriptor_limit_max_and_remaining(&decision)
            .iter()
            .map(|row| (row.1.to_owned(), row.2, row.3))
            .collect();
        (decision.is_allowed(), rows)
    };
    let a = |max, left| vec![("a".to_owned(), max, left)];
    assert_eq!(check(Some("5/min")), (true, a(5, 4)));
    assert_eq!(check(Some("5/min")), (true, a(5, 3)));
    assert_eq!(check(Some("1/s")), (true, a(1, 0)));
    let (allowed, rows): (_, Vec<_>) = check(None);
    assert_eq!((allowed, &rows[0]), (false, &("a.1m".to_owned(), 2, 0)));
}

#[test]
fn requested_limits_rule_applies_in_place_of_others() {
    let gate = new_test_gate(
        "
rules:
  - { name: a, per: [a], limits: unlimited }
  - { name: own, limits: requested }
  - { name: own, domain: observed, limits: requested, mode: observe }
  - { name: x, domain: off, per: [x], limits: [5/s] }
  - { name: own, domain: off, limits: requested, mode: 'off' }
",
    );
    let check = |pairs: &[(&'static str, &'static str)], limit: Option<&str>| {
        let descriptor = new_exact_descriptor(pairs);
        let descriptor = match limit {
            Some(limit) => descriptor.with_limit(parse_quota(limit)),
            None => descriptor,
        };
        let decision = gate.check(&new_request([descriptor]));
        let rows: Vec<_> = descriptor_limit_max_and_remaining(&decision)
            .iter()
            .map(|row| (row.1.to_owned(), row.3))
            .collect();
        (decision.is_allowed(), rows)
    };
    let left = |name: &str, left| vec![(name.to_owned(), left)];
    let xy = [("x", "1"), ("y", "2")];
    assert_eq!(check(&xy, None), (true, vec![]));
    assert_eq!(check(&xy, Some("1/min")), (true, left("own", 0)));
    assert_eq!(check(&xy, Some("1/min")), (false, left("own", 0)));
    assert_eq!(check(&[("y", "2"), ("x", "1")], Some("1/min")), (true, left("own", 0)));
    assert_eq!(check(&[("x", "1"), ("y", "3")], Some("1/min")), (true, left("own", 0)));
    assert_eq!(check(&[("a", "1")], Some("2/min")), (true, left("own", 1)));
    assert_eq!(check(&[("a", "1")], None), (true, vec![]));

    let observed = Request::with_descriptors(
        "observed",
        [new_exact_descriptor(&xy).with_limit(parse_quota("0/s"))],
    );
    let decision = gate.check(&observed);
    assert!(decision.is_allowed());
    assert!(decision.limits().next().is_some_and(|status| status.is_observed() && !status.fits()));
    let off = new_exact_descriptor(&[("x", "1")]).with_limit(parse_quota("2/s"));
    let decision = gate.check(&Request::with_descriptors("off", [off]));
    assert_eq!(descriptor_limit_max_and_remaining(&decision), [(0, "x", 2, 1)]);
}

#[test]
fn requested_limits_rule_ignores_modes_and_replaces() {
    let gate = new_test_gate(
        "
rules:
  - { name: shadow, per: [shadow], limits: [5/min], mode: observe }
  - { name: joint, per: [joint], limits: [5/min], mode: jointly }
  - { name: base, per: [base], limits: [5/min], replaces: [other], cost: 2 }
  - { name: other, per: [other], limits: [5/min], replaces: [base] }
  - { name: own, limits: requested }
",
    );
    for name in ["shadow", "joint", "base"] {
        let denied = new_exact_descriptor(&[(name, "1")]).with_limit(parse_quota("0/min"));
        let other = new_exact_descriptor(&[("other", "1")]);
        let request = new_request([denied.clone(), other.clone()]);
        let decision = gate.check(&request);
        assert!(!decision.is_allowed(), "{name}");
        let rows = descriptor_limit_max_and_remaining(&decision);
        assert_eq!(rows, [(0, "own", 0, 0), (1, "other", 5, 5)], "{name}");
        let policy = gate.policy();
        let reasons: Vec<_> = policy
            .explain(&request)
            .filter(|(rule, _)| rule.name() == name)
            .map(|(_, result)| result.err())
            .collect();
        assert_eq!(reasons[0], Some(NoMatchReason::Replaced("own")), "{name}");
    }
}

#[test]
fn requested_limit_shares_counter_of_same_attributes() {
    let gate = new_test_gate(
        "
rules:
  - { name: user, per: [user], limits: [5/min] }
  - { name: plan, when: { plan: pro }, per: [team], limits: [5/min] }
  - { name: files, when: { file: 'tmp*' }, limits: [5/min] }
  - { name: own, limits: requested }
",
    );
    let remaining = |pairs: &[(&'static str, &'static str)], limit: Option<&str>| {
        let descriptor = new_exact_descriptor(pairs);
        let descriptor = match limit {
            Some(limit) => descriptor.with_limit(parse_quota(limit)),
            None => descriptor,
        };
        gate.check(&new_request([descriptor])).remaining()
    };
    for pairs in [&[("user", "1")][..], &[("plan", "pro"), ("team", "1")]] {
        assert_eq!(remaining(pairs, None), 4, "{pairs:?}");
        assert_eq!(remaining(pairs, Some("9/min")), 7, "the same counter: {pairs:?}");
        assert_eq!(remaining(pairs, Some("9/h")), 8, "another window: {pairs:?}");
        assert_eq!(remaining(pairs, None), 2, "{pairs:?}");
    }
    // The rule counts all files in one counter, and a limit in a descriptor counts one file.
    assert_eq!(remaining(&[("file", "tmp1")], None), 4);
    assert_eq!(remaining(&[("file", "tmp1")], Some("9/min")), 8);
    assert_eq!(remaining(&[("file", "tmp2")], Some("9/min")), 8);
    assert_eq!(remaining(&[("file", "tmp2")], None), 3);
}

#[test]
fn requested_limit_beside_limit_on_requests_in_flight_counts_rate() {
    let gate = new_test_gate(
        "rules: [{ name: a, per: [a], limits: [{ concurrent: 2, permit_ttl: 60s }, 100/min] }]",
    );
    let descriptor = new_exact_descriptor(&[("a", "1")]).with_limit(parse_quota("9/min"));
    let decision = gate.check(&new_request([descriptor]));
    let limit = decision.limits().next().unwrap().limit();
    assert_eq!((limit.algorithm().name(), limit.quota().max()), ("sliding_window", 9));
}

#[test]
fn requested_fixed_window_is_aligned_to_clock() {
    let gate = new_test_gate("rules: [{ name: own, limits: requested, algorithm: fixed_window }]");
    let with_limit = new_exact_descriptor(&[("x", "1")]).with_limit(parse_quota("9/min"));
    let decision = gate.check(&new_request([with_limit]));
    // The clock is at the beginning of a minute.
    let reset = decision.limits().next().unwrap().reset_after();
    assert_eq!(reset, std::time::Duration::from_secs(60));
}

#[test]
fn decision_reports_unlimited_descriptors() {
    let gate = new_test_gate(
        "rules: [{ name: a, per: [a], limits: unlimited }, { name: b, per: [b], limits: [1/s] }]",
    );
    let descriptors = [
        new_exact_descriptor(&[("x", "1")]),
        new_exact_descriptor(&[("b", "1")]),
        new_exact_descriptor(&[("a", "1")]),
    ];
    let decision = gate.check(&new_request(descriptors));
    assert_eq!([0, 1, 2, 3].map(|index| decision.is_unlimited(index)), [false, false, true, false]);
}

#[test]
fn invalid_descriptor_fields_are_reported() {
    for (fields, message) in [
        ("descriptor: [], limits: [1/s]", "`descriptor` lists 0 attributes; list 1 to 32"),
        (
            "descriptor: [a, a], limits: [1/s]",
            "`a` is listed twice in `descriptor`; write `a#2` for the second one",
        ),
        (
            "descriptor: [user], per: [uesr], limits: [1/s]",
            "this rule never applies, because `uesr` is not listed in `descriptor`; did you mean `user`?",
        ),
        (
            "descriptor: [user], when: { plan: pro }, limits: [1/s]",
            "`plan` is not listed in `descriptor`; add it there, or remove it here",
        ),
        ("replaces: [], limits: [1/s]", "`replaces` lists 0 rules; list 1 to 1000"),
        ("replaces: [a], limits: [1/s]", "a rule cannot replace itself"),
        ("replaces: [bb], limits: [1/s]", "unknown rule `bb` in domain `default`; write the name"),
        (
            "replaces: [othr], limits: [1/s]",
            "unknown rule `othr` in domain `default`; did you mean `other`?",
        ),
        ("per: [a], limits: requested", "counts by all of its attributes; remove `per`"),
        (
            "limits: [1/s], overrides: [{ when: { a: b }, limits: requested }]",
            "an override cannot have `requested`",
        ),
        (
            "limits: requested }, { name: again, limits: requested",
            "domain `default` already has a rule with `limits: requested`",
        ),
        (
            "when: { a: { not: x, literal: [y] } }, limits: [1/s]",
            "a condition has either `not` or `literal`",
        ),
        ("when: { a: { literal: [] } }, limits: [1/s]", "the list is empty and matches nothing"),
    ] {
        let yaml = format!("rules: [{{ name: a, {fields} }}, {{ name: other, limits: [1/s] }}]");
        let errors = Policy::from_yaml(&yaml).unwrap_err();
        assert_eq!(errors.0.len(), 1, "{fields}: {errors}");
        assert!(errors.to_string().contains(message), "{fields}: {errors}");
    }
}
