use proptest::prelude::*;
use std::net::Ipv6Addr;

use super::escape::MAX_NAME_VALUE_LIST_BYTES;
use super::*;

#[test]
fn ambiguous_key_values_are_escaped() {
    let write = |values: &[&str; 2]| {
        let scope = Scope::new("d", "r", "1s", &["a", "b"]);
        Key::new(&scope, &values.map(Value::Text)).to_string()
    };
    assert_ne!(write(&["x", "y,b=z"]), write(&["x,b=y", "z"]));
    assert_eq!(write(&["é{}%", ""]), "d:r:1s:{a=%C3%A9%7B%7D%25,b=}");
}

fn scope_with_redis_slot_by(slot_by: &[usize]) -> Scope {
    let options = RedisOptions::new(&Limit::deny_all());
    let options = if slot_by.is_empty() { options } else { options.with_slot_by(slot_by).unwrap() };
    Scope::new("d", "r", "1s", &["tenant", "route", "ip"]).with_redis(options)
}

const TEST_KEY_VALUES: [Value<'_>; 3] = [
    Value::Text("a:b"),
    Value::Text("r:s"),
    Value::Network { address: Ipv6Addr::UNSPECIFIED, prefix_bits: 64 },
];

#[test]
fn redis_options_do_not_change_identity() {
    let plain = Scope::new("d", "r", "1s", &["tenant", "route", "ip"]);
    let secret = std::hash::RandomState::new();
    let forms = |key: Key<'_>| {
        let (rule, limit) = (key.rule().to_string(), key.limit().to_string());
        let values_text = key.values_text().to_string();
        (key.to_string(), rule, limit, values_text, key.stable_hash(), key.fingerprint(&secret, 7))
    };
    let plain_key = Key::new(&plain, &TEST_KEY_VALUES);
    for slot_by in [&[][..], &[0], &[1, 0]] {
        let scope = scope_with_redis_slot_by(slot_by);
        let key = Key::new(&scope, &TEST_KEY_VALUES);
        assert_eq!(forms(key), forms(plain_key));
        assert_eq!(forms(key.with_sub_key(3)), forms(plain_key));
    }
}

#[test]
fn hashed_key_has_no_names_or_sub_key() {
    let hashed = Key::from_hashes(1, 2).with_sub_key(3);
    assert_eq!(
        (hashed.sub_key_index(), hashed.limit_share(), hashed.redis_options()),
        (None, None, None)
    );
    assert!(hashed.name_value_pairs().is_none());
    assert_eq!(hashed.values_text().to_string(), "#0000000000000001");
}

#[test]
fn sub_key_gets_share_of_limit() {
    let limit: Limit = "10/s".parse().unwrap();
    let options = RedisOptions::new(&limit).with_split(4).unwrap();
    let scope = Scope::new("d", "r", "1s", &["a"]).with_redis(options.clone());
    let key = Key::new(&scope, &[Value::Text("x")]);
    assert_eq!(
        (key.redis_options(), key.sub_key_index(), key.limit_share()),
        (Some(&options), None, None)
    );
    let max = |part| key.with_sub_key(part).limit_share().unwrap().quota().max();
    assert_eq!([0, 1, 2, 3].map(max), [3, 3, 2, 2]);
    assert_eq!(key.with_sub_key(3).sub_key_index(), Some(3));
    assert_eq!(
        Key::new(&scope_with_redis_slot_by(&[0]), &TEST_KEY_VALUES).with_sub_key(3).limit_share(),
        None
    );
}

/// A hasher that records the bytes written to it.
#[derive(Default)]
struct ByteCollectingHasher(Vec<u8>);

impl Hasher for ByteCollectingHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    fn finish(&self) -> u64 {
        0
    }
}

