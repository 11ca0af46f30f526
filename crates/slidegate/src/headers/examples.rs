//! The examples of the drafts, as facts: what our model can express we write byte for byte in the
//! canonical form; the rest we read as the drafts mean it. The independent parser is the referee.

use sfv::{FieldType, List, ListEntry, Parser};

use super::*;
use crate::test_util::{self, ScriptedOutcome};

/// The canonical form of a list, by the independent parser.
fn canonical(list: &str) -> String {
    Parser::new(list).parse::<List>().unwrap().serialize().unwrap()
}

fn written(style: Style, policy: &str, said: &[ScriptedOutcome]) -> Vec<Header> {
    let ruling = test_util::ruling(policy, said);
    super::write(style, &ruling, Timestamp::default(), JitterSample::NONE)
}

fn value<'h>(headers: &'h [Header], name: &str) -> Option<&'h str> {
    headers.iter().find(|header| header.0 == name).map(|header| &*header.1)
}

const FREE: ScriptedOutcome = ScriptedOutcome::Fits { remaining: 1_000_000, reset_us: 1_000_000 };

const fn fits(remaining: u32, seconds: u64) -> ScriptedOutcome {
    ScriptedOutcome::Fits { remaining, reset_us: seconds * 1_000_000 }
}

const fn denied(seconds: u64) -> ScriptedOutcome {
    // The reset is later, so that the two cannot be confused.
    ScriptedOutcome::Denied {
        remaining: 0,
        reset_us: 3_600_000_000,
        wait_us: Some(seconds * 1_000_000),
    }
}

/// `(name, quota)` of rules of one limit each.
fn rules(limits: &[(&str, &str)]) -> String {
    let rules = limits.iter().map(|(name, quota)| format!("{{ name: {name}, limits: [{quota}] }}"));
    format!("rules: [{}]", rules.collect::<Vec<_>>().join(", "))
}

/// Limits, what the store says of them, the draft's `RateLimit-Policy` if it gives one, its `RateLimit`
/// if it gives one.
type Example = (
    &'static [(&'static str, &'static str)],
    &'static [ScriptedOutcome],
    Option<&'static str>,
    Option<&'static str>,
);

