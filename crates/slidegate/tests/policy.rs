//! Tests of the effect that each field of a policy has on requests.

use proptest::prelude::*;
use slidegate::policy::NoMatchReason;
use slidegate::store::Value;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Decision, Descriptor, Gate, ManualClock, MemoryStore, Policy, Reason, Request, Timestamp,
};

type TestGate = Gate<MemoryStore<ManualClock>>;

fn new_test_gate(yaml: &str) -> TestGate {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    Gate::new(Policy::from_yaml(yaml).unwrap(), MemoryStore::with_clock(clock, 10_000))
}

/// Creates a gate whose policy has one rule, `a`, with these fields.
fn new_gate_with_rule(fields: &str) -> TestGate {
    new_test_gate(&format!("rules: [{{ name: a, {fields} }}]"))
}

fn new_request<'a>(attributes: &[(&'a str, &'a str)], cost: u64) -> Request<'a> {
    Request::new("default", Descriptor::new(attributes.iter().copied()).cost(cost))
}

fn check_attributes(gate: &TestGate, attributes: &[(&str, &str)]) -> Decision<'static> {
    gate.check(&new_request(attributes, 1))
}

fn is_allowed(gate: &TestGate, attributes: &[(&str, &str)]) -> bool {
    check_attributes(gate, attributes).is_allowed()
}

/// Returns the header name of each limit of a decision, with the remaining units of the limit.
fn remaining_per_limit(decision: &Decision<'_>) -> Vec<(String, u64)> {
    let limits = decision.limits();
    limits.map(|status| (status.policy_name().to_owned(), status.remaining())).collect()
}

/// Returns the keys that the policy creates for a request with these attributes, formatted as text.
fn formatted_keys(gate: &TestGate, attributes: &[(&str, &str)]) -> Vec<String> {
    let request = new_request(attributes, 1);
    let policy = gate.policy();
    policy.apply(&request).hits().map(|hit| hit.key.to_string()).collect()
}

#[test]
fn request_path_sets_route_attribute() {
    let gate = new_test_gate(
        "
routes: ['/users/{id}', '/files/{*path}']
rules:
  - { name: user, when: { route: '/users/{id}' }, per: [route], limits: [1/min] }
  - { name: any, when: { route: '*' }, limits: [9/min] }
",
    );
    let formatted_keys = |attributes: &[(&str, &str)]| formatted_keys(&gate, attributes);
    let user = ["default:user:1m:{route=/users/%7Bid%7D}", "default:any:1m:{}"];
    assert_eq!(formatted_keys(&[("path", "/users/7?full")]), user);
    assert_eq!(formatted_keys(&[("path", "/files/a/b")]), ["default:any:1m:{}"]);
    assert_eq!(formatted_keys(&[("path", "/nowhere")]), [""; 0]);
    // An attribute `route` of the request takes precedence.
    assert_eq!(formatted_keys(&[("path", "/nowhere"), ("route", "/users/{id}")]), user);
    assert!(is_allowed(&gate, &[("path", "/users/7")]));
    assert!(!is_allowed(&gate, &[("path", "/users/8")]), "both have the same route");
}

#[test]
fn not_condition_matches_absent_attribute() {
    let gate = new_gate_with_rule("when: { role: { not: [admin, ops-*] } }, limits: [1/min]");
    assert_eq!(formatted_keys(&gate, &[]).len(), 1, "a request without a role is limited");
    assert_eq!(formatted_keys(&gate, &[("role", "guest")]).len(), 1);
    assert_eq!(
        formatted_keys(&gate, &[("role", "admin")]).len()
            + formatted_keys(&gate, &[("role", "ops-7")]).len(),
        0
    );
    let anonymous = new_gate_with_rule("when: { user: { not: '*' } }, limits: [1/min]");
    assert_eq!(
        (formatted_keys(&anonymous, &[]).len(), formatted_keys(&anonymous, &[("user", "x")]).len()),
        (1, 0)
    );
}

