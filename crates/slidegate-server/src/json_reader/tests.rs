use proptest::prelude::*;

use super::*;

/// Returns the error for a text that is not a JSON object.
fn syntax_error(text: &[u8]) -> String {
    check_syntax(text).unwrap_err().to_string()
}

fn read_single_string(text: &[u8]) -> Result<Vec<u8>, JsonError> {
    let mut reader = JsonReader { text, utf8: None, position: 0 };
    let string = reader.read_string()?;
    reader.finish().map(|()| string.bytes.into_owned())
}

#[test]
fn syntax_errors_contain_location_problem_and_remedy() {
    for (text, expected) in [
        ("", "line 1 column 1: the body is empty; send a JSON object such as"),
        ("[]", "line 1 column 1: the body is a list; send a JSON object"),
        ("\n \"a\"", "line 2 column 2: the body is a string; send a JSON object"),
        ("7", "line 1 column 1: the body is a number; send a JSON object"),
        ("null", "line 1 column 1: the body is not an object; send a JSON object"),
        ("client=alice&n=1", "the body is form-encoded"),
        (
            "'{}'",
            "the body is enclosed in single quotes; enclose it in double quotes in cmd.exe, for example \"{\\\"attr",
        ),
        ("<a>", "the body is XML"),
        ("\u{feff}{}", "byte order mark"),
        (
            "{",
            "line 1 column 1: the body ends early, after byte 1 and within an object; send the whole JSON object, and check Content-Length",
        ),
        ("{\"a", "after byte 3 and within a string"),
        (r#"{"a\"#, "after byte 4 and within a string"),
        (r#"{"a":"\ud8"#, "within a string"),
        (r#"{"a""#, "within an object"),
        (r#"{"a":"#, "within a value"),
        (r#"{"a":tru"#, "within a value"),
        (r#"{"a":-"#, "within a number"),
        (r#"{"a":1"#, "within an object"),
        (r#"{"a":[1"#, "within a list"),
        (r#"{"a":[1,"#, "within a value"),
        ("{\n\"a\":1,\n}", "line 2 column 6: a comma follows the last element; remove it"),
        ("{'a':1}", "line 1 column 2: single quotes are not JSON; write double quotes"),
        (r#"{"a":'b'}"#, "line 1 column 6: single quotes are not JSON"),
        ("{a:1}", "line 1 column 2: field name `a` is not in double quotes; write \"a\""),
        (r#"{"a":alice}"#, "`alice` is not JSON; enclose text in double quotes: \"alice\""),
        (r#"{"a":True}"#, "`True` is not JSON; write `true`"),
        (r#"{"a":None}"#, "`None` is not JSON; remove this field"),
        (r#"{"a":10.0.0.1}"#, "`10.0.0.1` is not a JSON number; enclose text in double quotes"),
        (r#"{"a":01}"#, "`01` is not a JSON number"),
        (r#"{"a":}"#, "line 1 column 6: a value is missing"),
        (r#"{"a" "b"}"#, "`\"` follows a field name; write `:` and a value"),
        (r#"{"a"="b"}"#, "`=` after a field name; write `:`"),
        (
            r#"{"a":"b" "c":"d"}"#,
            "line 1 column 10: `\"` follows an element of an object; write `,`",
        ),
        (r#"{"a":[1}"#, "`}` follows an element of a list"),
        ("{} {}", "line 1 column 4: `{` follows the JSON object; send one object"),
        ("{“a”:1}", "typographic quotes are not JSON"),
        ("{// a\n}", "comments are not JSON"),
        (r#"{\"a\":1}"#, "a backslash outside of a string"),
        (r#"{"a":"\x"}"#, "line 1 column 7: invalid escape sequence in a string; write `\\\\`"),
        (r#"{"a":"\u12g4"}"#, "line 1 column 7: `\\u` without four hexadecimal digits"),
    ] {
        let found = syntax_error(text.as_bytes());
        assert!(found.contains(expected), "{text}: {found}");
    }
    let deep = format!("{{\"a\":{}", "[".repeat(200));
    assert!(syntax_error(deep.as_bytes()).contains("more than 128 nested lists and objects"));
}

#[test]
fn unpaired_surrogates_stay_distinct() {
    for (text, expected) in [
        (r#""\ud83d\ude00""#, "\u{1f600}".as_bytes()),
        (r#""\ud800""#, &[0xed, 0xa0, 0x80]),
        (r#""k\udcffx""#, &[b'k', 0xed, 0xb3, 0xbf, b'x']),
        (r#""\ud83d\ud83d\ude00""#, &[0xed, 0xa0, 0xbd, 0xf0, 0x9f, 0x98, 0x80]),
        (r#""\ud800\n""#, &[0xed, 0xa0, 0x80, b'\n']),
        (r#""\u0000\u00e9\"\\\/\b\f\r\t""#, "\0é\"\\/\u{8}\u{c}\r\t".as_bytes()),
    ] {
        assert_eq!(read_single_string(text.as_bytes()).unwrap(), expected, "{text}");
    }
    assert_eq!(read_single_string(b"\"\xff\"").unwrap(), b"\xff");
}

#[test]
fn excerpt_is_cut_at_character() {
    assert_eq!(excerpt(b"a\xff"), "a\u{fffd}");
    assert_eq!(excerpt("é".repeat(100).as_bytes()), "é".repeat(64) + "…");
    assert_eq!(excerpt("x".repeat(64).as_bytes()), "x".repeat(64));
}

/// Returns a strategy for JSON text, some of which is damaged at one position.
fn json_like_text() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("true".to_owned()),
        Just("null".to_owned()),
        "-?(0|[1-9][0-9]{0,30})(\\.[0-9]{1,3})?([eE][+-]?[0-9]{1,2})?",
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
    ];
    let value = leaf.prop_recursive(3, 12, 4, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|elements| format!("[{}]", elements.join(" ,"))),
            proptest::collection::vec(("[a-z]{0,3}", inner), 0..4).prop_map(|members| {
                let members = members.iter().map(|(name, value)| format!("\"{name}\" :{value}"));
                format!("{{{}}}", members.collect::<Vec<_>>().join(", "))
            }),
        ]
    });
    (value, any::<proptest::sample::Index>(), proptest::option::of("[\\[\\]{}:,\"0-9a-z ]"))
        .prop_map(|(value, index, damage)| {
            let mut text = format!("{{\"a\":{value}}}");
            if let Some(damage) = damage {
                let at = text.floor_char_boundary(index.index(text.len()));
                text.insert_str(at, &damage);
            }
            text
        })
}

proptest! {
    #[test]
    fn reader_accepts_same_text_as_serde_json(text in json_like_text()) {
        // serde_json rejects numbers beyond `f64` when it reads them into a value.
        let expected: Result<serde::de::IgnoredAny, _> = serde_json::from_str(&text);
        let found = check_syntax(text.as_bytes());
        prop_assert_eq!(found.is_ok(), expected.is_ok(), "{}: {:?} {:?}", text, found, expected);
    }

    #[test]
    fn decoded_string_equals_serde_json_string(text in any::<String>()) {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(read_single_string(json.as_bytes()).unwrap(), text.as_bytes());
    }

    #[test]
    fn any_bytes_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = check_syntax(&[b"{\"a\":", &bytes[..]].concat());
        let _ = check_syntax(&bytes);
    }
}
