use proptest::collection::btree_map;
use proptest::prelude::*;

use super::*;
use crate::json::{parse, repair_json};

/// Returns the detail of an error.
fn detail(problem: &InvalidBody) -> String {
    problem.to_string()
}

/// Returns the names and values of the attributes in the body of a check.
fn parse_attributes(body: &str) -> Vec<(String, String)> {
    let body = CallBody::parse(Endpoint::Check, body).unwrap();
    let request = body.to_call(Endpoint::Check).request;
    let pairs = request.descriptors()[0].iter();
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// Returns a strategy for attribute values: each is a JSON value and the text as which it counts.
fn attribute_value() -> impl Strategy<Value = (String, String)> {
    let same = |text: String| (text.clone(), text);
    prop_oneof![
        any::<String>().prop_map(|text| (serde_json::to_string(&text).unwrap(), text)),
        any::<i64>().prop_map(move |number| same(number.to_string())),
        "-?[1-9][0-9]{0,60}".prop_map(same),
        any::<bool>().prop_map(move |value| same(value.to_string())),
    ]
}

#[test]
fn explain_accepts_maximum_number_of_descriptors() {
    let parse_with = |count| {
        let descriptors = vec![r#"{"attributes":{"a":"b"}}"#; count].join(",");
        let body = format!(r#"{{"descriptors":[{descriptors}]}}"#);
        parse::<ExplainBody<'_>>(&body).map(|_| ()).map_err(|problem| detail(&problem))
    };
    assert_eq!(parse_with(MAX_DESCRIPTORS), Ok(()));
    let error = parse_with(MAX_DESCRIPTORS + 1).unwrap_err();
    assert!(error.starts_with(&format!("`descriptors[{MAX_DESCRIPTORS}]` is")), "{error}");
    assert!(error.contains(&format!("at most {MAX_DESCRIPTORS} in")), "{error}");
}

proptest! {
    #[test]
    fn every_attribute_value_counts_as_its_text(
        attributes in btree_map("[a-z\u{e9}\n\"]{0,8}", attribute_value(), 0..24),
    ) {
        let members = attributes.iter().map(|(name, (json, _))| {
            format!("{} :\t{json}", serde_json::to_string(name).unwrap())
        });
        let body = format!("{{ \"attributes\":\n{{{}}}}}", members.collect::<Vec<_>>().join(" ,"));
        let mut found = parse_attributes(&body);
        found.sort();
        let expected: Vec<_> = attributes.into_iter().map(|(name, (_, text))| (name, text)).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn any_body_is_parsed_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
        let body = [&b"{\"attributes\":{\"a\":"[..], &bytes].concat();
        let _ = CallBody::parse(Endpoint::Check, &repair_json(&body));
        let _ = CallBody::parse(Endpoint::Report, &repair_json(&bytes));
        let body = [&b"{\"descriptors\":[{\"attributes\":"[..], &bytes].concat();
        let _ = parse::<ExplainBody<'_>>(&repair_json(&body));
    }

    #[test]
    fn any_string_is_accepted_as_value(value in proptest::collection::vec(any::<u8>(), 0..40)) {
        let escaped = value.iter().flat_map(|byte| match byte {
            b'"' | b'\\' => vec![b'\\', *byte],
            _ => vec![*byte],
        });
        let escaped: Vec<u8> = escaped.collect();
        let body = [b"{\"domain\":\"", &escaped[..], b"\",\"attributes\":{\"a\":\"", &escaped, b"\"}}"];
        let body = body.concat();
        let text = repair_json(&body);
        let request = CallBody::parse(Endpoint::Check, &text).unwrap();
        let expected = String::from_utf8_lossy(&value);
        prop_assert_eq!(&*request.domain, &*expected);
        prop_assert_eq!(request.to_call(Endpoint::Check).request.descriptors()[0].iter().next(), Some(("a", &*expected)));
    }
}

#[test]
fn strings_without_escapes_are_borrowed() {
    let text = r#"{"domain":"d","attributes":{"a":"b","c":42},"costs":{"e":1}}"#;
    let body = CallBody::parse(Endpoint::Check, text).unwrap();
    let request = body.to_call(Endpoint::Check).request;
    let pairs = request.descriptors()[0].iter().flat_map(|(name, value)| [name, value]);
    for string in pairs.chain([request.domain()]) {
        assert!(text.as_bytes().as_ptr_range().contains(&string.as_ptr()), "{string}");
    }
}

#[test]
fn every_prefix_of_body_ends_early() {
    let body =
        r#"{"domain":"a\u00e9","attributes":{"b":"c","d":42,"e":true},"cost":1,"costs":{"f":2}}"#;
    CallBody::parse(Endpoint::Check, body).unwrap();
    for length in 1..body.len() {
        let problem = CallBody::parse(Endpoint::Check, &body[..length]).err().unwrap();
        let expected = format!("line 1 column {length}: the body ends within ");
        assert!(detail(&problem).starts_with(&expected), "{}: {problem:?}", &body[..length]);
    }
}

#[test]
fn explain_body_errors_name_conflicting_field() {
    for (body, expected) in [
        ("{}", "neither `attributes` nor `descriptors`"),
        (r#"{"descriptors":[]}"#, "`descriptors` is empty; send"),
        (r#"{"descriptors":{}}"#, "line 1 column 15: invalid type: map, expected a sequence"),
        (r#"{"descriptors":null}"#, "invalid type: null, expected a sequence"),
        (r#"{"descriptors":[7]}"#, "invalid type: integer `7`, expected an object"),
        (r#"{"descriptors":[[{}]]}"#, "invalid type: sequence, expected an object"),
        (r#"{"descriptors":[{}]}"#, "line 1 column 18: missing field `attributes`; send"),
        (r#"{"descriptors":[{"domain":"a"}]}"#, "unknown field `domain`"),
        (
            r#"{"attributes":{},"descriptors":[]}"#,
            "`attributes` and `descriptors` exclude each other",
        ),
        (
            r#"{"descriptors":[{"attributes":{}}],"cost":1}"#,
            "have no effect together with `descriptors`",
        ),
    ] {
        let problem = parse::<ExplainBody<'_>>(body).err().unwrap();
        assert!(detail(&problem).contains(expected), "{body}: {problem:?}");
    }
    let body =
        r#"{"descriptors":[{"attributes":{"user":42}},{"attributes":{"ok":true},"cost":2}]}"#;
    let request: ExplainBody<'_> = parse(body).unwrap();
    let values = request.to_gate_request();
    let values = values.descriptors().iter().map(|descriptor| descriptor.iter().next().unwrap().1);
    assert_eq!(values.collect::<Vec<_>>(), ["42", "true"]);
}

#[test]
fn whole_costs_are_accepted_in_every_notation() {
    for (cost, units) in [
        ("0", Some(0)),
        ("-0", Some(0)),
        ("2.0", Some(2)),
        ("20e-1", Some(2)),
        ("18446744073709551615", Some(u64::MAX)),
        ("18446744073709551616", Some(u64::MAX)),
        ("1e300", Some(u64::MAX)),
        ("1e999", Some(u64::MAX)),
        ("-1", None),
        ("-1e999", None),
        ("0.5", None),
    ] {
        let body = format!(r#"{{"attributes":{{}},"cost":{cost}}}"#);
        let request = CallBody::parse(Endpoint::Check, &body);
        assert_eq!(request.ok().map(|request| request.cost.unwrap()), units, "{cost}");
    }
}
