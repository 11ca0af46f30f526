use proptest::prelude::*;
use std::net::Ipv6Addr;

use super::*;
use slidegate::store::{Adjustment, Charge, CounterId, Receipt, Scope, Value};
use slidegate::{Descriptor, Limit, Policy, Request, Timestamp};

fn test_limit() -> Limit {
    "10/s".parse().unwrap()
}

fn scope_with_slot_by(slot_by: &[usize]) -> Scope {
    let options = RedisOptions::new(&test_limit());
    let options = if slot_by.is_empty() { options } else { options.with_slot_by(slot_by).unwrap() };
    Scope::new("d", "r", "1s", &["tenant", "route", "ip"]).with_redis(options)
}

const TEST_KEY_VALUES: [Value<'_>; 3] = [
    Value::Text("a:b"),
    Value::Text("r:s"),
    Value::Network { address: Ipv6Addr::UNSPECIFIED, prefix_bits: 64 },
];

fn write_key(key: Key<'_>) -> String {
    hash_tagged_identity(&key).to_string()
}

#[test]
fn hash_tag_equals_identity_of_tagged_values() {
    let tagged =
        |slot_by: &[usize]| write_key(Key::new(&scope_with_slot_by(slot_by), &TEST_KEY_VALUES));
    assert_eq!(tagged(&[0]), "{tenant=a:b},route=r%3As,ip=(%3A%3A/64)");
    assert_eq!(tagged(&[2]), "{ip=(::/64)},tenant=a%3Ab,route=r%3As");
    assert_eq!(tagged(&[1, 0]), "{route=r:s,tenant=a:b},ip=(%3A%3A/64)");
    for slot_by in [&[0][..], &[2], &[1, 0], &[0, 2], &[2, 0, 1]] {
        let names = ["tenant", "route", "ip"];
        let names: Vec<_> = slot_by.iter().map(|&index| names[index]).collect();
        let values: Vec<_> = slot_by.iter().map(|&index| TEST_KEY_VALUES[index]).collect();
        let other = Scope::new("d", "other", "1m", &names);
        let other = Key::new(&other, &values).values_text().to_string();
        let tagged_key = tagged(slot_by);
        assert_eq!(tagged_key.split_inclusive('}').next(), Some(&*other));
    }
}

#[test]
fn key_without_slot_by_is_tagged_with_identity() {
    let plain = Scope::new("d", "r", "1s", &["tenant", "route", "ip"]);
    let plain = Key::new(&plain, &TEST_KEY_VALUES);
    let values_text = plain.values_text().to_string();
    assert_eq!(write_key(plain), values_text);
    assert_eq!(write_key(Key::new(&scope_with_slot_by(&[]), &TEST_KEY_VALUES)), values_text);
}

#[test]
fn hash_tag_contains_sub_key_index() {
    let write_sub_key = |slot_by: &[usize]| {
        write_key(Key::new(&scope_with_slot_by(slot_by), &TEST_KEY_VALUES).with_sub_key(3))
    };
    assert_eq!(write_sub_key(&[]), "{tenant=a:b,route=r:s,ip=(::/64)#3}");
    assert_eq!(write_sub_key(&[0]), "{tenant=a:b#3},route=r%3As,ip=(%3A%3A/64)");
    assert_eq!(write_sub_key(&[1, 0]), "{route=r:s,tenant=a:b#3},ip=(%3A%3A/64)");
    let limit: Limit = "100/s".parse().unwrap();
    let options = RedisOptions::new(&limit).with_split(8).unwrap();
    let scope = Scope::new("api", "hot", "1s", &["tenant"]).with_redis(options);
    assert_eq!(write_key(Key::new(&scope, &["acme".into()]).with_sub_key(3)), "{tenant=acme#3}");
}

/// Checks keys without names and values. The keys of a receipt are of this kind.
#[test]
fn key_without_names_has_no_hash_tag() {
    for (counter, text) in [
        (CounterId::Fingerprint(1), "#0000000000000001"),
        (CounterId::Text("counter".into()), "counter"),
    ] {
        let charge = Charge {
            counter,
            limit: test_limit(),
            hit_index: 0,
            phase_us: 2,
            charged_at: Timestamp::from_micros(0),
            hit_cost: 1,
            cost: 1,
        };
        let receipt = Receipt::from_iter([charge]);
        let additional = receipt.additional_charges(Adjustment::SetCost(2)).next().unwrap();
        let key = additional.reported_hit().key.with_sub_key(3);
        assert_eq!(
            (key.sub_key_index(), key.limit_share(), key.redis_options()),
            (None, None, None)
        );
        assert_eq!(key.values_text().to_string(), text);
        assert_eq!(write_key(key), text);
    }
}

#[test]
fn ipv4_address_is_written_like_its_text() {
    for text in ["192.0.2.7", "0.0.0.0", "255.255.255.255"] {
        let scope = scope_with_slot_by(&[0]);
        let written = [Value::Ipv4(text.parse().unwrap()), Value::Text(text)]
            .map(|value| write_key(Key::new(&scope, &["a".into(), value, value])));
        assert_eq!(written[0], format!("{{tenant=a}},route={text},ip={text}"));
        assert_eq!(written[0], written[1]);
    }
}

/// Maximum length, in bytes, of a list of names and values in a key, as documented in `docs/reference/policy.md`.
const MAX_NAME_VALUE_LIST_BYTES: usize = 1280;