#[test]
fn alternatives_in_per_have_separate_counters() {
    let gate = new_gate_with_rule("per: [api_key|user|ip, tenant], limits: [1/min]");
    let of = |name: &'static str| formatted_keys(&gate, &[(name, "x"), ("tenant", "t")]).concat();
    assert_eq!(of("api_key"), "default:a:1m:{api_key=x,tenant=t}");
    assert_eq!(of("ip"), "default:a:1m:{ip=x,tenant=t}");
    assert_eq!(
        formatted_keys(&gate, &[("ip", "1"), ("user", "u"), ("tenant", "t")]).concat(),
        "default:a:1m:{user=u,tenant=t}"
    );
    for name in ["api_key", "user", "ip"] {
        assert!(is_allowed(&gate, &[(name, "x"), ("tenant", "t")]), "{name} has its own counter");
        assert!(!is_allowed(&gate, &[(name, "x"), ("tenant", "t")]));
    }
    assert_eq!(of("nobody"), "", "the rule does not apply");
}

#[test]
fn ipv6_addresses_with_same_prefix_share_counter() {
    let gate64 = new_gate_with_rule("per: [ip], limits: [1/min]");
    let of = |gate: &TestGate, ip: &str| formatted_keys(gate, &[("ip", ip)]).concat();
    assert_eq!(of(&gate64, "2001:db8:0:1:2::3"), "default:a:1m:{ip=(2001:db8:0:1::/64)}");
    assert!(is_allowed(&gate64, &[("ip", "2001:db8::1")]));
    assert!(!is_allowed(&gate64, &[("ip", "2001:0DB8:0:0:ffff::")]), "the same site");
    assert!(is_allowed(&gate64, &[("ip", "2001:db8:0:1::1")]), "another site");
    // Text that looks like a network has a different key.
    assert!(is_allowed(&gate64, &[("ip", "2001:db8::/64")]));
    assert!(is_allowed(&gate64, &[("ip", "(2001:db8::/64)")]));
    let gate48 = new_gate_with_rule("per: [remote_address], limits: [1/min], ipv6_prefix: 48");
    let key48 = |ip: &str| formatted_keys(&gate48, &[("remote_address", ip)]).concat();
    assert_eq!(key48("2001:db8:1:2::3"), "default:a:1m:{remote_address=(2001:db8:1::/48)}");
    assert_eq!(key48("192.0.2.7"), "default:a:1m:{remote_address=192.0.2.7}");
    assert_eq!(key48("::ffff:192.0.2.7"), key48("192.0.2.7"), "IPv4 within IPv6");
    let mac = "00:1b:63:84:45:e6";
    assert_eq!(key48(mac), format!("default:a:1m:{{remote_address={mac}}}"), "not an address");
}

/// Several spellings of the host `api.example.com`, which all reach the same service.
const HOST_SPELLINGS: [&str; 7] = [
    "api.example.com",
    "API.example.com",
    "api.example.com:80",
    "api.example.com.",
    "Api.Example.Com.:8443",
    " api.example.com",
    "api.example.com:",
];

#[test]
fn host_spellings_share_counter() {
    for name in ["host", "header.host"] {
        let gate = new_gate_with_rule(&format!("per: ['user|{name}'], limits: [7/min]"));
        for host in HOST_SPELLINGS {
            let key = format!("default:a:1m:{{{name}=api.example.com}}");
            assert_eq!(formatted_keys(&gate, &[(name, host), ("x", "Y:1")]), [key], "{host:?}");
            assert!(is_allowed(&gate, &[(name, host)]), "{host:?}");
        }
        assert!(!is_allowed(&gate, &[(name, "aPi.example.com:1")]), "all share one counter");
    }
    // Other attributes are unchanged.
    let others = new_gate_with_rule("per: [host, authority, header.x], limits: [1/min]");
    assert_eq!(
        formatted_keys(&others, &[("host", "A:1"), ("authority", "A:1"), ("header.x", "A.")])
            .concat(),
        "default:a:1m:{host=a,authority=A:1,header.x=A.}"
    );
}

