//! Tests with the examples in the drafts of the rate-limit headers.
//!
//! Examples that this crate can express must be written byte for byte in their canonical form. All other examples are
//! only parsed, to show that they have the same grammar as the headers of this crate. The parser is an independent
//! implementation.

use sfv::{FieldType, List, ListEntry, Parser};

use super::*;
use crate::test_util::{self, ScriptedOutcome};

/// Returns the canonical form of a list in a structured field. An independent parser reads and writes the list.
fn canonical_header_list(list: &str) -> String {
    Parser::new(list).parse::<List>().unwrap().serialize().unwrap()
}

fn write_scripted_headers(style: Style, policy: &str, outcomes: &[ScriptedOutcome]) -> Vec<Header> {
    let decision = test_util::scripted_decision(policy, outcomes);
    super::write(style, &decision, Timestamp::default(), JitterSample::NONE)
}

fn header_value<'h>(headers: &'h [Header], name: &str) -> Option<&'h str> {
    headers.iter().find(|header| header.0 == name).map(|header| &*header.1)
}

const MANY_UNITS_LEFT: ScriptedOutcome =
    ScriptedOutcome::Fits { remaining: 1_000_000, reset_us: 1_000_000 };

const fn outcome_that_fits(remaining: u32, seconds: u64) -> ScriptedOutcome {
    ScriptedOutcome::Fits { remaining, reset_us: seconds * 1_000_000 }
}

const fn denied_outcome(seconds: u64) -> ScriptedOutcome {
    // The reset is later than the wait, so that a test fails if one replaces the other.
    ScriptedOutcome::Denied {
        remaining: 0,
        reset_us: 3_600_000_000,
        retry_after_us: Some(seconds * 1_000_000),
    }
}

/// Returns a policy in YAML with one rule for each `(name, quota)`. The windows are fixed, as in the drafts.
fn policy_yaml(limits: &[(&str, &str)]) -> String {
    let rules = limits.iter().map(|(name, quota)| {
        format!("{{ name: {name}, limits: [{quota}], algorithm: fixed_window }}")
    });
    format!("rules: [{}]", rules.collect::<Vec<_>>().join(", "))
}

/// An example of a draft: its limits, their outcomes, and the expected values of `RateLimit-Policy` and `RateLimit`. A
/// value is `None` if the draft does not contain it.
type DraftExample = (
    &'static [(&'static str, &'static str)],
    &'static [ScriptedOutcome],
    Option<&'static str>,
    Option<&'static str>,
);

