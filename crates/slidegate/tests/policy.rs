//! The effect of each field of a policy on requests.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use proptest::prelude::*;
use slidegate::policy::NoMatchReason;
use slidegate::testkit::block_on;
use slidegate::testkit::faulty::{Faults, FaultyStore};
use slidegate::{
    Descriptor, Gate, ManualClock, MemoryStore, Policy, Request, Ruling, Timestamp, Value,
};

type TestGate = Gate<MemoryStore<ManualClock>>;

fn gate(yaml: &str) -> TestGate {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    Gate::new(Policy::from_yaml(yaml).unwrap(), MemoryStore::with_clock(clock, 10_000))
}

/// A gate with one rule of these fields.
fn rule(fields: &str) -> TestGate {
    gate(&format!("rules: [{{ name: a, {fields} }}]"))
}

fn request<'a>(attributes: &[(&'a str, &'a str)], cost: u64) -> Request<'a> {
    Request::new("default", Descriptor::new(attributes.iter().copied()).cost(cost))
}

fn check(gate: &TestGate, attributes: &[(&str, &str)]) -> Ruling {
    gate.check_now(&request(attributes, 1))
}

fn is_allowed(gate: &TestGate, attributes: &[(&str, &str)]) -> bool {
    check(gate, attributes).decision().is_allowed()
}

/// The limits of a ruling, each with the remaining units.
fn remaining_per_limit(ruling: &Ruling) -> Vec<(String, u64)> {
    let limits = ruling.limits();
    limits.map(|status| (status.policy_name().to_owned(), status.outcome.remaining())).collect()
}

/// The keys of a request, formatted as text.
fn keys(gate: &TestGate, attributes: &[(&str, &str)]) -> Vec<String> {
    let request = request(attributes, 1);
    let matched_rules = gate.policy().apply(&request);
    matched_rules.hits().iter().map(|hit| hit.key.to_string()).collect()
}

#[test]
fn path_sets_route_of_request() {
    let gate = gate(
        "
routes: ['/users/{id}', '/files/{*path}']
rules:
  - { name: user, when: { route: '/users/{id}' }, per: [route], limits: [1/min] }
  - { name: any, when: { route: '*' }, limits: [9/min] }
",
    );
    let keys = |attributes: &[(&str, &str)]| keys(&gate, attributes);
    let user = ["default:user:1m:{route=/users/%7Bid%7D}", "default:any:1m:{}"];
    assert_eq!(keys(&[("path", "/users/7?full")]), user);
    assert_eq!(keys(&[("path", "/files/a/b")]), ["default:any:1m:{}"]);
    assert_eq!(keys(&[("path", "/nowhere")]), [""; 0]);
    // An attribute `route` of the request takes precedence.
    assert_eq!(keys(&[("path", "/nowhere"), ("route", "/users/{id}")]), user);
    assert!(is_allowed(&gate, &[("path", "/users/7")]));
    assert!(!is_allowed(&gate, &[("path", "/users/8")]), "both have the same route");
}

#[test]
fn not_also_means_absent() {
    let gate = rule("when: { role: { not: [admin, ops-*] } }, limits: [1/min]");
    assert_eq!(keys(&gate, &[]).len(), 1, "a request without a role is limited");
    assert_eq!(keys(&gate, &[("role", "guest")]).len(), 1);
    assert_eq!(
        keys(&gate, &[("role", "admin")]).len() + keys(&gate, &[("role", "ops-7")]).len(),
        0
    );
    let anonymous = rule("when: { user: { not: '*' } }, limits: [1/min]");
    assert_eq!((keys(&anonymous, &[]).len(), keys(&anonymous, &[("user", "x")]).len()), (1, 0));
}

#[test]
fn first_present_alternative_has_separate_counter() {
    let gate = rule("per: [api_key|user|ip, tenant], limits: [1/min]");
    let of = |name: &'static str| keys(&gate, &[(name, "x"), ("tenant", "t")]).concat();
    assert_eq!(of("api_key"), "default:a:1m:{api_key=x,tenant=t}");
    assert_eq!(of("ip"), "default:a:1m:{ip=x,tenant=t}");
    assert_eq!(
        keys(&gate, &[("ip", "1"), ("user", "u"), ("tenant", "t")]).concat(),
        "default:a:1m:{user=u,tenant=t}"
    );
    for name in ["api_key", "user", "ip"] {
        assert!(is_allowed(&gate, &[(name, "x"), ("tenant", "t")]), "{name} has its own counter");
        assert!(!is_allowed(&gate, &[(name, "x"), ("tenant", "t")]));
    }
    assert_eq!(of("nobody"), "", "the rule does not apply");
}