#[test]
fn host_condition_matches_every_host_spelling() {
    for wanted in [
        "host: API.Example.com:80",
        "host: ' api.example.com. '",
        "host: [a.example, Api.example.com]",
        "host: '*.Example.com'",
        "host: 'API.*.'",
        "host: { literal: ['API.example.com:443'] }",
        "host: { not: ['OTHER.example', 'x*'] }",
        "header.host: API.example.com",
    ] {
        let name = wanted.split_once(':').unwrap().0;
        let gate = new_gate_with_rule(&format!("when: {{ {wanted} }}, limits: [1/min]"));
        for host in HOST_SPELLINGS {
            assert_eq!(formatted_keys(&gate, &[(name, host)]).len(), 1, "{wanted} for {host:?}");
        }
        assert_eq!(formatted_keys(&gate, &[(name, "other.example:80")]).len(), 0, "{wanted}");
    }
    let gate = new_gate_with_rule("when: { host: { not: API.example.com } }, limits: [1/min]");
    assert!(HOST_SPELLINGS.iter().all(|host| formatted_keys(&gate, &[("host", host)]).is_empty()));
}

#[test]
fn override_host_condition_matches_every_host_spelling() {
    let gate = new_gate_with_rule(
        "when: { host: '*.com' }, limits: [9/min], overrides: [{ when: { host: API.example.com:80 }, limits: denied }]",
    );
    for host in HOST_SPELLINGS {
        assert!(!is_allowed(&gate, &[("host", host)]), "{host:?}");
    }
    assert!(is_allowed(&gate, &[("host", "api.example.com.com")]));
}

#[test]
fn rule_index_finds_every_host_spelling() {
    let rules = (0..50).map(|index| {
        format!(
            "  - {{ name: r{index}, when: {{ host: H{index}.example:80 }}, limits: [1/min] }}\n"
        )
    });
    let gate = new_test_gate(&format!("rules:\n{}", rules.collect::<String>()));
    for host in ["h7.example", "H7.EXAMPLE", "h7.example.:443"] {
        assert_eq!(formatted_keys(&gate, &[("host", host)]), ["default:r7:1m:{}"], "{host}");
    }
}

#[test]
fn host_ip_address_spellings_share_key() {
    let gate = new_gate_with_rule(
        "when: { host: ['[2001:DB8::1]:80', 192.0.2.7] }, per: [host], limits: [9/min]",
    );
    for host in ["2001:db8::1", "[2001:DB8:0::1]", "[2001:db8::1]:443", "[2001:db8::1]."] {
        let site = "default:a:1m:{host=(2001:db8::/64)}";
        assert_eq!(formatted_keys(&gate, &[("host", host)]).concat(), site, "{host}");
    }
    for host in ["192.0.2.7", "192.0.2.7:80", "192.0.2.7.", "[::ffff:c000:207]:1"] {
        assert_eq!(
            formatted_keys(&gate, &[("host", host)]).concat(),
            "default:a:1m:{host=192.0.2.7}"
        );
    }
}

#[test]
fn hosts_without_name_share_empty_key() {
    let gate = new_gate_with_rule("per: [host], limits: [4/min]");
    for host in [":80", ".", "", " "] {
        assert_eq!(
            formatted_keys(&gate, &[("host", host)]).concat(),
            "default:a:1m:{host=}",
            "{host:?}"
        );
        assert!(is_allowed(&gate, &[("host", host)]));
    }
    assert!(!is_allowed(&gate, &[("host", ":81")]), "every spelling is counted");
}

#[test]
fn host_spellings_select_same_sub_key() {
    let gate =
        new_gate_with_rule("per: [x], limits: [80/min], redis: { split: { by: [host], into: 8 } }");
    let sub_key = |host: &str| sub_keys_with_max(&gate, &[("x", "1"), ("host", host)]);
    assert!(HOST_SPELLINGS.iter().all(|host| sub_key(host) == sub_key(HOST_SPELLINGS[0])));
}