proptest! {
    #[test]
    fn different_keys_have_different_hash_tagged_identities(
        left in (proptest::array::uniform3("[ab:,={}%#/é]{0,3}"), proptest::option::of(0..3u16)),
        right in (proptest::array::uniform3("[ab:,={}%#/é]{0,3}"), proptest::option::of(0..3u16)),
        slot_by in proptest::sample::subsequence(vec![0, 1, 2], 0..=3).prop_shuffle(),
    ) {
        let scope = scope_with_slot_by(&slot_by);
        let write = |(values, part): &([String; 3], Option<u16>)| {
            let values = values.each_ref().map(|value| Value::Text(value));
            let key = Key::new(&scope, &values);
            write_key(part.map_or(key, |part| key.with_sub_key(part)))
        };
        prop_assert_eq!(left == right, write(&left) == write(&right));
        // Redis computes the slot from the first pair of braces; there must be only one.
        prop_assert_eq!(write(&left).matches(['{', '}']).count(), 2);
    }

    /// Checks that the text of a key has a bounded length, and that keys with different values have different texts.
    #[test]
    fn different_keys_have_different_bounded_texts(
        texts in proptest::collection::vec("[a*{}é,=]{0,8}", 3),
        repeats in proptest::array::uniform3(1usize..400),
        slot_by in proptest::sample::subsequence(vec![0, 1, 2], 0..=3),
        changed in 0usize..3,
    ) {
        let scope = scope_with_slot_by(&slot_by);
        let texts: Vec<String> = texts.iter().zip(repeats).map(|(text, count)| text.repeat(count)).collect();
        let values: Vec<Value<'_>> = texts.iter().map(|text| Value::from(&**text)).collect();
        let tagged = write_key(Key::new(&scope, &values));
        prop_assert!(tagged.len() <= 2 * MAX_NAME_VALUE_LIST_BYTES + 3, "{}", tagged.len());
        let other_text = texts[changed].clone() + "!";
        let mut other_values = values.clone();
        other_values[changed] = Value::from(&*other_text);
        prop_assert_ne!(tagged, write_key(Key::new(&scope, &other_values)));
    }
}

fn policy_with_rule(fields: &str) -> Policy {
    Policy::from_yaml(&format!("rules: [{{ name: a, {fields} }}]")).unwrap()
}

/// Returns the hash-tagged identity of each key of a request with these attributes.
fn hash_tagged_identities(policy: &Policy, attributes: &[(&str, &str)]) -> Vec<String> {
    let request = Request::new("default", Descriptor::new(attributes.iter().copied()));
    policy.apply(&request).hits().map(|hit| write_key(hit.key)).collect()
}

#[test]
fn slot_by_selects_hash_tag_of_key() {
    let policy = policy_with_rule(
        "per: ['a | b', route], limits: [10/s, 9/m], redis: { slot_by: [a|b], sample: 50% }",
    );
    assert_eq!(
        hash_tagged_identities(&policy, &[("a", "x"), ("b", "y"), ("route", "/r")]),
        ["{a=x},route=/r"; 2]
    );
    assert_eq!(
        hash_tagged_identities(&policy, &[("b", "y"), ("route", "/r")]),
        ["{b=y},route=/r"; 2]
    );
}

#[test]
fn hash_tag_contains_sub_key_of_split_attributes() {
    let policy = Policy::from_yaml(
        "
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
",
    )
    .unwrap();
    let write = |attributes: &[(&str, &str)]| {
        hash_tagged_identities(&policy, &[&[("tenant", "t")], attributes].concat())
    };
    // Sub-keys computed by another program: FNV-1a of the values, folded.
    assert_eq!(write(&[("route", "/users/{id}")]), ["{tenant=t#3}"; 2]);
    assert_eq!(write(&[("path", "/users/7?a")]), ["{tenant=t#3}"; 2]);
    assert_eq!(write(&[]), ["{tenant=t#5}"; 2]);
    assert_eq!(write(&[("route", "")]), ["{tenant=t#2}"; 2]);
    // Overrides use the same sub-key.
    assert_eq!(write(&[("plan", "pro")]), ["{tenant=t#5}"]);
    assert_eq!(write(&[("plan", "pro"), ("route", "")]), ["{tenant=t#2}"]);
    assert_eq!(write(&[("plan", "evil")]), ["{tenant=t#5}"]);
    assert!(write(&[("plan", "live")]).is_empty());
    // The denial of a request without `tenant` has no sub-key.
    assert_eq!(hash_tagged_identities(&policy, &[("route", "/x")]), ["{}"]);
    let several =
        policy_with_rule("limits: [1024/s], redis: { split: { by: [route, user], into: 1024 } }");
    let attributes = [("user", "ann"), ("route", "/users/{id}")];
    assert_eq!(hash_tagged_identities(&several, &attributes), ["{#502}"]);
}

#[test]
fn key_slot_depends_on_hash_tag() {
    // From the specification.
    assert_eq!(cluster_slot_of_key("123456789"), 0x31C3);
    assert_eq!(cluster_slot_of_key("{user1000}.following"), cluster_slot_of_key("user1000"));
    assert_eq!(cluster_slot_of_key("foo{}{bar}"), {
        crc16::State::<crc16::XMODEM>::calculate(b"foo{}{bar}") % 16_384
    });
    assert_eq!(cluster_slot_of_key("foo{{bar}}zap"), cluster_slot_of_key("{bar"));
    assert_eq!(cluster_slot_of_key("foo{bar}{zap}"), cluster_slot_of_key("bar"));
}
