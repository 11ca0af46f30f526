//! What a policy makes of the descriptors that Envoy sends.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use slidegate::policy::NoMatchReason;
use slidegate::{
    Descriptor, Gate, ManualClock, MemoryStore, Policy, Quota, Request, Ruling, Timestamp,
};

type TestGate = Gate<MemoryStore<ManualClock>>;

fn gate(yaml: &str) -> TestGate {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    Gate::new(Policy::from_yaml(yaml).unwrap(), MemoryStore::with_clock(clock, 10_000))
}

fn descriptor<'a>(attributes: &[(&'a str, &'a str)]) -> Descriptor<'a> {
    Descriptor::new(attributes.iter().copied()).exact()
}

fn request<'a>(descriptors: impl IntoIterator<Item = Descriptor<'a>>) -> Request<'a> {
    Request::with_descriptors("default", descriptors)
}

/// The rules that apply to one descriptor.
fn applied(policy: &Policy, descriptor: Descriptor<'_>) -> Vec<String> {
    let request = request([descriptor]);
    policy.apply(&request).matches().map(|one| one.rule().name().to_owned()).collect()
}

/// The limits that stand: of which descriptor, by which name, of which max, and what is left.
fn standing(ruling: &Ruling) -> Vec<(usize, &str, u64, u64)> {
    let limits = ruling.limits().map(|one| {
        let max = one.limit.limit().quota().max();
        (one.descriptor(), one.policy_name(), max, one.outcome.remaining())
    });
    limits.collect()
}

fn quota(text: &str) -> Quota {
    text.parse().unwrap()
}

const NAMING: &str = "
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
fn an_exact_descriptor_is_for_rules_that_name_all_it_has_and_of_which_it_has_all() {
    let policy = Policy::from_yaml(NAMING).unwrap();
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
        assert_eq!(applied(&policy, descriptor(attributes)), rules, "{attributes:?}");
    }
}

#[test]
fn any_other_descriptor_may_have_more_than_a_rule_names_and_less() {
    let policy = Policy::from_yaml(NAMING).unwrap();
    let rules = applied(&policy, Descriptor::new([("user", "u"), ("other", "o")]));
    assert_eq!(rules, ["all", "user", "not-a", "strict", "open"]);
}

#[test]
fn a_rule_for_descriptors_wants_exactly_its_names_in_their_order() {
    let policy = Policy::from_yaml(
        "rules: [{ name: a, descriptor: [plan, user, 'user#2'], when: { plan: pro }, per: [user], limits: [9/s] }]",
    )
    .unwrap();
    let applies = |names: &[(&str, &str)]| {
        let exact = applied(&policy, descriptor(names)).len();
        assert_eq!(exact, applied(&policy, Descriptor::new(names.iter().copied())).len());
        exact == 1
    };
    assert!(applies(&[("plan", "pro"), ("user", "u"), ("user#2", "v")]));
    assert!(!applies(&[("plan", "free"), ("user", "u"), ("user#2", "v")]));
    assert!(!applies(&[("user", "u"), ("plan", "pro"), ("user#2", "v")]));
    assert!(!applies(&[("plan", "pro"), ("user", "u")]));
    assert!(!applies(&[("plan", "pro"), ("user", "u"), ("user#2", "v"), ("x", "")]));
}

#[test]
fn what_a_descriptor_calls_path_or_method_may_be_anything_and_a_literal_is_no_pattern() {
    let policy = Policy::from_yaml(
        "
rules:
  - { name: a, descriptor: [path, method], when: { path: 'api*', method: get }, limits: [9/s] }
  - { name: net, descriptor: [net], when: { net: { literal: [10.0.0.0/8, 'a*'] } }, limits: [9/s] }
  - { name: rest, descriptor: [net], when: { net: { not: { literal: [10.0.0.0/8, 'a*'] } } }, limits: [9/s] }
",
    )
    .unwrap();
    assert_eq!(applied(&policy, descriptor(&[("path", "api/x"), ("method", "get")])), ["a"]);
    for (value, rule) in
        [("10.0.0.0/8", "net"), ("10.0.0.1", "rest"), ("a*", "net"), ("ab", "rest")]
    {
        assert_eq!(applied(&policy, descriptor(&[("net", value)])), [rule], "{value}");
    }
}