fn hash_input_bytes(values: &[Value<'_>]) -> Vec<u8> {
    let mut recorder = ByteCollectingHasher::default();
    values.iter().for_each(|value| value.write_to_hasher(&mut recorder));
    recorder.0
}

/// Compares fingerprints with fixed numbers. Nodes of different versions identify shared counters by fingerprints, so
/// fingerprints must not change.
#[test]
fn key_fingerprint_is_same_in_every_version() {
    let fingerprint = |scope: &Scope, values: &[Value<'_>]| {
        let shape = 0x3168_17c0_5554_feb6;
        Key::new(scope, values).fingerprint(&fnv::FnvBuildHasher::default(), shape)
    };
    let scope = Scope::new("api", "per-client", "1m", &["tenant", "ip"]);
    let texts = ["acme".into(), "203.0.113.7".into()];
    assert_eq!(fingerprint(&scope, &texts), 0xff8c_c9f0_f970_c106);
    let site = Value::Network { address: "2001:db8::".parse().unwrap(), prefix_bits: 64 };
    assert_eq!(fingerprint(&scope, &["é".into(), site]), 0x0ee7_adaa_9223_377c);
    assert_eq!(
        fingerprint(&Scope::new("default", "all", "1m", &[""; 0]), &[]),
        0x6fa8_0796_70b6_1531
    );
    assert_eq!(hash_input_bytes(&["é".into(), site])[..3], [0xC3, 0xA9, 0xFF]);
    assert_eq!(hash_input_bytes(&[site]), *b"\x20\x01\x0d\xb8\0\0\0\0\0\0\0\0\0\0\0\0\x40\xFE");
}

#[test]
fn ipv4_address_value_equals_its_text_value() {
    for text in ["192.0.2.7", "0.0.0.0", "255.255.255.255"] {
        let (address, written) = (Value::Ipv4(text.parse().unwrap()), Value::Text(text));
        assert_eq!((address, address.to_string()), (written, text.to_owned()));
        assert_eq!(hash_input_bytes(&[address]), hash_input_bytes(&[written]));
        let scope = scope_with_redis_slot_by(&[0]);
        let keys = [address, written].map(|value| {
            let values = ["a".into(), value, value];
            let key = Key::new(&scope, &values);
            (key.to_string(), key.stable_hash())
        });
        assert_eq!(keys[0], keys[1]);
    }
    assert_ne!(Value::Ipv4([192, 0, 2, 7].into()), Value::Text("192.0.2.8"));
    assert_ne!(Value::Ipv4([192, 0, 2, 7].into()), TEST_KEY_VALUES[2]);
}

#[test]
fn key_size_is_at_most_four_words() {
    assert!(size_of::<Key<'_>>() <= 4 * size_of::<usize>());
}

fn arbitrary_key_value() -> impl Strategy<Value = (Option<String>, u128, u8)> {
    // Networks with octets that also occur in texts and as end markers.
    let octets = proptest::collection::vec(prop_oneof![Just(0xFF), Just(0xFE), Just(b'a')], 16);
    let octets = octets.prop_map(|octets: Vec<u8>| {
        octets.iter().fold(0, |bits, &octet| bits << 8 | u128::from(octet))
    });
    (proptest::option::of("a{0,18}"), octets, 0..=128u8)
}

proptest! {
    #[test]
    fn different_key_values_have_different_hash_input(
        left in proptest::array::uniform3(arbitrary_key_value()),
        right in proptest::array::uniform3(arbitrary_key_value()),
    ) {
        fn borrow_values(values: &[(Option<String>, u128, u8); 3]) -> [Value<'_>; 3] {
            values.each_ref().map(|(text, octets, prefix)| match text {
                Some(text) => Value::Text(text),
                None => Value::Network { address: (*octets).into(), prefix_bits: *prefix },
            })
        }
        let (left, right) = (borrow_values(&left), borrow_values(&right));
        prop_assert_eq!(left == right, hash_input_bytes(&left) == hash_input_bytes(&right));
    }

    #[test]
    fn different_keys_have_different_texts(
        left in proptest::array::uniform5("[ab:,={}%/é*]{0,3}"),
        right in proptest::array::uniform5("[ab:,={}%/é*]{0,3}"),
    ) {
        let write = |parts: &[String; 5]| {
            let [domain, rule, limit, name, value] = parts;
            let scope = Scope::new(domain, rule, limit, &[name]);
            Key::new(&scope, &[Value::Text(value)]).to_string()
        };
        prop_assert_eq!(left == right, write(&left) == write(&right));
    }
}

/// Compares the texts of keys with the documentation. Instances of different versions identify shared counters by these
/// texts, so a changed text would reset its counter.
#[test]
fn long_and_binary_key_texts_match_documentation() {
    let documented = include_str!("../../../../docs/reference/policy.md");
    let (long, longest) = ("a".repeat(1025), "a".repeat(1024));
    for (value, written) in [
        (Value::from(&*longest), longest.clone()),
        (Value::from(&*long), "a".repeat(64) + "(sha256-4a82297889eb505cf6b5cbdf69977afa)"),
        (
            Value::from_bytes("k\u{fffd}", b"k\xff"),
            "k%EF%BF%BD(sha256-1afd8b9ac52e1dc6ef517551a39b567d)".into(),
        ),
    ] {
        let scope = Scope::new("d", "r", "1s", &["a"]);
        assert_eq!(Key::new(&scope, &[value]).to_string(), format!("d:r:1s:{{a={written}}}"));
        let digest = written.split_once('(').map_or("at most 1,024 bytes", |(_, digest)| digest);
        assert!(documented.contains(digest), "{digest}");
    }
    let scope = Scope::new("d", "r", "1s", &["a"]);
    let key =
        Key::new(&scope, &[Value::from(&*long)]).fingerprint(&fnv::FnvBuildHasher::default(), 0);
    assert_eq!(key, 0x80e1_26bd_70c0_84ee);
}

#[test]
fn shortened_value_prefix_has_whole_characters() {
    let text = "é".repeat(40);
    let Value::Shortened(value) = Value::from_bytes(&text, b"\xff") else { panic!() };
    assert_eq!(value.prefix(), "é".repeat(32));
    let text = "x".to_owned() + &"é".repeat(600);
    let Value::Shortened(value) = Value::from(&*text) else { panic!() };
    assert_eq!(value.prefix(), "x".to_owned() + &"é".repeat(31));
}

proptest! {
    /// Checks that the text of a key has a bounded length, and that keys with different values have different texts.
    #[test]
    fn different_keys_have_different_bounded_texts(
        texts in proptest::collection::vec("[a*{}é,=]{0,8}", 3),
        repeats in proptest::array::uniform3(1usize..400),
        slot_by in proptest::sample::subsequence(vec![0, 1, 2], 0..=3),
        changed in 0usize..3,
    ) {
        let scope = scope_with_redis_slot_by(&slot_by);
        let texts: Vec<String> = texts.iter().zip(repeats).map(|(text, count)| text.repeat(count)).collect();
        let values: Vec<Value<'_>> = texts.iter().map(|text| Value::from(&**text)).collect();
        let key = Key::new(&scope, &values);
        let values_text = key.values_text().to_string();
        prop_assert!(values_text.len() <= MAX_NAME_VALUE_LIST_BYTES + 2, "{}", values_text.len());
        let other_text = texts[changed].clone() + "!";
        let mut other_values = values.clone();
        other_values[changed] = Value::from(&*other_text);
        let other = Key::new(&scope, &other_values);
        prop_assert_ne!(values_text, other.values_text().to_string());
    }
}