#[test]
fn explain_reports_canonical_host() {
    let gate = new_gate_with_rule("when: { host: api.example.com }, limits: [1/min]");
    let attributes = [("host", "Other.example:80")];
    let input = new_request(&attributes, 1);
    let policy = gate.policy();
    let (_, result) = policy.explain(&input).next().unwrap();
    let Err(NoMatchReason::ConditionNotMet { found, .. }) = result else {
        panic!("the rule applies")
    };
    assert_eq!(found, Some("other.example"));
    let attributes = [("host", HOST_SPELLINGS[4])];
    let input = new_request(&attributes, 1);
    assert!(gate.policy().explain(&input).next().unwrap().1.is_ok());
}

#[test]
fn ipv4_address_spellings_share_counter() {
    let gate = new_gate_with_rule("per: [ip], limits: [5/min]");
    let policy = gate.policy();
    for ip in [
        "192.0.2.7",
        "::ffff:192.0.2.7",
        "::ffff:c000:207",
        "::FFFF:C000:0207",
        "0:0:0:0:0:ffff:c000:0207",
    ] {
        let attributes = [("ip", ip)];
        let input = new_request(&attributes, 1);
        let matched_rules = policy.apply(&input);
        let (_, value) = matched_rules.matches().next().unwrap().identity().next().unwrap();
        assert_eq!((value, value.to_string()), ("192.0.2.7".into(), "192.0.2.7".to_owned()));
        assert_eq!(
            formatted_keys(&gate, &[("ip", ip)]).concat(),
            "default:a:1m:{ip=192.0.2.7}",
            "{ip}"
        );
        assert!(is_allowed(&gate, &[("ip", ip)]), "{ip}");
    }
    assert!(!is_allowed(&gate, &[("ip", "192.0.2.7")]), "all share one counter");
    assert!(is_allowed(&gate, &[("ip", "::192.0.2.7")]), "IPv4-compatible is IPv6");
}

#[test]
fn ipv4_mapped_network_matches_ipv4_addresses() {
    let gate = new_gate_with_rule("when: { ip: '::ffff:203.0.113.0/120' }, limits: [1/min]");
    for ip in ["203.0.113.9", "::ffff:203.0.113.9", "::ffff:cb00:7109"] {
        assert_eq!(formatted_keys(&gate, &[("ip", ip)]).len(), 1, "{ip}");
    }
    for ip in ["203.0.114.9", "::cb00:7109", "::ffff:cb00:7209"] {
        assert_eq!(formatted_keys(&gate, &[("ip", ip)]).len(), 0, "{ip}");
    }
    let single = new_gate_with_rule("when: { ip: '::ffff:c000:207' }, limits: [1/min]");
    assert_eq!(formatted_keys(&single, &[("ip", "192.0.2.7")]).len(), 1);
    let ipv6 = new_gate_with_rule("when: { ip: '::/0' }, limits: [1/min]");
    let applies = |ip: &str| !formatted_keys(&ipv6, &[("ip", ip)]).is_empty();
    assert!(applies("2001:db8::1") && !applies("192.0.2.7") && !applies("::ffff:192.0.2.7"));
}

/// Returns several spellings of the IPv4-mapped IPv6 address of an IPv4 address.
fn ipv4_mapped_spellings(address: std::net::Ipv4Addr) -> Vec<String> {
    let [a, b, c, d] = address.octets();
    let (high, low) = (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]));
    let texts = [
        format!("::ffff:{address}"),
        format!("::ffff:{high:x}:{low:x}"),
        format!("0:0:0:0:0:ffff:{high:x}:{low:x}"),
        format!("0000:0000:0000:0000:0000:ffff:{high:04x}:{low:04x}"),
        format!("0::0:ffff:{address}"),
    ];
    texts.iter().flat_map(|text| [text.clone(), text.to_ascii_uppercase()]).collect()
}

