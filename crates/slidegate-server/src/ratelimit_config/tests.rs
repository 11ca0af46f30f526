//! The walk of the reference server, in words of its own, against the policies that are made.

use proptest::prelude::*;
use slidegate::{Algorithm, Descriptor, Request, Value};

use super::{Converted, Counting, convert};
use crate::policy_file::{FileText, any_limit};

fn files(texts: &[&str]) -> Vec<FileText> {
    let file = |(nth, text): (usize, &&str)| FileText {
        path: format!("{nth}.yaml").into(),
        text: (**text).into(),
    };
    texts.iter().enumerate().map(file).collect()
}

const BY_DEFAULT: Counting = Counting { algorithm: Algorithm::SlidingWindow, supports: any_limit };

fn converted(text: &str) -> Converted {
    let told = |wrong: Vec<_>| panic!("{wrong:#?}\nin\n{text}");
    convert(&files(&[text]), BY_DEFAULT).unwrap_or_else(told)
}

/// What is wrong with these files, a line for each mistake.
fn mistakes(texts: &[&str]) -> Vec<String> {
    match convert(&files(texts), BY_DEFAULT) {
        Ok(converted) => panic!("nothing is wrong: {}", converted.text),
        Err(findings) => findings.iter().map(ToString::to_string).collect(),
    }
}