#[test]
fn ipv6_spellings_share_counter_of_prefix() {
    let gate64 = rule("per: [ip], limits: [1/min]");
    let of = |gate: &TestGate, ip: &str| keys(gate, &[("ip", ip)]).concat();
    assert_eq!(of(&gate64, "2001:db8:0:1:2::3"), "default:a:1m:{ip=(2001:db8:0:1::/64)}");
    assert!(is_allowed(&gate64, &[("ip", "2001:db8::1")]));
    assert!(!is_allowed(&gate64, &[("ip", "2001:0DB8:0:0:ffff::")]), "the same site");
    assert!(is_allowed(&gate64, &[("ip", "2001:db8:0:1::1")]), "another site");
    // Text that looks like a network has a different key.
    assert!(is_allowed(&gate64, &[("ip", "2001:db8::/64")]));
    assert!(is_allowed(&gate64, &[("ip", "(2001:db8::/64)")]));
    let gate48 = rule("per: [remote_address], limits: [1/min], ipv6_prefix: 48");
    let key48 = |ip: &str| keys(&gate48, &[("remote_address", ip)]).concat();
    assert_eq!(key48("2001:db8:1:2::3"), "default:a:1m:{remote_address=(2001:db8:1::/48)}");
    assert_eq!(key48("192.0.2.7"), "default:a:1m:{remote_address=192.0.2.7}");
    assert_eq!(key48("::ffff:192.0.2.7"), key48("192.0.2.7"), "IPv4 within IPv6");
    let mac = "00:1b:63:84:45:e6";
    assert_eq!(key48(mac), format!("default:a:1m:{{remote_address={mac}}}"), "not an address");
}

/// Spellings of one host that reach the same service.
const SPELLINGS: [&str; 7] = [
    "api.example.com",
    "API.example.com",
    "api.example.com:80",
    "api.example.com.",
    "Api.Example.Com.:8443",
    " api.example.com",
    "api.example.com:",
];

#[test]
fn spellings_of_host_share_counter() {
    for name in ["host", "header.host"] {
        let gate = rule(&format!("per: ['user|{name}'], limits: [7/min]"));
        for host in SPELLINGS {
            let key = format!("default:a:1m:{{{name}=api.example.com}}");
            assert_eq!(keys(&gate, &[(name, host), ("x", "Y:1")]), [key], "{host:?}");
            assert!(is_allowed(&gate, &[(name, host)]), "{host:?}");
        }
        assert!(!is_allowed(&gate, &[(name, "aPi.example.com:1")]), "all share one counter");
    }
    // Other attributes are unchanged.
    let others = rule("per: [host, authority, header.x], limits: [1/min]");
    assert_eq!(
        keys(&others, &[("host", "A:1"), ("authority", "A:1"), ("header.x", "A.")]).concat(),
        "default:a:1m:{host=a,authority=A:1,header.x=A.}"
    );
}

#[test]
fn host_in_policy_matches_every_spelling() {
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
        let gate = rule(&format!("when: {{ {wanted} }}, limits: [1/min]"));
        for host in SPELLINGS {
            assert_eq!(keys(&gate, &[(name, host)]).len(), 1, "{wanted} for {host:?}");
        }
        assert_eq!(keys(&gate, &[(name, "other.example:80")]).len(), 0, "{wanted}");
    }
    let gate = rule("when: { host: { not: API.example.com } }, limits: [1/min]");
    assert!(SPELLINGS.iter().all(|host| keys(&gate, &[("host", host)]).is_empty()));
}

#[test]
fn override_for_host_matches_every_spelling() {
    let gate = rule(
        "when: { host: '*.com' }, limits: [9/min], overrides: [{ when: { host: API.example.com:80 }, limits: denied }]",
    );
    for host in SPELLINGS {
        assert!(!is_allowed(&gate, &[("host", host)]), "{host:?}");
    }
    assert!(is_allowed(&gate, &[("host", "api.example.com.com")]));
}