/// Those of the -10 that our model can express.
#[rustfmt::skip]
const EXPRESSIBLE: [Example; 13] = [
    // Section 3, 3.2, 4
    (&[("burst", "100/60s"), ("daily", "1000/1d")], &[FREE, FREE],
        Some(r#""burst";q=100;w=60,"daily";q=1000;w=86400"#), None),
    (&[("default", "100/10s")], &[FREE], Some(r#""default";q=100;w=10"#), None),
    (&[("permin", "50/min"), ("perhr", "1000/h")], &[FREE, FREE],
        Some(r#""permin";q=50;w=60,"perhr";q=1000;w=3600"#), None),
    (&[("default", "100/min")], &[fits(50, 30)], None, Some(r#""default";r=50;t=30"#)),
    // 7, 8.5
    (&[("default", "100/min")], &[fits(1, 7)], None, Some(r#""default";r=1;t=7"#)),
    (&[("somepolicy", "10000/1000s")], &[fits(10_000, 10)],
        Some(r#""somepolicy";q=10000;w=1000"#), Some(r#""somepolicy";r=10000;t=10"#)),
    // B.1.1, B.1.3, B.1.4
    (&[("default", "100/min")], &[fits(0, 50)], None, Some(r#""default";r=0;t=50"#)),
    (&[("basic", "100/min")], &[fits(60, 58)],
        Some(r#""basic";q=100;w=60"#), Some(r#""basic";r=60;t=58"#)),
    (&[("default", "100/min")], &[denied(5)], None, Some(r#""default";r=0;t=5"#)),
    // B.2.1, B.2.2, B.2.3
    (&[("fixedwindow", "100/min")], &[fits(99, 50)],
        Some(r#""fixedwindow";q=100;w=60"#), Some(r#""fixedwindow";r=99;t=50"#)),
    (&[("dynamic", "100/min")], &[fits(9, 50)],
        Some(r#""dynamic";q=100;w=60"#), Some(r#""dynamic";r=9;t=50"#)),
    (&[("dynamic", "15/20s")], &[denied(20)],
        Some(r#""dynamic";q=15;w=20"#), Some(r#""dynamic";r=0;t=20"#)),
    // B.3.2
    (&[("hour", "1000/h"), ("day", "5000/d")], &[fits(900, 60), fits(100, 36_000)],
        Some(r#""hour";q=1000;w=3600, "day";q=5000;w=86400"#), Some(r#""day";r=100;t=36000"#)),
];

#[test]
fn what_the_draft_shows_and_we_can_mean_we_write_alike() {
    for (limits, said, policies, limit) in EXPRESSIBLE {
        let headers = written(Style::Ietf, &rules(limits), said);
        for (name, expected) in [("ratelimit-policy", policies), ("ratelimit", limit)] {
            if let Some(expected) = expected {
                assert_eq!(value(&headers, name), Some(&*canonical(expected)));
            }
        }
    }
}

#[test]
fn the_throttled_response_of_the_draft_has_its_retry_after() {
    let headers = written(Style::Ietf, &rules(&[("default", "100/min")]), &[denied(5)]);
    // The draft writes it as the date five seconds later.
    assert_eq!(value(&headers, "retry-after"), Some("5"));
}

/// What we never write, with the reason. `None` where the parser's canonical form is the same text.
#[rustfmt::skip]
const ONLY_READ: [(&str, &str, Option<&str>); 9] = [
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
fn what_the_draft_shows_and_we_never_write_is_read_as_the_same_grammar() {
    for (why, example, expected) in ONLY_READ {
        assert_eq!(canonical(example), expected.unwrap_or(example), "{why}");
    }
}

#[test]
fn the_drafts_examples_without_quotes_are_tokens_which_its_own_text_forbids() {
    let list: List = Parser::new("quota;q=100;w=1").parse().unwrap();
    let ListEntry::Item(item) = &list[0] else { panic!("no item") };
    assert!(item.bare_item.as_token().is_some());
    let ours = &written(Style::Ietf, &rules(&[("quota", "100/s")]), &[FREE])[0].1;
    assert_eq!(ours, r#""quota";q=100;w=1"#);
}

#[test]
fn the_examples_of_the_third_draft_round_trip() {
    for (limits, said, expected) in [
        (&[("a", "100/10s")][..], &[FREE][..], "100, 100;w=10"),
        (
            &[("a", "10/s"), ("b", "50/m"), ("c", "1000/h"), ("d", "5000/d")],
            &[fits(1, 1), FREE, FREE, FREE],
            "10, 10;w=1, 50;w=60, 1000;w=3600, 5000;w=86400",
        ),
        // It gives a limit without its window as well; we have that for windows under a second.
        (&[("a", "100/100ms")], &[FREE], "100"),
    ] {
        let headers = written(Style::Draft03, &rules(limits), said);
        assert_eq!(value(&headers, "ratelimit-limit"), Some(expected));
        assert_eq!(canonical(expected), expected);
    }
}

#[test]
fn the_documents_show_what_every_style_writes() {
    let document = include_str!("../../../../docs/HTTP.md");
    let ruling = test_util::ruling(&rules(&[("per-tenant", "100/min")]), &[fits(99, 60)]);
    let now = Timestamp::from_secs(1_750_000_020);
    for style in Style::ALL {
        let headers = super::write(style, &ruling, now, JitterSample::NONE);
        let shown: String =
            headers.iter().map(|(name, value)| format!("`{name}: {value}` ")).collect();
        let row = format!("| `{style}` | {shown}|\n");
        assert!(document.contains(&row), "{row}");
    }
}
