use proptest::prelude::*;
use serde_json::Value;

use std::borrow::Cow;

use super::*;

/// Returns a strategy for the bytes between the quotes of a JSON string: any bytes, and any escape sequences, of which
/// many are surrogates.
fn string_content() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        any::<u8>().prop_map(|byte| match byte {
            b'"' | b'\\' => vec![b'\\', byte],
            _ => vec![byte],
        }),
        "\\\\[bfnrt/]|\\\\u[0-9a-fA-F]{4}|\\\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
            .prop_map(String::into_bytes),
    ];
    proptest::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn repaired_json_with_any_strings_is_accepted(name in string_content(), value in string_content()) {
        let body = [b"{ \"", &name[..], b"\" :\n\"", &value, b"\"\t}"].concat();
        let text = repair_json(&body);
        prop_assert!(serde_json::from_str::<Value>(&text).is_ok(), "{text}");
    }

    #[test]
    fn valid_json_is_not_copied(text in any::<String>()) {
        let json = format!("{{\n\"a\": {}}}", serde_json::to_string(&text).unwrap());
        prop_assert!(matches!(repair_json(json.as_bytes()), Cow::Borrowed(text) if text == json));
    }

    #[test]
    fn any_bytes_are_repaired_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = repair_json(&bytes);
        let _ = repair_json(&[b"\"\\ud800", &bytes[..]].concat());
    }
}

#[test]
fn invalid_unicode_becomes_replacement_character() {
    for (json, expected) in [
        (&br#""\ud83d\ude00""#[..], "\u{1f600}"),
        (br#""\uD83D\uDE00\uE000""#, "\u{1f600}\u{e000}"),
        (br#""\ud800""#, "\u{fffd}"),
        (br#""k\udcffx""#, "k\u{fffd}x"),
        (br#""\ud83d\ud83d\ude00""#, "\u{fffd}\u{1f600}"),
        (br#""\ud800\u0041\n""#, "\u{fffd}A\n"),
        (br#""\\ud800""#, r"\ud800"),
        (b"\"\xff\xfe\"", "\u{fffd}\u{fffd}"),
        (b"\"\0\n\x1f\x7f\"", "\0\n\u{1f}\u{7f}"),
    ] {
        let text = repair_json(json);
        assert_eq!(serde_json::from_str::<String>(&text).unwrap(), expected, "{text}");
    }
}

#[test]
fn json_error_has_location_and_bounded_text() {
    let describe = |text: &str| {
        let error = serde_json::from_str::<Vec<u8>>(text).unwrap_err();
        describe_json_error(&error)
    };
    assert_eq!(describe("[1,\n x"), "line 2 column 2: expected value");
    assert_eq!(describe("[1"), "line 1 column 2: the body ends within a list");
    let long = describe(&format!("\"{}\"", ", expected".repeat(10_000)));
    assert!(long.len() < 400 && long.ends_with("…, expected a sequence"), "{long}");
    let long = format!("name, expected{}", "x".repeat(10_000));
    let error = <serde_json::Error as serde::de::Error>::custom(long);
    assert!(describe_json_error(&error).len() < 400);
}