#[test]
fn index_finds_host_in_every_spelling() {
    let rules = (0..50).map(|index| {
        format!(
            "  - {{ name: r{index}, when: {{ host: H{index}.example:80 }}, limits: [1/min] }}\n"
        )
    });
    let gate = gate(&format!("rules:\n{}", rules.collect::<String>()));
    for host in ["h7.example", "H7.EXAMPLE", "h7.example.:443"] {
        assert_eq!(keys(&gate, &[("host", host)]), ["default:r7:1m:{}"], "{host}");
    }
}

#[test]
fn host_with_ipv6_address_is_compared_as_address() {
    let gate =
        rule("when: { host: ['[2001:DB8::1]:80', 192.0.2.7] }, per: [host], limits: [9/min]");
    for host in ["2001:db8::1", "[2001:DB8:0::1]", "[2001:db8::1]:443", "[2001:db8::1]."] {
        let site = "default:a:1m:{host=(2001:db8::/64)}";
        assert_eq!(keys(&gate, &[("host", host)]).concat(), site, "{host}");
    }
    for host in ["192.0.2.7", "192.0.2.7:80", "192.0.2.7.", "[::ffff:c000:207]:1"] {
        assert_eq!(keys(&gate, &[("host", host)]).concat(), "default:a:1m:{host=192.0.2.7}");
    }
}

#[test]
fn host_without_name_is_counted_as_empty() {
    let gate = rule("per: [host], limits: [4/min]");
    for host in [":80", ".", "", " "] {
        assert_eq!(keys(&gate, &[("host", host)]).concat(), "default:a:1m:{host=}", "{host:?}");
        assert!(is_allowed(&gate, &[("host", host)]));
    }
    assert!(!is_allowed(&gate, &[("host", ":81")]), "every spelling is counted");
}

#[test]
fn host_that_splits_counts_is_canonical() {
    let gate = rule("per: [x], limits: [80/min], redis: { split: { by: [host], into: 8 } }");
    let part = |host: &str| placed_keys(&gate, &[("x", "1"), ("host", host)]);
    assert!(SPELLINGS.iter().all(|host| part(host) == part(SPELLINGS[0])));
}

#[test]
fn explained_host_is_canonical() {
    let gate = rule("when: { host: api.example.com }, limits: [1/min]");
    let attributes = [("host", "Other.example:80")];
    let input = request(&attributes, 1);
    let (_, result) = gate.policy().explain(&input).next().unwrap();
    let Err(NoMatchReason::ConditionNotMet { found, .. }) = result else {
        panic!("the rule applies")
    };
    assert_eq!(found, Some("other.example"));
    let attributes = [("host", SPELLINGS[4])];
    let input = request(&attributes, 1);
    assert!(gate.policy().explain(&input).next().unwrap().1.is_ok());
}

#[test]
fn spellings_of_ipv4_address_share_counter() {
    let gate = rule("per: [ip], limits: [5/min]");
    for ip in [
        "192.0.2.7",
        "::ffff:192.0.2.7",
        "::ffff:c000:207",
        "::FFFF:C000:0207",
        "0:0:0:0:0:ffff:c000:0207",
    ] {
        let attributes = [("ip", ip)];
        let input = request(&attributes, 1);
        let matched_rules = gate.policy().apply(&input);
        let (_, value) = matched_rules.matches().next().unwrap().identity().next().unwrap();
        assert_eq!((value, value.to_string()), ("192.0.2.7".into(), "192.0.2.7".to_owned()));
        assert_eq!(keys(&gate, &[("ip", ip)]).concat(), "default:a:1m:{ip=192.0.2.7}", "{ip}");
        assert!(is_allowed(&gate, &[("ip", ip)]), "{ip}");
    }
    assert!(!is_allowed(&gate, &[("ip", "192.0.2.7")]), "all share one counter");
    assert!(is_allowed(&gate, &[("ip", "::192.0.2.7")]), "IPv4-compatible is IPv6");
}

#[test]
fn mapped_network_matches_ipv4_addresses() {
    let gate = rule("when: { ip: '::ffff:203.0.113.0/120' }, limits: [1/min]");
    for ip in ["203.0.113.9", "::ffff:203.0.113.9", "::ffff:cb00:7109"] {
        assert_eq!(keys(&gate, &[("ip", ip)]).len(), 1, "{ip}");
    }
    for ip in ["203.0.114.9", "::cb00:7109", "::ffff:cb00:7209"] {
        assert_eq!(keys(&gate, &[("ip", ip)]).len(), 0, "{ip}");
    }
    let single = rule("when: { ip: '::ffff:c000:207' }, limits: [1/min]");
    assert_eq!(keys(&single, &[("ip", "192.0.2.7")]).len(), 1);
    let ipv6 = rule("when: { ip: '::/0' }, limits: [1/min]");
    let applies = |ip: &str| !keys(&ipv6, &[("ip", ip)]).is_empty();
    assert!(applies("2001:db8::1") && !applies("192.0.2.7") && !applies("::ffff:192.0.2.7"));
}