#[test]
fn where_a_rule_applies_those_that_it_replaces_do_not_whichever_descriptor_they_are_of() {
    let gate = gate(
        "
rules:
  - { name: read, per: [read], limits: [5/min] }
  - { name: write, per: [write], limits: [5/min] }
  - { name: search, per: [search], replaces: [read, special], limits: [9/min] }
  - { name: special, per: [special], replaces: [write], limits: [9/min] }
",
    );
    let check = |names: &[&str]| {
        let asked: Vec<_> = names.iter().map(|name| descriptor(&[(name, "1")])).collect();
        let ruling = gate.check_now(&request(asked));
        standing(&ruling).iter().map(|one| (one.0, one.1.to_owned(), one.3)).collect::<Vec<_>>()
    };
    let left = |place: usize, name: &str, left: u64| (place, name.to_owned(), left);
    assert_eq!(check(&["read", "write"]), [left(0, "read", 4), left(1, "write", 4)]);
    // Also what is replaced itself replaces: nobody has to think about the order.
    assert_eq!(check(&["read", "search", "special", "write"]), [left(1, "search", 8)]);
    assert_eq!(check(&["read", "write"]), [left(0, "read", 3), left(1, "write", 3)]);

    let asked = request([descriptor(&[("read", "1")]), descriptor(&[("search", "1")])]);
    let why: Vec<_> = gate.policy().explain(&asked).filter_map(|(_, fit)| fit.err()).collect();
    assert!(why.contains(&NoMatchReason::Replaced("search")), "{why:?}");
}

#[test]
fn all_descriptors_are_one_decision_and_a_denial_charges_none() {
    let gate = gate(
        "rules: [{ name: a, per: [a], limits: [2/min] }, { name: b, per: [b], limits: [1/min] }]",
    );
    let both = || request([descriptor(&[("a", "1")]), descriptor(&[("b", "1")])]);
    assert!(gate.check_now(&both()).decision().is_allowed());
    for _ in 0..3 {
        let ruling = gate.check_now(&both());
        assert!(!ruling.decision().is_allowed());
        assert_eq!(standing(&ruling), [(0, "a", 2, 1), (1, "b", 1, 0)]);
    }
}

#[test]
fn a_limit_that_a_descriptor_brings_along_holds_instead_and_keeps_the_counts_of_its_window() {
    let gate =
        gate("rules: [{ name: a, per: [a], limits: [2/min, 100/h], algorithm: sliding_log }]");
    let check = |limit: Option<&str>| {
        let asked = descriptor(&[("a", "1")]);
        let asked = match limit {
            Some(limit) => asked.with_limit(quota(limit)),
            None => asked,
        };
        let ruling = gate.check_now(&request([asked]));
        let algorithm = ruling.limits().next().unwrap().limit.limit().algorithm().name();
        assert_eq!(algorithm, "sliding_log");
        let of = standing(&ruling).iter().map(|one| (one.1.to_owned(), one.2, one.3)).collect();
        (ruling.decision().is_allowed(), of)
    };
    let a = |max, left| vec![("a".to_owned(), max, left)];
    assert_eq!(check(Some("5/min")), (true, a(5, 4)));
    assert_eq!(check(Some("5/min")), (true, a(5, 3)));
    assert_eq!(check(Some("1/s")), (true, a(1, 0)));
    let (allowed, of): (_, Vec<_>) = check(None);
    assert_eq!((allowed, &of[0]), (false, &("a.1m".to_owned(), 2, 0)));
}

