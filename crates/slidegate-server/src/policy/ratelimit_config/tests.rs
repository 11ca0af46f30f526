//! Tests of converted configuration files, and of the errors in them.

mod reference_lookup;

use slidegate::Algorithm;

use super::{Conversion, ConversionOptions, convert};
use crate::policy::{FileText, accept_any_limit};

fn config_files_from_texts(texts: &[&str]) -> Vec<FileText> {
    let file = |(index, text): (usize, &&str)| FileText {
        path: format!("{index}.yaml").into(),
        text: (**text).into(),
    };
    texts.iter().enumerate().map(file).collect()
}

const SLIDING_WINDOW_CONVERSION_OPTIONS: ConversionOptions = ConversionOptions {
    algorithm: Algorithm::SlidingWindow { resolution: None },
    supports: accept_any_limit,
};

/// Converts the text of a configuration file. Panics if it has errors.
fn convert_valid_config(text: &str) -> Conversion {
    let fail = |errors: Vec<_>| panic!("{errors:#?}\nin\n{text}");
    convert(&config_files_from_texts(&[text]), SLIDING_WINDOW_CONVERSION_OPTIONS)
        .unwrap_or_else(fail)
}

/// Converts the texts of configuration files with errors, and returns the errors, one line each. Panics if there are
/// none.
fn convert_invalid_configs(texts: &[&str]) -> Vec<String> {
    match convert(&config_files_from_texts(texts), SLIDING_WINDOW_CONVERSION_OPTIONS) {
        Ok(conversion) => panic!("expected errors, got: {}", conversion.text),
        Err(findings) => findings.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn error_of_converted_policy_is_one_line() {
    let descriptors: String = (0..=slidegate::policy::file::MAX_RULES)
        .map(|key| {
            format!("- {{ key: k{key}, rate_limit: {{ unit: day, requests_per_unit: 9 }} }}\n")
        })
        .collect();
    let errors = convert_invalid_configs(&[&format!("domain: a\ndescriptors:\n{descriptors}")]);
    let [error] = &errors[..] else { panic!("{errors:?}") };
    let expected =
        "0.yaml:1:1: cannot be converted: the resulting policy is invalid: too many rules: ";
    assert!(error.starts_with(expected) && error.ends_with("the maximum is 10000"), "{error}");
}

#[test]
fn config_file_errors_have_positions() {
    for (text, expected) in [
        ("", "0.yaml:1:1: `domain` is missing or empty"),
        ("descriptors: []", "0.yaml:1:1: `domain` is missing or empty"),
        ("domain: ''", "0.yaml:1:9: `domain` is missing or empty"),
        ("[]", "0.yaml:1:1: expected a map of fields, found a list"),
        ("domain: [a", "0.yaml:1:9: invalid YAML"),
        ("domain: a\ndomain: b", "0.yaml:2:1: invalid YAML: duplicate mapping key: domain"),
        ("domain: a\ndescriptors: {}", "0.yaml:2:14: expected a list"),
        ("domain: a\ndescriptors: [a]", "0.yaml:2:15: expected a map of fields, found `a`"),
        ("domain: a\ndescriptors:\n- value: b", "0.yaml:3:3: the descriptor has no `key`"),
        ("domain: a\ndescriptors:\n- key: ''", "0.yaml:3:8: the descriptor has no `key`"),
        ("domain: a\ndescriptors:\n- ky: b", "0.yaml:3:3: unknown field `ky`; did you mean `key`?"),
        ("domain: a\n1: b", "0.yaml:2:1: unknown field `1`"),
        (
            "domain: a\ndescriptors: [{ key: k, value: 1.5 }]",
            "0.yaml:2:32: `value` is `1.5`, which is not an integer",
        ),
        (
            "domain: a\ndescriptors:\n- { key: k, value: v }\n- { key: k_v }",
            "0.yaml:4:3: duplicate descriptor `k_v`, first defined in line 3",
        ),
        (
            "domain: a\ndescriptors: [{ key: k, share_threshold: true, value: v }]",
            "0.yaml:2:42: `share_threshold` requires a wildcard",
        ),
        (
            "domain: a\ndescriptors: [{ key: k, shadow_mode: 'true' }]",
            "0.yaml:2:38: `shadow_mode` must be `true` or `false`",
        ),
        ("domain: a\ndescriptors: [{ key: k, metadata: 1 }]", "0.yaml:2:35: expected a map"),
        ("domain: a\ndescriptors: [{ key: { a: 1 } }]", "0.yaml:2:22: expected text, found a map"),
    ] {
        let errors = convert_invalid_configs(&[text]);
        assert!(errors.iter().any(|line| line.starts_with(expected)), "{errors:#?}");
    }
}

#[test]
fn config_limit_errors_have_positions() {
    // The second text is the part of the limit at the reported position.
    for (limit, reported_part, expected) in [
        ("{}", "{}", "`unit` is missing; use one of `second`, `minute`, `hour`, `day`, "),
        ("{ unit: fortnight }", "fortnight", "`fortnight` is not a unit of time"),
        ("{ unit: UNKNOWN }", "UNKNOWN", "`UNKNOWN` is not a unit of time"),
        ("{ unit: day, unlimited: true }", "day", "`unlimited` and `unit` exclude each other"),
        ("text", "text", "expected a map of fields, found `text`"),
        ("{ unit: day, requests_per_unit: -1 }", "-1", "`requests_per_unit` must be an integer"),
        ("{ unit: day, requests_per_unit: '1' }", "'1'", "`requests_per_unit` must be an integer"),
        ("{ unit: day, requests_per_unit: 4294967296 }", "429", "`requests_per_unit` must be"),
        ("{ unit: day, replaces: [n] }", "n]", "expected a map of fields"),
        ("{ unit: day, replaces: [{ name: '' }] }", "''", "the entry of `replaces` has no `name`"),
        ("{ unit: day, replaces: [{}] }", "{}", "the entry of `replaces` has no `name`"),
        (
            "{ name: n, unit: day, replaces: [{ name: n }] }",
            "n }]",
            "a limit cannot replace a limit with its own name",
        ),
        ("{ unit: day, max: 1 }", "max", "unknown field `max`"),
    ] {
        let text = format!("{{ domain: a, descriptors: [{{ key: k, rate_limit: {limit} }}] }}");
        let column = text.find(limit).unwrap() + limit.find(reported_part).unwrap() + 1;
        let errors = convert_invalid_configs(&[&text]);
        let expected = format!("0.yaml:1:{column}: {expected}");
        assert!(errors.iter().any(|line| line.starts_with(&expected)), "{errors:#?} {expected}");
    }
}

#[test]
fn descriptors_inexpressible_in_policy_are_rejected() {
    for (descriptor, expected) in [
        ("{ key: 'k*' }", "a key cannot contain `*`"),
        ("{ key: 'k#2' }", "a key cannot end in `#` and a number"),
        ("{ key: 'a|b' }", "a key with one counter per value cannot contain `|`"),
        ("{ key: ' a', value: b }", "a key cannot begin or end with a space"),
        ("{ key: header.X }", "a key that begins with `header.` must be in lower case"),
        ("{ key: k, value: 10.0.0.0/* }", "a value that begins with an IP address"),
        (
            "{ key: k, quota_mode: true, shadow_mode: true, rate_limit: { unit: day, requests_per_unit: 1 } }",
            "with both `quota_mode` and `shadow_mode`",
        ),
    ] {
        let errors =
            convert_invalid_configs(&[&format!("domain: a\ndescriptors:\n- {descriptor}")]);
        assert!(errors.len() == 1 && errors[0].contains(expected), "{errors:#?}");
    }
    let log = convert(
        &config_files_from_texts(&[
            "domain: a\ndescriptors: [{ key: k, rate_limit: { unit: day, requests_per_unit: 9999999 } }]",
        ]),
        ConversionOptions { algorithm: Algorithm::SlidingLog, ..SLIDING_WINDOW_CONVERSION_OPTIONS },
    );
    assert!(log.unwrap_err()[0].message.contains("too large for `sliding_log`"));
}

#[test]
fn too_many_excluded_values_are_rejected() {
    let descriptor = |index: usize| {
        format!(
            "- {{ key: k, value: '{}*', rate_limit: {{ unit: day }} }}\n",
            "a".repeat(1_200 - index)
        )
    };
    let text: String = (0..1_100).map(descriptor).collect();
    let errors = convert_invalid_configs(&[&format!("domain: a\ndescriptors:\n{text}")]);
    assert_eq!(
        errors,
        [
            "0.yaml:1003:3: cannot be converted: the rules of this file would have more than 500000 exceptions for values that other descriptors match first; use fewer values"
        ]
    );
}

#[test]
fn errors_are_sorted_by_file_and_position() {
    let invalid = "domain: a\ndescriptors: [{ key: '' }, { key: b, rate_limit: {} }, { c: d }]";
    let errors = convert_invalid_configs(&[invalid, "domain: c\nx: 1", "domain: a"]);
    let positions: Vec<String> =
        errors.iter().map(|line| line.split(": ").next().unwrap().to_owned()).collect();
    let expected =
        ["0.yaml:2:22", "0.yaml:2:50", "0.yaml:2:56", "0.yaml:2:58", "1.yaml:2:1", "2.yaml:1:9"];
    assert_eq!(positions, expected, "{errors:#?}");
    assert!(errors[5].contains("`a` is already defined in 0.yaml"));
}

#[test]
fn fields_without_effect_result_in_notes() {
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
    let Conversion { notes, text, .. } = convert_valid_config(text);
    let notes: Vec<String> = notes.iter().map(ToString::to_string).collect();
    let expected = [
        "0.yaml:3:7: `unit` has no effect in this map",
        "0.yaml:6:20: `detailed_metric` has no effect: the labels of metrics",
        "0.yaml:7:13: `metadata` has no effect",
        "0.yaml:9:81: this entry of `replaces` has no effect: no limit of the domain is named `gone`",
        "0.yaml:9:95: `key` has no effect in this map",
        "0.yaml:10:26: `shadow_mode` has no effect without a `rate_limit` in the same descriptor",
        "0.yaml:10:49: `value_to_metric` has no effect: the labels of metrics",
        "0.yaml:11:25: `requests_per_unit` is missing, so the limit is 0",
    ];
    assert_eq!(notes.len(), expected.len(), "{notes:#?}");
    for (note, expected) in notes.iter().zip(expected) {
        assert!(note.starts_with(expected), "{note}");
        assert!(text.contains(&format!("# - {expected}")));
    }
    assert!(text.contains("limits: [4294967295/1s]\n    mode: observe\n"));
    assert!(text.contains("limits: [0/1d]"));
}

#[test]
fn yaml_scalars_are_parsed_as_in_reference_server() {
    let text = "
domain: 010
descriptors:
- { key: 1, value: yes, rate_limit: { unit: Second, requests_per_unit: 010 } }
- { key: null_value, value: ~, rate_limit: { unit: 'WEEK', requests_per_unit: 1_0 } }
- { key: k, value: '1.5', shadow_mode: Off, rate_limit: { unlimited: on } }
";
    let Conversion { text, notes, .. } = convert_valid_config(text);
    assert_eq!(notes, []);
    for part in [
        "domain: \"010\"",
        "name: 1_yes\n",
        "when: {\"1\": \"yes\"}\n    limits: [8/1s]",
        "per: [null_value]\n    limits: [10/1w]",
        "when: {k: \"1.5\"}\n    limits: unlimited",
    ] {
        assert!(text.contains(part), "{part}\nin\n{text}");
    }
}

#[test]
fn converted_policy_text_is_deterministic_and_printable() {
    let text = "domain: \"a\\e[0m\\u00a0ü\"\ndescriptors: [{ key: \"k\\u0001l\", value: \"'\\\"\\\\\", rate_limit: { unit: day } }]";
    let (first, second) = (convert_valid_config(text).text, convert_valid_config(text).text);
    assert_eq!(first, second);
    assert!(first.chars().all(|char| char == '\n' || !char.is_control()), "{first}");
    let policy = slidegate::Policy::from_yaml(&first).unwrap();
    let rule = &policy.rules()[0];
    assert_eq!((rule.name(), rule.domain()), ("k-l_---", "a\u{1b}[0m\u{a0}ü"));
    assert!(
        rule.when()
            .conditions()
            .any(|(name, condition)| name == "k\u{1}l" && condition.matches(Some("'\"\\")))
    );
}