/// Spellings of an IPv4-mapped address.
fn mapped_spellings(address: std::net::Ipv4Addr) -> Vec<String> {
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
    fn any_spelling_of_address_gives_one_key(address: std::net::Ipv4Addr, prefix in 1..=128u8) {
        let gate = rule(&format!("per: [ip], limits: [1/min], ipv6_prefix: {prefix}"));
        let key = |ip: &str| {
            let attributes = [("ip", ip)];
            let request = request(&attributes, 1);
            let matched_rules = gate.policy().apply(&request);
            let hits = matched_rules.hits();
            let secret = std::hash::BuildHasherDefault::<std::hash::DefaultHasher>::default();
            let key = hits[0].key;
            let shape = hits[0].limit.shape();
            (key.to_string(), key.stable_hash(), key.fingerprint(&secret, shape))
        };
        let expected = key(&address.to_string());
        prop_assert_eq!(&expected.0, &format!("default:a:1m:{{ip={address}}}"));
        for text in mapped_spellings(address) {
            prop_assert_eq!(&key(&text), &expected, "{}", text);
        }
    }
}

#[test]
fn missing_attribute_skips_or_denies() {
    let skip = rule("per: [api_key], limits: [1/min]");
    assert!((0..5).all(|_| is_allowed(&skip, &[])));
    let deny = rule("per: [api_key, ip], limits: [5/min], when_missing: deny");
    let ruling = check(&deny, &[("ip", "192.0.2.7")]);
    assert!(!ruling.decision().is_allowed());
    assert_eq!(ruling.decision().retry_after(), None, "a retry would not help");
    assert_eq!(ruling.binding().unwrap().limit.id(), "missing");
    assert!(is_allowed(&deny, &[("ip", "192.0.2.7"), ("api_key", "k")]));
    let observe = rule("per: [api_key], limits: [5/min], when_missing: deny, mode: observe");
    assert!(is_allowed(&observe, &[]), "a rule in mode observe never denies");
}

#[test]
fn observing_rule_counts_and_never_denies() {
    let gate = gate(
        "
rules:
  - { name: watched, per: [ip], limits: [2/min], mode: observe }
  - { name: all, limits: [4/min] }
",
    );
    let ip = [("ip", "192.0.2.7")];
    let rulings: Vec<Ruling> = (0..6).map(|_| check(&gate, &ip)).collect();
    let allowed: Vec<bool> = rulings.iter().map(|ruling| ruling.decision().is_allowed()).collect();
    assert_eq!(allowed, [true, true, true, true, false, false]);
    let watched = |index: usize| rulings[index].limits().next().unwrap();
    assert!(watched(1).outcome.fits() && !watched(2).outcome.fits());
    assert!(watched(0).is_observed() && !rulings[0].limits().nth(1).unwrap().is_observed());
    assert!(rulings.iter().all(|ruling| ruling.binding().unwrap().rule.name() == "all"));
}

#[test]
fn rule_in_mode_off_has_no_hits() {
    assert_eq!(keys(&rule("limits: [1/min], mode: off"), &[]), [""; 0]);
}

#[test]
fn percentage_enforces_always_the_same_keys() {
    let gate = rule(
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
        let observed: Vec<bool> =
            check(&gate, &[("tenant", name)]).limits().map(|limit| limit.is_observed()).collect();
        assert_eq!(observed[0], observed[1], "all limits of a rule have the same mode");
        observed[0]
    };
    assert_eq!(names.iter().filter(|name| !is_observed(name)).count(), enforced);
}

