//! Normalized attributes: all spellings of a value meet the same conditions and share a counter.

use proptest::prelude::*;
use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

fn gate(policy: &str) -> Gate<MemoryStore<ManualClock>> {
    let store = MemoryStore::with_clock(ManualClock::default(), 1_000);
    Gate::new(Policy::from_yaml(policy).unwrap(), store)
}

fn request<'a>(domain: &'a str, attributes: &[(&'a str, &'a str)]) -> Request<'a> {
    Request::new(domain, Descriptor::new(attributes.iter().copied()))
}

const LOGIN: &str = "
normalize: { account: [trim, lowercase], path: [lowercase, trailing_slash, double_slash] }
routes: [/login]
rules: [{ name: login, when: { route: /login }, per: [account], limits: [20/h] }]
";

#[test]
fn login_spellings_share_a_counter() {
    let gate = gate(LOGIN);
    let paths = ["/login", "/LOGIN", "/login/", "//login", "//Login//?next=/A"];
    let accounts = ["ann@example.com", "ANN@example.com", "Ann@Example.COM", " ann@example.com "];
    let allowed = (0..60).filter(|nth| {
        let (path, account) = (paths[nth % paths.len()], accounts[nth % accounts.len()]);
        gate.check(&request("default", &[("path", path), ("account", account)])).is_allowed()
    });
    assert_eq!(allowed.count(), 20);
    let other = request("default", &[("path", "/login"), ("account", "bob@example.com")]);
    assert_eq!(gate.check(&other).remaining(), 19);
    assert_eq!(gate.check(&request("default", &[("path", "/logins")])).limits().count(), 0);
}

#[test]
fn values_of_policy_are_normalized_too() {
    let gate = gate(
        "
normalize: { path: [lowercase, trailing_slash], plan: [lowercase] }
rules:
  - { name: literal, when: { path: /Api/ }, limits: [9/h] }
  - { name: glob, when: { path: /Files/* }, limits: [9/h] }
  - { name: exact, when: { plan: { literal: [PRO] } }, limits: [9/h] }
",
    );
    for (attribute, value) in [("path", "/API"), ("path", "/files/A"), ("plan", "Pro")] {
        let decision = gate.check(&request("default", &[(attribute, value)]));
        assert_eq!(decision.limits().count(), 1, "{attribute} {value}");
    }
}

#[test]
fn steps_of_domain_replace_steps_for_all_domains() {
    let gate = gate(
        "
normalize: { user: [lowercase], shop: { user: [trim] } }
rules:
  - { name: all, per: [user], limits: [9/h] }
  - { name: shop, domain: shop, per: [user], limits: [9/h] }
",
    );
    let remaining =
        |domain: &str, user: &str| gate.check(&request(domain, &[("user", user)])).remaining();
    assert_eq!([remaining("default", "ann"), remaining("default", "ANN")], [8, 7]);
    assert_eq!([remaining("shop", "ann"), remaining("shop", "ANN")], [8, 8]);
    assert_eq!([remaining("shop", " ann"), remaining("default", " ann")], [7, 8]);
}

#[test]
fn reload_normalizes_same_request_by_new_steps() {
    let policy = |steps: &str| {
        let text = format!(
            "{{ normalize: {{ user: [{steps}] }}, rules: [{{ name: a, per: [user], limits: [9/h] }}] }}"
        );
        Policy::from_yaml(&text).unwrap()
    };
    let gate = Gate::new(policy("lowercase"), MemoryStore::with_clock(ManualClock::default(), 99));
    let mixed = request("default", &[("user", "Ann/")]);
    assert_eq!(gate.check(&mixed).remaining(), 8);
    gate.replace_policy(policy("lowercase, trailing_slash"));
    assert_eq!(gate.check(&mixed).remaining(), 8);
    assert_eq!(gate.check(&request("default", &[("user", "ann")])).remaining(), 7);
    gate.replace_policy(policy("lowercase"));
    assert_eq!(gate.check(&mixed).remaining(), 7);
}

#[test]
fn bytes_of_normalized_value_are_not_counted() {
    let gate = gate(
        "{ normalize: { user: [lowercase] }, rules: [{ name: a, per: [user], limits: [9/h] }] }",
    );
    for (bytes, remaining) in [(b"A\xff", 8), (b"a\xff", 7), (b"a\xfe", 6)] {
        let text = String::from_utf8_lossy(bytes);
        let descriptor = Descriptor::new([("user", &*text)]).with_bytes("user", bytes);
        assert_eq!(gate.check(&Request::new("default", descriptor)).remaining(), remaining);
    }
}

#[test]
fn explained_match_has_normalized_values() {
    let policy = Policy::from_yaml(LOGIN).unwrap();
    let request = request("default", &[("path", "//LOGIN/"), ("account", "ANN")]);
    let (rule, explained) = policy.explain(&request).next().unwrap();
    let identity: Vec<_> = explained.as_ref().unwrap().identity().collect();
    assert_eq!(format!("{identity:?}"), "[(\"account\", Text(\"ann\"))]");
    let normalized: Vec<&str> = rule.normalized_attributes().map(|(name, _)| name).collect();
    assert_eq!(normalized, ["account", "path"]);
}

proptest! {
    /// A policy with `normalize` decides like the same policy without it about requests with normalized values.
    #[test]
    fn normalized_requests_are_decided_alike(
        requests in proptest::collection::vec(("[ aA]{1,3}", "[/aA]{1,4}"), 1..60),
    ) {
        let rules = "rules:\n- { name: user, per: [user], limits: [3/h] }\n- { name: path, when: { path: ['/a', '/a/*'] }, per: [path], limits: [5/h] }\n";
        let normalizing = gate(&format!(
            "normalize: {{ user: [trim, lowercase], path: [lowercase, double_slash] }}\n{rules}"
        ));
        let plain = gate(rules);
        for (user, path) in requests {
            let normal_user = user.trim().to_ascii_lowercase();
            let mut normal_path = path.to_ascii_lowercase();
            while normal_path.contains("//") {
                normal_path = normal_path.replace("//", "/");
            }
            let decision = normalizing.check(&request("default", &[("user", &user), ("path", &path)]));
            let expected = plain.check(&request(
                "default",
                &[("user", &normal_user), ("path", &normal_path)],
            ));
            prop_assert_eq!(decision.is_allowed(), expected.is_allowed());
            prop_assert_eq!(decision.remaining(), expected.remaining());
        }
    }
}