/// A descriptor of a file, as drawn.
#[derive(Clone, Debug)]
struct Branch {
    key: &'static str,
    value: &'static str,
    shared: bool,
    limit: Drawn,
    branches: Vec<Branch>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Drawn {
    None,
    Unlimited,
    Some,
}

type Entry = (&'static str, &'static str);

/// Which limit holds, and whose counts it asks for: by its name, and the values that it counts apart. The walk
/// goes down one level for each entry. There it takes the branch of just this value; or else the first
/// wildcard that has it; or else the key alone. If there is none, or no limit where the entries end, nothing
/// holds. It never tries another branch.
fn walk(branches: &[Branch], path: &str, entries: &[Entry]) -> Option<(String, Vec<String>)> {
    let (&(key, value), rest) = entries.split_first()?;
    let of_key = || branches.iter().enumerate().filter(|(_, branch)| branch.key == key);
    let is_wildcard = |branch: &Branch| branch.value.contains('*');
    let exact = of_key().find(|(_, branch)| !value.is_empty() && branch.value == value);
    let wildcard =
        || of_key().find(|(_, branch)| is_wildcard(branch) && is_like(branch.value, value));
    let bare = || of_key().find(|(_, branch)| branch.value.is_empty());
    let (nth, branch) = exact.or_else(wildcard).or_else(bare)?;
    let path = format!("{path}.{nth}");
    let (name, mut apart) = match rest {
        [] if branch.limit == Drawn::None => return None,
        [] => (path, Vec::new()),
        rest => walk(&branch.branches, &path, rest)?,
    };
    if branch.value.is_empty() || (is_wildcard(branch) && !branch.shared) {
        apart.insert(0, value.to_owned());
    }
    Some((name, apart))
}

/// A star takes nothing, or one character and then the rest.
fn is_like(wildcard: &str, value: &str) -> bool {
    let mut rest = value.chars();
    match wildcard.chars().next() {
        None => value.is_empty(),
        Some('*') => {
            is_like(&wildcard[1..], value)
                || (rest.next().is_some() && is_like(wildcard, rest.as_str()))
        }
        Some(char) => rest.next() == Some(char) && is_like(&wildcard[1..], rest.as_str()),
    }
}

/// Branches of a list: no two have the same key and value.
fn branches(depth: u32) -> BoxedStrategy<Vec<Branch>> {
    let key = prop::sample::select(vec!["k", "l"]);
    let value = prop::sample::select(vec![
        "",
        "",
        "x",
        "xy",
        "10.0.0.1",
        "10.0.0.0/8",
        "x*",
        "*y",
        "x*y",
        "*",
        "10.*",
    ]);
    let limit = prop::sample::select(vec![Drawn::None, Drawn::Unlimited, Drawn::Some, Drawn::Some]);
    let below = if depth == 0 { Just(Vec::new()).boxed() } else { branches(depth - 1) };
    let branch = (key, value, any::<bool>(), limit, below).prop_map(
        |(key, value, shared, limit, branches)| Branch {
            key,
            value,
            shared: shared && value.contains('*'),
            limit,
            branches,
        },
    );
    let list = prop::collection::vec(branch, 0..6);
    let distinct = list.prop_map(|mut list: Vec<Branch>| {
        let mut known = Vec::new();
        list.retain(|branch| {
            let entry = (branch.key, branch.value);
            let is_new = !known.contains(&entry);
            known.push(entry);
            is_new
        });
        list
    });
    distinct.boxed()
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let value = prop::sample::select(vec![
        "",
        "x",
        "y",
        "xy",
        "xzy",
        "z",
        "10.0.0.1",
        "10.0.0.2",
        "::ffff:10.0.0.1",
        "10.0.0.0/8",
    ]);
    prop::collection::vec((prop::sample::select(vec!["k", "l"]), value), 1..5)
}

/// The branches as a file has them. The name of a limit is its place.
fn written(branches: &[Branch], path: &str, indent: usize) -> String {
    let margin = " ".repeat(indent);
    let mut text = format!("{margin}descriptors:\n");
    for (nth, branch) in branches.iter().enumerate() {
        let Branch { key, value, shared, limit, branches } = branch;
        let path = format!("{path}.{nth}");
        text += &format!("{margin}- key: {key}\n");
        if !value.is_empty() {
            text += &format!("{margin}  value: '{value}'\n{margin}  share_threshold: {shared}\n");
        }
        match limit {
            Drawn::None => {}
            Drawn::Unlimited => {
                text += &format!("{margin}  rate_limit: {{ name: {path}, unlimited: yes }}\n");
            }
            Drawn::Some => {
                text += &format!(
                    "{margin}  rate_limit: {{ name: {path}, unit: HOUR, requests_per_unit: 5 }}\n"
                );
            }
        }
        if !branches.is_empty() {
            text += &written(branches, &path, indent + 2);
        }
    }
    text
}

/// The n-th entry of one key is the attribute `key#n`.
fn attributes(entries: &[Entry]) -> Vec<(String, &'static str)> {
    let name = |(nth, (key, value)): (usize, &Entry)| match entries[..nth]
        .iter()
        .filter(|(other, _)| other == key)
        .count()
    {
        0 => ((*key).to_owned(), *value),
        times => (format!("{key}#{}", times + 1), *value),
    };
    entries.iter().enumerate().map(name).collect()
}

fn text_of(value: Value<'_>) -> String {
    match value {
        Value::Text(_) | Value::Ipv4(_) => value.to_string(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn a_policy_leads_where_the_walk_does(
        branches in branches(2), asked in prop::collection::vec(entries(), 1..30),
    ) {
        let text = format!("domain: d\n{}", written(&branches, "r", 0));
        let Converted { policy, text, .. } = converted(&text);
        for entries in asked {
            let attributes = attributes(&entries);
            let attributes = attributes.iter().map(|(name, value)| (name.as_str(), *value));
            let request = Request::new("d", Descriptor::new(attributes).exact());
            let applied = policy.apply(&request);
            let found: Vec<(String, Vec<String>)> = applied.matches().map(|one| {
                let apart = match one.limits().is_empty() {
                    true => Vec::new(),
                    false => one.identity().map(|(_, value)| text_of(value)).collect(),
                };
                (one.rule().name().to_owned(), apart)
            }).collect();
            let mut meant = walk(&branches, "r", &entries);
            // Of what is unlimited nothing is counted.
            if let (Some((_, apart)), Some(one)) = (&mut meant, applied.matches().next())
                && one.limits().is_empty()
            {
                apart.clear();
            }
            // IPv4 within IPv6 is counted as what it is.
            if let Some((_, apart)) = &mut meant {
                for value in apart.iter_mut().filter(|value| **value == "::ffff:10.0.0.1") {
                    *value = "10.0.0.1".to_owned();
                }
            }
            prop_assert_eq!(found, meant.into_iter().collect::<Vec<_>>(), "{:?} in\n{}", entries, text);
        }
    }
}

#[test]
fn what_the_reference_server_refuses_is_refused_with_its_place() {
    for (text, told) in [
        ("", "0.yaml:1:1: a file needs a `domain` with a name"),
        ("descriptors: []", "0.yaml:1:1: a file needs a `domain` with a name"),
        ("domain: ''", "0.yaml:1:9: a file needs a `domain` with a name"),
        ("[]", "0.yaml:1:1: here should be a file with a domain and its descriptors"),
        ("domain: [a", "0.yaml:1:9: this is not YAML as it should be"),
        ("domain: a\ndomain: b", "0.yaml:2:1: this is not YAML as it should be"),
        ("domain: a\ndescriptors: {}", "0.yaml:2:14: `descriptors` is a list"),
        ("domain: a\ndescriptors: [a]", "0.yaml:2:15: only maps may stand in a list here"),
        ("domain: a\ndescriptors:\n- value: b", "0.yaml:3:3: a descriptor needs a `key`"),
        ("domain: a\ndescriptors:\n- key: ''", "0.yaml:3:8: a descriptor needs a `key`"),
        ("domain: a\ndescriptors:\n- ky: b", "0.yaml:3:3: there is no `ky`: there is `domain`, "),
        ("domain: a\n1: b", "0.yaml:2:1: there is no `1`"),
        (
            "domain: a\ndescriptors: [{ key: k, value: 1.5 }]",
            "0.yaml:2:32: `1.5` is a number that is no integer here",
        ),
        (
            "domain: a\ndescriptors:\n- { key: k, value: v }\n- { key: k_v }",
            "0.yaml:4:3: `k_v` stands in this list already, in line 3",
        ),
        (
            "domain: a\ndescriptors: [{ key: k, share_threshold: true, value: v }]",
            "0.yaml:2:42: `share_threshold` needs a `value` with `*`",
        ),
        (
            "domain: a\ndescriptors: [{ key: k, shadow_mode: 'true' }]",
            "0.yaml:2:38: `shadow_mode` is `true` or `false`",
        ),
        ("domain: a\ndescriptors: [{ key: k, metadata: 1 }]", "0.yaml:2:35: `metadata` is a map"),
        ("domain: a\ndescriptors: [{ key: { a: 1 } }]", "0.yaml:2:24: there is no `a`"),
    ] {
        let mistakes = mistakes(&[text]);
        assert!(mistakes.iter().any(|line| line.starts_with(told)), "{mistakes:#?}");
    }
}

#[test]
fn a_limit_that_the_reference_server_refuses_is_refused() {
    // The place is that of the second part.
    for (limit, at, told) in [
        ("{}", "{}", "`` is no unit of time: there is `second`, `minute`, `hour`, `day`, "),
        ("{ unit: fortnight }", "fortnight", "`fortnight` is no unit of time"),
        ("{ unit: UNKNOWN }", "UNKNOWN", "`UNKNOWN` is no unit of time"),
        ("{ unit: day, unlimited: true }", "day", "what is `unlimited` has no `unit`"),
        ("text", "text", "here should be a limit"),
        ("{ unit: day, requests_per_unit: -1 }", "-1", "`requests_per_unit` is a whole number"),
        ("{ unit: day, requests_per_unit: '1' }", "'1'", "`requests_per_unit` is a whole number"),
        ("{ unit: day, requests_per_unit: 4294967296 }", "429", "`requests_per_unit` is a whole"),
        ("{ unit: day, replaces: [n] }", "n]", "only maps may stand in a list here"),
        (
            "{ unit: day, replaces: [{ name: '' }] }",
            "''",
            "an entry of `replaces` needs the `name`",
        ),
        ("{ unit: day, replaces: [{}] }", "{}", "an entry of `replaces` needs the `name`"),
        ("{ name: n, unit: day, replaces: [{ name: n }] }", "n }]", "a limit cannot replace those"),
        ("{ unit: day, max: 1 }", "max", "there is no `max`"),
    ] {
        let text = format!("{{ domain: a, descriptors: [{{ key: k, rate_limit: {limit} }}] }}");
        let column = text.find(limit).unwrap() + limit.find(at).unwrap() + 1;
        let mistakes = mistakes(&[&text]);
        let told = format!("0.yaml:1:{column}: {told}");
        assert!(mistakes.iter().any(|line| line.starts_with(&told)), "{mistakes:#?} {told}");
    }
}

#[test]
fn what_cannot_be_expressed_says_so() {
    for (descriptor, told) in [
        ("{ key: 'k*' }", "a key with `*` cannot be expressed"),
        ("{ key: 'k#2' }", "a key does not end in `#` and a number"),
        ("{ key: 'a|b' }", "a key whose values are counted apart has no `|`"),
        ("{ key: ' a', value: b }", "a key has no space around it"),
        ("{ key: header.X }", "what begins with `header.` is lower-case"),
        ("{ key: k, value: 10.0.0.0/* }", "a value that begins with an address"),
        (
            "{ key: k, quota_mode: true, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }",
            "with `quota_mode` and `shadow_mode`",
        ),
        (
            "{ key: k, rate_limit: { unit: day, requests_per_unit: 4294967295 } }",
            "cannot be expressed: 4294967295 is more than the 536870912",
        ),
    ] {
        let mistakes = mistakes(&[&format!("domain: a\ndescriptors:\n- {descriptor}")]);
        assert!(mistakes.len() == 1 && mistakes[0].contains(told), "{mistakes:#?}");
    }
    let log = convert(
        &files(&[
            "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 9999999 } }]",
        ]),
        Counting { algorithm: Algorithm::SlidingLog, ..BY_DEFAULT },
    );
    assert!(log.unwrap_err()[0].message.contains("too large for sliding_log"));
}

#[test]
fn what_would_make_a_policy_without_end_is_told() {
    let nested = |nth: usize| {
        format!(
            "- {{ key: k, value: '{}*', rate_limit: {{ unit: day }} }}\n",
            "a".repeat(1_200 - nth)
        )
    };
    let text: String = (0..1_100).map(nested).collect();
    let mistakes = mistakes(&[&format!("domain: a\ndescriptors:\n{text}")]);
    assert_eq!(
        mistakes,
        ["0.yaml:1003:3: cannot be expressed: too many values go before others in this file"]
    );
}

#[test]
fn all_mistakes_of_all_files_are_told_in_order() {
    let bad = "domain: a\ndescriptors: [{ key: '' }, { key: b, rate_limit: {} }, { c: d }]";
    let mistakes = mistakes(&[bad, "domain: c\nx: 1", "domain: a"]);
    let begins: Vec<String> =
        mistakes.iter().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    let places =
        ["0.yaml:2:22", "0.yaml:2:50", "0.yaml:2:56", "0.yaml:2:58", "1.yaml:2:1", "2.yaml:1:9"];
    assert_eq!(begins, places, "{mistakes:#?}");
    assert!(mistakes[5].contains("`a` stands in 0.yaml already"));
}

#[test]
fn what_is_accepted_without_effect_is_noted() {
    let text = "
domain: a
unit: day
descriptors:
- key: k
  detailed_metric: true
  metadata: { any: [1.5, { thing: ~ }] }
  shadow_mode: true
  rate_limit: { unit: second, requests_per_unit: 4294967295, replaces: [{ name: gone }], key: x }
- { key: l, shadow_mode: true, value_to_metric: true, rate_limit: }
- { key: m, rate_limit: { unit: day } }
";
    let Converted { notes, text, .. } = converted(text);
    let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
    let told = [
        "0.yaml:3:1: `unit` has no effect here",
        "0.yaml:6:20: `detailed_metric` is accepted and has no effect",
        "0.yaml:7:13: `metadata` is accepted and has no effect",
        "0.yaml:9:50: 4294967295 is more than is counted here: 536870912 holds instead",
        "0.yaml:9:81: `gone` is the name of no limit of this domain",
        "0.yaml:9:90: `key` has no effect here",
        "0.yaml:10:26: `shadow_mode` has no effect without a `rate_limit` beside",
        "0.yaml:10:49: `value_to_metric` is accepted and has no effect",
        "0.yaml:11:25: without `requests_per_unit` a limit is 0: nothing passes",
    ];
    assert_eq!(notes.len(), told.len(), "{notes:#?}");
    for (note, told) in notes.iter().zip(told) {
        assert!(note.starts_with(told), "{note}");
        assert!(text.contains(&format!("# - {told}")));
    }
    assert!(text.contains("limits: [536870912/1s]\n    mode: observe\n"));
    assert!(text.contains("limits: [0/1d]"));
}

#[test]
fn scalars_are_read_as_the_reference_server_reads_them() {
    let text = "
domain: 010
descriptors:
- { key: 1, value: yes, rate_limit: { unit: Second, requests_per_unit: 010 } }
- { key: null_value, value: ~, rate_limit: { unit: 'WEEK', requests_per_unit: 1_0 } }
- { key: k, value: '1.5', shadow_mode: Off, rate_limit: { unlimited: on } }
";
    let Converted { text, notes, .. } = converted(text);
    assert_eq!(notes, []);
    for part in [
        "domain: \"010\"",
        "name: \"1_yes\"\n",
        "when: { \"1\": \"yes\" }\n    limits: [8/1s]",
        "per: [null_value]\n    limits: [10/1w]",
        "when: { k: \"1.5\" }\n    limits: unlimited",
    ] {
        assert!(text.contains(part), "{part}\nin\n{text}");
    }
}

#[test]
fn the_same_files_make_the_same_text_which_a_terminal_can_show() {
    let text = "domain: \"a\\e[0m\\u00a0ü\"\ndescriptors: [{ key: \"k\\u0001l\", value: \"'\\\"\\\\\", rate_limit: { unit: day } }]";
    let (one, other) = (converted(text).text, converted(text).text);
    assert_eq!(one, other);
    assert!(one.chars().all(|char| char == '\n' || !char.is_control()), "{one}");
    let policy = slidegate::Policy::from_yaml(&one).unwrap();
    let rule = &policy.rules()[0];
    assert_eq!((rule.name(), rule.domain()), ("k-l_---", "a\u{1b}[0m\u{a0}ü"));
    assert!(
        rule.when()
            .conditions()
            .any(|(name, wanted)| name == "k\u{1}l" && wanted.matches(Some("'\"\\")))
    );
}