#[test]
fn first_matching_override_applies() {
    let gate = rule(
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
        let ruling = check(&gate, &[&[("tenant", "t")], attributes].concat());
        (ruling.decision().is_allowed(), remaining_per_limit(&ruling))
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
    let evil = check(&gate, &[("tenant", "evil"), ("plan", "pro")]);
    assert!(!evil.decision().is_allowed() && evil.decision().retry_after().is_none());
    assert_eq!(evil.binding().unwrap().limit.id(), "denied");
    assert!(
        is_allowed(&gate, &[("key", "live"), ("tenant", "evil")]),
        "the first override applies"
    );
    assert!((0..5).all(|_| of(&[("plan", "test")]).0));
    // Without limits no attribute of `per` is needed.
    assert!(is_allowed(&gate, &[("key", "live")]));
}

/// A gate whose store is unavailable.
fn gate_without_store(yaml: &str) -> Gate<FaultyStore> {
    let clock = ManualClock::at(Timestamp::from_secs(1_750_000_020));
    let faults = Faults { unavailable: 100, ..Faults::default() };
    Gate::new(Policy::from_yaml(yaml).unwrap(), FaultyStore::new(&clock, 1, faults, 1))
}

const STORE_ERROR_RULES: &str = "
rules:
  - { name: allow, when: { a: '*' }, limits: [1/d], on_store_error: allow }
  - { name: local, when: { l: '*' }, limits: [1/d], on_store_error: local }
  - { name: deny, when: { d: '*' }, limits: [1/d], on_store_error: deny }
  - { name: watch, when: { w: '*' }, limits: [1/d], on_store_error: deny, mode: observe }
  - { name: ban, when: { b: '*' }, limits: denied, on_store_error: allow }
";

#[test]
fn strictest_rule_wins_without_store() {
    let gate = gate_without_store(STORE_ERROR_RULES);
    // Checked twice, so that a local limit denies the second request.
    let allowed = |names: &str| {
        check_twice(names, |request| {
            let ruling = block_on(gate.check(request));
            assert!(ruling.decision().is_degraded());
            ruling.decision().is_allowed()
        })
    };
    assert_eq!(allowed("a"), [true, true]);
    assert_eq!(allowed("w"), [true, true], "a rule in mode observe does not matter");
    assert_eq!(allowed("al"), [true, false]);
    assert_eq!(allowed("ald"), [false, false]);
    assert_eq!(allowed("ab"), [false, false], "a ban needs no store");
    let ruling = block_on(gate.check(&request(&[("d", "1")], 1)));
    assert!(ruling.decision().is_store_unavailable() && ruling.decision().retry_after().is_none());
    assert_eq!((ruling.limits().count(), ruling.decision().remaining()), (0, 0));
    let peeked = block_on(gate.peek(&request(&[("d", "1")], 1)));
    assert!(peeked.decision().is_store_unavailable());
}

#[test]
fn request_without_rules_needs_no_store() {
    let gate = gate_without_store(STORE_ERROR_RULES);
    let ruling = block_on(gate.check(&request(&[], 1)));
    assert!(ruling.decision().is_allowed() && !ruling.decision().is_degraded());
}

/// Checks twice a request with attributes of these names.
fn check_twice(names: &str, check: impl Fn(&Request<'_>) -> bool) -> [bool; 2] {
    let names: Vec<String> = names.chars().map(String::from).collect();
    let attributes: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "1")).collect();
    [0, 1].map(|_| check(&request(&attributes, 1)))
}

#[test]
fn explain_names_reason_for_every_rule() {
    let gate = gate(
        "
rules:
  - { name: post, when: { method: POST }, limits: [1/s] }
  - { name: key, per: [api_key|ip], limits: [1/s], overrides: [{ name: live, when: { ip: '::1' }, limits: [2/s] }] }
  - { name: off, limits: [1/s], mode: off }
  - { name: all, limits: [1/s] }
  - { name: elsewhere, domain: other, limits: [1/s] }
",
    );
    let input = request(&[("method", "GET")], 1);
    let explained: Vec<_> = gate.policy().explain(&input).collect();
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
    let input = request(&[("ip", "::1")], 1);
    let (_, result) = gate.policy().explain(&input).nth(1).unwrap();
    let rule_match = result.unwrap();
    assert_eq!(rule_match.active_override().unwrap().1.name(), Some("live"));
    let Value::Network(network) = rule_match.identity().next().unwrap().1 else {
        panic!("no network")
    };
    assert_eq!(network.to_string(), "::/64");
}