proptest! {
    #[test]
    fn ipv4_mapped_spellings_give_same_key(address: std::net::Ipv4Addr, prefix in 1..=128u8) {
        let gate = new_gate_with_rule(&format!("per: [ip], limits: [1/min], ipv6_prefix: {prefix}"));
        let key = |ip: &str| {
            let attributes = [("ip", ip)];
            let request = new_request(&attributes, 1);
            let policy = gate.policy();
            let matched_rules = policy.apply(&request);
            let hits: Vec<_> = matched_rules.hits().collect();
            let secret = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
            let key = hits[0].key;
            let shape = hits[0].limit.shape();
            (key.to_string(), key.stable_hash(), key.fingerprint(&secret, shape))
        };
        let expected = key(&address.to_string());
        prop_assert_eq!(&expected.0, &format!("default:a:1m:{{ip={address}}}"));
        for text in ipv4_mapped_spellings(address) {
            prop_assert_eq!(&key(&text), &expected, "{}", text);
        }
    }
}

#[test]
fn missing_attribute_skips_rule_or_denies_request() {
    let skip = new_gate_with_rule("per: [api_key], limits: [1/min]");
    assert!((0..5).all(|_| is_allowed(&skip, &[])));
    let deny = new_gate_with_rule("per: [api_key, ip], limits: [5/min], when_missing: deny");
    let decision = check_attributes(&deny, &[("ip", "192.0.2.7")]);
    assert!(!decision.is_allowed());
    assert_eq!(decision.retry_after(), None, "a retry would not help");
    assert_eq!(decision.binding().unwrap().id(), "missing");
    assert!(is_allowed(&deny, &[("ip", "192.0.2.7"), ("api_key", "k")]));
    let observe =
        new_gate_with_rule("per: [api_key], limits: [5/min], when_missing: deny, mode: observe");
    assert!(is_allowed(&observe, &[]), "a rule in mode observe never denies");
}

#[test]
fn observe_mode_counts_and_never_denies() {
    let gate = new_test_gate(
        "
rules:
  - { name: watched, per: [ip], limits: [2/min], mode: observe }
  - { name: all, limits: [4/min] }
",
    );
    let ip = [("ip", "192.0.2.7")];
    let decisions: Vec<Decision<'static>> = (0..6).map(|_| check_attributes(&gate, &ip)).collect();
    let allowed: Vec<bool> = decisions.iter().map(|decision| decision.is_allowed()).collect();
    assert_eq!(allowed, [true, true, true, true, false, false]);
    let watched = |index: usize| decisions[index].limits().next().unwrap();
    assert!(watched(1).fits() && !watched(2).fits());
    assert!(watched(0).is_observed() && !decisions[0].limits().nth(1).unwrap().is_observed());
    assert!(decisions.iter().all(|decision| decision.binding().unwrap().rule_name() == "all"));
}

#[test]
fn rule_in_mode_off_has_no_hits() {
    assert_eq!(formatted_keys(&new_gate_with_rule("limits: [1/min], mode: off"), &[]), [""; 0]);
}

#[test]
fn enforce_percentage_always_selects_same_keys() {
    let gate = new_gate_with_rule(
        "per: [tenant], limits: [{ name: one, max: 1, window: 1m }, 2/h], mode: { enforce: 25% }",
    );
    let names: Vec<String> = (0..1_000).map(|index| format!("tenant-{index}")).collect();
    let denied = |name: &&String| {
        let twice = [0, 1].map(|_| is_allowed(&gate, &[("tenant", name)]));
        assert!(twice[0]);
        !twice[1]
    };
    let enforced = names.iter().filter(denied).count();
    assert!((200..300).contains(&enforced), "{enforced} of 1000");
    let is_observed = |name: &str| {
        let observed: Vec<bool> = check_attributes(&gate, &[("tenant", name)])
            .limits()
            .map(|limit| limit.is_observed())
            .collect();
        assert_eq!(observed[0], observed[1], "all limits of a rule have the same mode");
        observed[0]
    };
    assert_eq!(names.iter().filter(|name| !is_observed(name)).count(), enforced);
}