/// Examples of draft-ietf-httpapi-ratelimit-headers-11 that this crate can express.
#[rustfmt::skip]
const EXPRESSIBLE_DRAFT_EXAMPLES: [DraftExample; 13] = [
    // Section 3, 3.2, 4
    (&[("burst", "100/60s"), ("daily", "1000/1d")], &[MANY_UNITS_LEFT, MANY_UNITS_LEFT],
        Some(r#""burst";q=100;w=60,"daily";q=1000;w=86400"#), None),
    (&[("default", "100/10s")], &[MANY_UNITS_LEFT], Some(r#""default";q=100;w=10"#), None),
    (&[("permin", "50/min"), ("perhr", "1000/h")], &[MANY_UNITS_LEFT, MANY_UNITS_LEFT],
        Some(r#""permin";q=50;w=60,"perhr";q=1000;w=3600"#), None),
    (&[("default", "100/min")], &[outcome_that_fits(50, 30)], None, Some(r#""default";r=50;t=30"#)),
    // 7, 8.5
    (&[("default", "100/min")], &[outcome_that_fits(1, 7)], None, Some(r#""default";r=1;t=7"#)),
    (&[("somepolicy", "10000/1000s")], &[outcome_that_fits(10_000, 10)],
        Some(r#""somepolicy";q=10000;w=1000"#), Some(r#""somepolicy";r=10000;t=10"#)),
    // B.1.1, B.1.3, B.1.4
    (&[("default", "100/min")], &[outcome_that_fits(0, 50)], None, Some(r#""default";r=0;t=50"#)),
    (&[("basic", "100/min")], &[outcome_that_fits(60, 58)],
        Some(r#""basic";q=100;w=60"#), Some(r#""basic";r=60;t=58"#)),
    (&[("default", "100/min")], &[denied_outcome(5)], None, Some(r#""default";r=0;t=5"#)),
    // B.2.1, B.2.2, B.2.3
    (&[("fixedwindow", "100/min")], &[outcome_that_fits(99, 50)],
        Some(r#""fixedwindow";q=100;w=60"#), Some(r#""fixedwindow";r=99;t=50"#)),
    (&[("dynamic", "100/min")], &[outcome_that_fits(9, 50)],
        Some(r#""dynamic";q=100;w=60"#), Some(r#""dynamic";r=9;t=50"#)),
    (&[("dynamic", "15/20s")], &[denied_outcome(20)],
        Some(r#""dynamic";q=15;w=20"#), Some(r#""dynamic";r=0;t=20"#)),
    // B.3.2
    (&[("hour", "1000/h"), ("day", "5000/d")], &[outcome_that_fits(900, 60), outcome_that_fits(100, 36_000)],
        Some(r#""hour";q=1000;w=3600, "day";q=5000;w=86400"#), Some(r#""day";r=100;t=36000"#)),
];

#[test]
fn expressible_draft_examples_are_written_identically() {
    for (limits, outcomes, policies, limit) in EXPRESSIBLE_DRAFT_EXAMPLES {
        let headers = write_scripted_headers(Style::Ietf, &policy_yaml(limits), outcomes);
        for (name, expected) in [("ratelimit-policy", policies), ("ratelimit", limit)] {
            if let Some(expected) = expected {
                assert_eq!(header_value(&headers, name), Some(&*canonical_header_list(expected)));
            }
        }
    }
}

#[test]
fn throttled_draft_response_has_retry_after() {
    let headers = write_scripted_headers(
        Style::Ietf,
        &policy_yaml(&[("default", "100/min")]),
        &[denied_outcome(5)],
    );
    // The draft writes it as the date five seconds later.
    assert_eq!(header_value(&headers, "retry-after"), Some("5"));
}

/// Examples of the draft that this crate never writes. An entry has the reason, the text of the example, and the
/// canonical form of this text if it differs.
#[rustfmt::skip]
const INEXPRESSIBLE_DRAFT_EXAMPLES: [(&str, &str, Option<&str>); 9] = [
    ("partition key", r#""peruser";q=100;w=60;pk=:cHsdsRa894==:"#,
        Some(r#""peruser";q=100;w=60;pk=:cHsdsRa89w==:"#)),
    ("partition key and unit",
        r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:"#,
        Some(r#""peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUA==:"#)),
    ("partition key", r#""default";r=999;pk=:dHJpYWwxMjEzMjM=:"#, None),
    ("partition key", r#""default";r=300000000;t=60;pk=:QXBwLTk5OQ==:"#, None),
    ("a name in capitals", r#""problemPolicy";r=0;t=10"#, None),
    ("a name in capitals", r#""dayLimit";r=100;t=36000"#, None),
    ("Retry-After of 20, before t", r#""dynamic";r=15;t=40"#, None),
    ("other parameters", r#""sliding";q=100;w=60;burst=1000"#, None),
    ("q in RateLimit", r#""sliding";q=12;r=6;t=1"#, None),
];

#[test]
fn inexpressible_draft_examples_parse_as_lists() {
    for (reason, example, expected) in INEXPRESSIBLE_DRAFT_EXAMPLES {
        assert_eq!(canonical_header_list(example), expected.unwrap_or(example), "{reason}");
    }
}

#[test]
fn unquoted_names_in_draft_examples_are_tokens() {
    // The text of the draft requires strings.
    let list: List = Parser::new("quota;q=100;w=1").parse().unwrap();
    let ListEntry::Item(item) = &list[0] else { panic!("no item") };
    assert!(item.bare_item.as_token().is_some());
    let written = &write_scripted_headers(
        Style::Ietf,
        &policy_yaml(&[("quota", "100/s")]),
        &[MANY_UNITS_LEFT],
    )[0]
    .1;
    assert_eq!(written, r#""quota";q=100;w=1"#);
}

#[test]
fn draft03_examples_are_written_identically() {
    for (limits, outcomes, expected) in [
        (&[("a", "100/10s")][..], &[MANY_UNITS_LEFT][..], "100, 100;w=10"),
        (
            &[("a", "10/s"), ("b", "50/m"), ("c", "1000/h"), ("d", "5000/d")],
            &[outcome_that_fits(1, 1), MANY_UNITS_LEFT, MANY_UNITS_LEFT, MANY_UNITS_LEFT],
            "10, 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400",
        ),
        // The draft also has limits without a window; this crate writes them for windows below one second.
        (&[("a", "100/100ms")], &[MANY_UNITS_LEFT], "100"),
    ] {
        let headers = write_scripted_headers(Style::Draft03, &policy_yaml(limits), outcomes);
        assert_eq!(header_value(&headers, "ratelimit-limit"), Some(expected));
        assert_eq!(canonical_header_list(expected), expected);
    }
}

#[test]
fn documentation_shows_headers_of_every_style() {
    let document = include_str!("../../../../docs/reference/headers.md");
    let decision = test_util::scripted_decision(
        &policy_yaml(&[("per-tenant", "100/min")]),
        &[outcome_that_fits(99, 60)],
    );
    let now = Timestamp::from_secs(1_750_000_020);
    for style in Style::ALL {
        let headers = super::write(style, &decision, now, JitterSample::NONE);
        let shown: String =
            headers.iter().map(|(name, value)| format!("`{name}: {value}` ")).collect();
        let row = format!("| `{style}` | {shown}|\n");
        assert!(document.contains(&row), "{row}");
    }
}

/// Returns the values of `RateLimit-Policy`, `RateLimit` and `Retry-After` for a policy and its outcomes.
fn ietf_values(policy: &str, outcomes: &[ScriptedOutcome]) -> [Option<String>; 3] {
    let headers = write_scripted_headers(Style::Ietf, policy, outcomes);
    ietf::HEADER_NAMES.map(|name| header_value(&headers, name).map(str::to_owned))
}

/// The draft defines `t` as the time until additional quota is available.
#[test]
fn allowed_request_without_units_has_time_of_next_unit() {
    let algorithms = [
        ("fixed_window", Some("50")),
        ("token_bucket", Some("6")),
        ("sliding_window", None),
        ("sliding_log", None),
        ("sliding_counter", None),
        ("sliding_buckets", None),
    ];
    for (algorithm, seconds) in algorithms {
        let policy = format!("rules: [{{ name: a, limits: [10/min], algorithm: {algorithm} }}]");
        let [_, limit, _] = ietf_values(&policy, &[outcome_that_fits(0, 50)]);
        let parameter = seconds.map(|seconds| format!(";t={seconds}")).unwrap_or_default();
        assert_eq!(limit, Some(format!("\"a\";r=0{parameter}")), "{algorithm}");
        let [_, limit, _] = ietf_values(&policy, &[outcome_that_fits(1, 50)]);
        assert_eq!(limit.as_deref(), Some("\"a\";r=1;t=50"), "{algorithm}");
        let [_, limit, _] = ietf_values(&policy, &[denied_outcome(5)]);
        assert_eq!(limit.as_deref(), Some("\"a\";r=0;t=5"), "{algorithm}");
    }
}

#[test]
fn rules_without_headers_are_left_out() {
    let policy = "
rules:
  - { name: hidden, limits: [10/min], headers: false }
  - { name: shown, limits: [10/h] }
  - { name: other, limits: [100/h] }
";
    let [few, more, most] = [1, 4, 50].map(|remaining| outcome_that_fits(remaining, 30));
    let text = |text: &str| Some(text.to_owned());
    let policies = r#""shown";q=10;w=3600, "other";q=100;w=3600"#;
    assert_eq!(
        ietf_values(policy, &[few, more, most]),
        [text(policies), text(r#""shown";r=4;t=30"#), None]
    );
    // A denial by a hidden limit has its wait, and the state of a visible limit.
    assert_eq!(
        ietf_values(policy, &[denied_outcome(7), more, most]),
        [text(policies), text(r#""shown";r=4;t=30"#), text("7")]
    );
    assert_eq!(
        ietf_values(policy, &[few, denied_outcome(9), most]),
        [text(policies), text(r#""shown";r=0;t=9"#), text("9")]
    );
    let only = "rules: [{ name: hidden, limits: [10/min], headers: false }]";
    assert_eq!(ietf_values(only, &[few]), [None, None, None]);
    assert_eq!(ietf_values(only, &[denied_outcome(7)]), [None, None, text("7")]);
    let other_styles = [(Style::Draft03, "10, 10;w=3600, 100;w=3600"), (Style::X, "10")];
    for (style, limits) in other_styles {
        let headers = write_scripted_headers(style, policy, &[few, more, most]);
        assert_eq!(headers[0].1, limits, "{style}");
        assert_eq!(headers[1].1, "4", "{style}");
    }
}