/// The keys of a request as placed in Redis, with the max of the sub-key's share.
fn placed_keys(gate: &TestGate, attributes: &[(&str, &str)]) -> Vec<(String, Option<u64>)> {
    let request = request(attributes, 1);
    let matched_rules = gate.policy().apply(&request);
    let hits = matched_rules.hits();
    let max = |hit: &slidegate::Hit<'_>| hit.key.share().map(|share| share.quota().max());
    hits.iter().map(|hit| (hit.key.hash_tagged_identity().to_string(), max(hit))).collect()
}

#[test]
fn slot_by_entry_chooses_hash_slot() {
    let gate =
        rule("per: ['a | b', route], limits: [10/s, 9/m], redis: { slot_by: [a|b], sample: 50% }");
    let placed_keys = |attributes: &[(&str, &str)]| {
        let placed_keys = placed_keys(&gate, attributes).into_iter().map(|(identity, _)| identity);
        placed_keys.collect::<Vec<_>>()
    };
    assert_eq!(placed_keys(&[("a", "x"), ("b", "y"), ("route", "/r")]), ["{a=x},route=/r"; 2]);
    assert_eq!(placed_keys(&[("b", "y"), ("route", "/r")]), ["{b=y},route=/r"; 2]);
    let redis = gate.policy().rules()[0].redis().unwrap();
    assert_eq!((redis.slot_by(), redis.sample().get(), redis.split_into()), (&[0][..], 2, None));
}

const SPLIT: &str = "
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
fn split_attributes_choose_sub_key() {
    let gate = gate(SPLIT);
    let placed_keys = |attributes: &[(&str, &str)]| {
        placed_keys(&gate, &[&[("tenant", "t")], attributes].concat())
    };
    let of = |part: u16, shares: &[u64]| {
        let identity = format!("{{tenant=t#{part}}}");
        shares.iter().map(|share| (identity.clone(), Some(*share))).collect::<Vec<_>>()
    };
    // Sub-keys computed by another program: FNV-1a of the values, folded.
    assert_eq!(placed_keys(&[("route", "/users/{id}")]), of(3, &[4, 13]));
    assert_eq!(placed_keys(&[("path", "/users/7?a")]), of(3, &[4, 13]));
    assert_eq!(placed_keys(&[]), of(5, &[4, 12]));
    assert_eq!(placed_keys(&[("route", "")]), of(2, &[4, 13]));
    // Overrides use the same sub-key, with shares of their own limits.
    assert_eq!(placed_keys(&[("plan", "pro")]), of(5, &[11]));
    assert_eq!(placed_keys(&[("plan", "pro"), ("route", "")]), of(2, &[11]));
    assert_eq!(placed_keys(&[("plan", "evil")]), of(5, &[0]));
    assert_eq!(placed_keys(&[("plan", "live")]), []);
    let several = rule("limits: [1024/s], redis: { split: { by: [route, user], into: 1024 } }");
    let attributes = [("user", "ann"), ("route", "/users/{id}")];
    assert_eq!(self::placed_keys(&several, &attributes), [("{#502}".to_owned(), Some(1))]);
}

#[test]
fn redis_options_exclude_missing_attributes() {
    let gate = gate(SPLIT);
    assert_eq!(placed_keys(&gate, &[("route", "/x")]), [("{}".to_owned(), None)]);
    assert!(!is_allowed(&gate, &[("route", "/x")]));
}

#[test]
fn memory_store_ignores_redis_options() {
    let gate = gate(SPLIT);
    let whole: Vec<_> = (0..30).map(|_| is_allowed(&gate, &[("tenant", "t")])).collect();
    assert!(whole.iter().all(|allowed| *allowed));
    assert!(!is_allowed(&gate, &[("tenant", "t"), ("route", "/another")]));
    let explained = keys(&gate, &[("tenant", "t")]);
    assert_eq!(explained, ["default:a:1s:{tenant=t}", "default:a:1m:{tenant=t}"]);
}

#[test]
fn sub_keys_are_chosen_evenly() {
    let gate = rule("limits: [100/s], redis: { split: { by: [user], into: 8 } }");
    let mut chosen = [0; 8];
    for index in 0..8_000 {
        let user = format!("user-{index}");
        let request = request(&[("user", &user)], 1);
        let matched_rules = gate.policy().apply(&request);
        chosen[usize::from(matched_rules.hits()[0].key.part().unwrap())] += 1;
    }
    assert!(chosen.iter().all(|requests| (900..1_100).contains(requests)), "{chosen:?}");
}