#[test]
fn first_matching_override_applies() {
    let gate = new_gate_with_rule(
        "per: [tenant], limits: [2/min, 9/h], overrides: [
            { name: live, when: { key: live }, limits: unlimited },
            { name: evil, when: { tenant: evil }, limits: denied },
            { when: { plan: [pro, max] }, limits: [3/min] },
            { when: { plan: max }, limits: [100/min] },
            { when: { plan: exact }, algorithm: sliding_log },
            { when: { plan: test }, mode: observe },
            { when: { plan: none }, mode: off } ]",
    );
    let of = |attributes: &[(&str, &str)]| {
        let decision = check_attributes(&gate, &[&[("tenant", "t")], attributes].concat());
        (decision.is_allowed(), remaining_per_limit(&decision))
    };
    let named = |limits: &[(&str, u64)]| {
        limits.iter().map(|(name, left)| ((*name).to_owned(), *left)).collect::<Vec<_>>()
    };
    assert_eq!(of(&[]), (true, named(&[("a.1m", 1), ("a.1h", 8)])));
    // The same id, window and algorithm: the same counter with another max.
    assert_eq!(of(&[("plan", "max")]), (true, named(&[("a", 1)])));
    // Another algorithm: another counter.
    assert_eq!(of(&[("plan", "exact")]), (true, named(&[("a.1m", 1), ("a.1h", 8)])));
    assert_eq!(of(&[("key", "live"), ("plan", "max")]), (true, named(&[])));
    assert_eq!(of(&[("plan", "none")]), (true, named(&[])));
    let evil = check_attributes(&gate, &[("tenant", "evil"), ("plan", "pro")]);
    assert!(!evil.is_allowed() && evil.retry_after().is_none());
    assert_eq!(evil.binding().unwrap().id(), "denied");
    assert!(
        is_allowed(&gate, &[("key", "live"), ("tenant", "evil")]),
        "the first override applies"
    );
    assert!((0..5).all(|_| of(&[("plan", "test")]).0));
    // Without limits no attribute of `per` is needed.
    assert!(is_allowed(&gate, &[("key", "live")]));
}

/// Creates a gate whose store always fails as unavailable.
fn gate_with_failing_store(yaml: &str) -> Gate<FaultyStore> {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let faults = Faults { unavailable: 100, ..Faults::default() };
    Gate::new(Policy::from_yaml(yaml).unwrap(), FaultyStore::new(&clock, 1, faults, 1))
}

const STORE_ERROR_POLICY: &str = "
rules:
  - { name: allow, when: { a: '*' }, limits: [1/d], on_store_error: allow }
  - { name: local, when: { l: '*' }, limits: [1/d], on_store_error: local }
  - { name: deny, when: { d: '*' }, limits: [1/d], on_store_error: deny }
  - { name: watch, when: { w: '*' }, limits: [1/d], on_store_error: deny, mode: observe }
  - { name: ban, when: { b: '*' }, limits: denied, on_store_error: allow }
";

#[test]
fn strictest_on_store_error_setting_wins() {
    let gate = gate_with_failing_store(STORE_ERROR_POLICY);
    // Checked twice, so that a local limit denies the second request.
    let allowed = |names: &str| {
        check_request_twice(names, |request| {
            let decision = block_on(gate.check_async(request));
            assert!(decision.is_degraded());
            decision.is_allowed()
        })
    };
    assert_eq!(allowed("a"), [true, true]);
    assert_eq!(allowed("w"), [true, true], "a rule in mode observe does not matter");
    assert_eq!(allowed("al"), [true, false]);
    assert_eq!(allowed("ald"), [false, false]);
    assert_eq!(allowed("ab"), [false, false], "a ban needs no store");
    let decision = block_on(gate.check_async(&new_request(&[("d", "1")], 1)));
    assert_eq!((decision.reason(), decision.retry_after()), (Some(Reason::StoreUnavailable), None));
    assert_eq!((decision.limits().count(), decision.remaining()), (0, 0));
    let peeked = block_on(gate.peek_async(&new_request(&[("d", "1")], 1)));
    assert_eq!(peeked.reason(), Some(Reason::StoreUnavailable));
}