#[test]
fn a_limit_that_no_rule_is_asked_for_holds_if_the_domain_has_a_rule_for_such() {
    let gate = gate(
        "
rules:
  - { name: a, per: [a], limits: unlimited }
  - { name: own, limits: requested }
  - { name: own, domain: observed, limits: requested, mode: observe }
",
    );
    let asked = |pairs: &[(&'static str, &'static str)], limit: Option<&str>| {
        let descriptor = descriptor(pairs);
        let descriptor = match limit {
            Some(limit) => descriptor.with_limit(quota(limit)),
            None => descriptor,
        };
        let ruling = gate.check_now(&request([descriptor]));
        let of: Vec<_> = standing(&ruling).iter().map(|one| (one.1.to_owned(), one.3)).collect();
        (ruling.decision().is_allowed(), of)
    };
    let left = |name: &str, left| vec![(name.to_owned(), left)];
    let xy = [("x", "1"), ("y", "2")];
    assert_eq!(asked(&xy, None), (true, vec![]));
    assert_eq!(asked(&xy, Some("1/min")), (true, left("own", 0)));
    assert_eq!(asked(&xy, Some("1/min")), (false, left("own", 0)));
    assert_eq!(asked(&[("y", "2"), ("x", "1")], Some("1/min")), (true, left("own", 0)));
    assert_eq!(asked(&[("x", "1"), ("y", "3")], Some("1/min")), (true, left("own", 0)));
    // Where a rule applies, that rule counts.
    assert_eq!(asked(&[("a", "1")], Some("2/min")), (true, left("a", 1)));
    assert_eq!(asked(&[("a", "1")], None), (true, vec![]));

    let watched = Request::with_descriptors("observed", [descriptor(&xy).with_limit(quota("0/s"))]);
    let ruling = gate.check_now(&watched);
    assert!(ruling.decision().is_allowed());
    assert!(ruling.limits().next().is_some_and(|one| one.is_observed() && !one.outcome.fits()));
}

#[test]
fn fixed_windows_of_limits_that_no_rule_has_are_those_of_the_clock() {
    let gate = gate("rules: [{ name: own, limits: requested, algorithm: fixed_window }]");
    let asked = descriptor(&[("x", "1")]).with_limit(quota("9/min"));
    let ruling = gate.check_now(&request([asked]));
    // A minute begins.
    let reset = ruling.limits().next().unwrap().outcome.reset_after();
    assert_eq!(reset, std::time::Duration::from_secs(60));
}

#[test]
fn a_ruling_tells_to_which_descriptors_everything_is_allowed() {
    let gate = gate(
        "rules: [{ name: a, per: [a], limits: unlimited }, { name: b, per: [b], limits: [1/s] }]",
    );
    let asked = [descriptor(&[("x", "1")]), descriptor(&[("b", "1")]), descriptor(&[("a", "1")])];
    let ruling = gate.check_now(&request(asked));
    assert_eq!([0, 1, 2, 3].map(|place| ruling.is_unlimited(place)), [false, false, true, false]);
}

#[test]
fn what_can_never_apply_or_stands_for_nothing_is_a_mistake() {
    for (fields, message) in [
        ("descriptor: [], limits: [1/s]", "a descriptor has 1 to 32 attributes"),
        (
            "descriptor: [a, a], limits: [1/s]",
            "`a` stands in `descriptor` twice: its second time is called `a#2`",
        ),
        (
            "descriptor: [user], per: [uesr], limits: [1/s]",
            "never applies: `uesr` does not stand in `descriptor`: did you mean `user`?",
        ),
        (
            "descriptor: [user], when: { plan: pro }, limits: [1/s]",
            "never applies: `plan` does not stand in `descriptor`",
        ),
        ("replaces: [], limits: [1/s]", "a rule replaces 1 to 1000 others"),
        ("replaces: [a], limits: [1/s]", "a rule cannot replace itself"),
        ("replaces: [bb], limits: [1/s]", "there is no rule `bb` in domain `default`"),
        (
            "replaces: [othr], limits: [1/s]",
            "there is no rule `othr` in domain `default`: did you mean `other`?",
        ),
        ("per: [a], limits: requested", "counts per all its attributes: leave `per` out"),
        (
            "limits: [1/s], overrides: [{ when: { a: b }, limits: requested }]",
            "`requested` is for a whole rule",
        ),
        (
            "limits: requested }, { name: again, limits: requested",
            "domain `default` has a rule with `limits: requested` already",
        ),
        ("when: { a: { not: x, literal: [y] } }, limits: [1/s]", "write either `not` or `literal`"),
        ("when: { a: { literal: [] } }, limits: [1/s]", "an empty list matches nothing"),
    ] {
        let yaml = format!("rules: [{{ name: a, {fields} }}, {{ name: other, limits: [1/s] }}]");
        let errors = Policy::from_yaml(&yaml).unwrap_err();
        assert_eq!(errors.0.len(), 1, "{fields}: {errors}");
        assert!(errors.to_string().contains(message), "{fields}: {errors}");
    }
}