#[test]
fn request_without_matching_rule_needs_no_store() {
    let gate = gate_with_failing_store(STORE_ERROR_POLICY);
    let decision = block_on(gate.check_async(&new_request(&[], 1)));
    assert!(decision.is_allowed() && !decision.is_degraded());
}

/// Calls `check` twice with the same request. The request has one attribute for each character of `names`.
fn check_request_twice(names: &str, check: impl Fn(&Request<'_>) -> bool) -> [bool; 2] {
    let names: Vec<String> = names.chars().map(String::from).collect();
    let attributes: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    [0, 1].map(|_| check(&new_request(&attributes, 1)))
}

#[test]
fn explain_gives_reason_for_every_unmatched_rule() {
    let gate = new_test_gate(
        "
rules:
  - { name: post, when: { method: POST }, limits: [1/s] }
  - { name: key, per: [api_key|ip], limits: [1/s], overrides: [{ name: live, when: { ip: '::1' }, limits: [2/s] }] }
  - { name: off, limits: [1/s], mode: off }
  - { name: all, limits: [1/s] }
  - { name: elsewhere, domain: other, limits: [1/s] }
",
    );
    let input = new_request(&[("method", "GET")], 1);
    let policy = gate.policy();
    let explained: Vec<_> = policy.explain(&input).collect();
    let names: Vec<&str> = explained.iter().map(|(rule, _)| rule.name()).collect();
    assert_eq!(names, ["post", "key", "off", "all"]);
    let Err(NoMatchReason::ConditionNotMet { attribute, expected, found }) = explained[0].1.clone()
    else {
        panic!("no")
    };
    assert_eq!(
        (attribute, expected.to_string(), found),
        ("method", "`POST`".to_owned(), Some("GET"))
    );
    let Err(NoMatchReason::MissingAttribute(alternatives)) = explained[1].1.clone() else {
        panic!("no")
    };
    assert_eq!(alternatives.to_string(), "api_key|ip");
    assert_eq!(explained[2].1.as_ref().unwrap_err(), &NoMatchReason::Off);
    assert!(explained[3].1.is_ok());
    let input = new_request(&[("ip", "::1")], 1);
    let (_, result) = policy.explain(&input).nth(1).unwrap();
    let rule_match = result.unwrap();
    assert_eq!(rule_match.active_override().unwrap().1.name(), Some("live"));
    let Value::Network { address, prefix_bits } = rule_match.identity().next().unwrap().1 else {
        panic!("no network")
    };
    assert_eq!((address, prefix_bits), (std::net::Ipv6Addr::UNSPECIFIED, 64));
}

/// Returns the identity of each key of a request. If counters are split, each identity comes with the index of its
/// sub-key and the max that the sub-key enforces.
fn sub_keys_with_max(
    gate: &TestGate,
    attributes: &[(&str, &str)],
) -> Vec<(String, Option<u16>, Option<u64>)> {
    let request = new_request(attributes, 1);
    let policy = gate.policy();
    let matched_rules = policy.apply(&request);
    let max = |key: slidegate::store::Key<'_>| {
        key.limit_share().map(|limit_share| limit_share.quota().max())
    };
    let keys = matched_rules.hits().map(|hit| hit.key);
    keys.map(|key| (key.values_text().to_string(), key.sub_key_index(), max(key))).collect()
}

#[test]
fn slot_by_and_sample_set_redis_options() {
    let gate = new_gate_with_rule(
        "per: ['a | b', route], limits: [10/s, 9/m], redis: { slot_by: [a|b], sample: 50% }",
    );
    let policy = gate.policy();
    let redis = policy.rules()[0].redis().unwrap();
    assert_eq!((redis.slot_by(), redis.sample().get(), redis.split_into()), (&[0][..], 2, None));
    let request = new_request(&[("b", "y"), ("route", "/r")], 1);
    let matched_rules = policy.apply(&request);
    let slot_by: Vec<_> =
        matched_rules.hits().map(|hit| hit.key.redis_options().unwrap().slot_by()).collect();
    assert_eq!(slot_by, [[0]; 2]);
}

const SPLIT_COUNTERS_POLICY: &str = "
routes: ['/users/{id}']
rules:
  - name: a
    per: [tenant]
    when_missing: deny
    limits: [30/s, 100/m]
    redis: { split: { by: [route], into: 8 }, sample: 33.33% }
    overrides:
      - { when: { plan: pro }, limits: [90/s] }
      - { when: { plan: live }, limits: unlimited }
      - { when: { plan: evil }, limits: denied }
";

#[test]
fn split_attributes_select_sub_key() {
    let gate = new_test_gate(SPLIT_COUNTERS_POLICY);
    let sub_keys_with_max = |attributes: &[(&str, &str)]| {
        sub_keys_with_max(&gate, &[&[("tenant", "t")], attributes].concat())
    };
    let of = |part: u16, shares: &[u64]| {
        let sub_key = |share: &u64| ("{tenant=t}".to_owned(), Some(part), Some(*share));
        shares.iter().map(sub_key).collect::<Vec<_>>()
    };
    // Sub-keys computed by another program: FNV-1a of the values, folded.
    assert_eq!(sub_keys_with_max(&[("route", "/users/{id}")]), of(3, &[4, 13]));
    assert_eq!(sub_keys_with_max(&[("path", "/users/7?a")]), of(3, &[4, 13]));
    assert_eq!(sub_keys_with_max(&[]), of(5, &[4, 12]));
    assert_eq!(sub_keys_with_max(&[("route", "")]), of(2, &[4, 13]));
    // Overrides use the same sub-key, with shares of their own limits.
    assert_eq!(sub_keys_with_max(&[("plan", "pro")]), of(5, &[11]));
    assert_eq!(sub_keys_with_max(&[("plan", "pro"), ("route", "")]), of(2, &[11]));
    assert_eq!(sub_keys_with_max(&[("plan", "evil")]), of(5, &[0]));
    assert_eq!(sub_keys_with_max(&[("plan", "live")]), []);
    let several =
        new_gate_with_rule("limits: [1024/s], redis: { split: { by: [route, user], into: 1024 } }");
    let attributes = [("user", "ann"), ("route", "/users/{id}")];
    assert_eq!(
        self::sub_keys_with_max(&several, &attributes),
        [("{}".to_owned(), Some(502), Some(1))]
    );
}

#[test]
fn missing_attribute_denial_ignores_redis_options() {
    let gate = new_test_gate(SPLIT_COUNTERS_POLICY);
    assert_eq!(sub_keys_with_max(&gate, &[("route", "/x")]), [("{}".to_owned(), None, None)]);
    assert!(!is_allowed(&gate, &[("route", "/x")]));
}

#[test]
fn memory_store_ignores_redis_options() {
    let gate = new_test_gate(SPLIT_COUNTERS_POLICY);
    let whole: Vec<_> = (0..30).map(|_| is_allowed(&gate, &[("tenant", "t")])).collect();
    assert!(whole.iter().all(|allowed| *allowed));
    assert!(!is_allowed(&gate, &[("tenant", "t"), ("route", "/another")]));
    let explained = formatted_keys(&gate, &[("tenant", "t")]);
    assert_eq!(explained, ["default:a:1s:{tenant=t}", "default:a:1m:{tenant=t}"]);
}

#[test]
fn split_distributes_requests_evenly_over_sub_keys() {
    let gate = new_gate_with_rule("limits: [100/s], redis: { split: { by: [user], into: 8 } }");
    let policy = gate.policy();
    let mut chosen = [0; 8];
    for index in 0..8_000 {
        let user = format!("user-{index}");
        let request = new_request(&[("user", &user)], 1);
        let matched_rules = policy.apply(&request);
        chosen[usize::from(matched_rules.hits().next().unwrap().key.sub_key_index().unwrap())] += 1;
    }
    assert!(chosen.iter().all(|requests| (900..1_100).contains(requests)), "{chosen:?}");
}
