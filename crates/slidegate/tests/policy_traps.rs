//! Tests of the messages for common mistakes in policy files: unquoted values, tabs, and names of other rate limiters.

#![allow(clippy::unwrap_used, reason = "a failed test may panic")]

use proptest::prelude::*;
use slidegate::{Policy, PolicyError, Quota};

fn policy_errors(text: &str) -> Vec<PolicyError> {
    Policy::from_yaml(text).map_or_else(|errors| errors.0, |_| Vec::new())
}

/// Returns the errors of a policy without their excerpts, as `line:column: message`.
fn formatted_errors(text: &str) -> Vec<String> {
    let format =
        |error: &PolicyError| format!("{}:{}: {}", error.line, error.column, error.message);
    policy_errors(text).iter().map(format).collect()
}

/// Returns a policy whose only rule has these fields, which begin in line 3.
fn policy_with_fields(fields: &str) -> String {
    format!("rules:\n  - name: a\n{fields}\n")
}

#[test]
fn unquoted_value_error_contains_quoted_form() {
    for (text, expected) in [
        ("routes: [/users/{id}]", "1:10: `/users/{id}` contains `{`; quote it: '/users/{id}'"),
        ("routes: [/a, /b/{c}/d, /e]", "1:14: `/b/{c}/d` contains `{`; quote it: '/b/{c}/d'"),
        ("routes: [/a/{b}/{*c}]", "1:10: `/a/{b}/{*c}` contains `{`; quote it: '/a/{b}/{*c}'"),
        ("routes: [\n  /a,\n  /b/{c} ]", "3:3: `/b/{c}` contains `{`; quote it: '/b/{c}'"),
        ("routes: [{id}]", "1:10: YAML reads `{id}` as a map; quote it: '{id}'"),
        ("routes:\n  - {id}/a", "2:5: `{id}/a` contains `{`; quote it: '{id}/a'"),
        ("    when:\n      path: {id}", "4:13: YAML reads `{id}` as a map; quote it: '{id}'"),
        ("    when:\n      path: {*a}", "4:13: `{*a}` contains `{`; quote it: '{*a}'"),
        ("    when: { path: /a/{b} }", "3:19: `/a/{b}` contains `{`; quote it: '/a/{b}'"),
        ("    when: { path: /a[0] }", "3:19: `/a[0]` contains `[`; quote it: '/a[0]'"),
        (
            "    when:\n      path: /a/{b}: c",
            "4:13: `/a/{b}: c` contains `: `; quote it: '/a/{b}: c'",
        ),
        ("    when: { path: /a: b }", "3:19: `/a: b` contains `: `; quote it: '/a: b'"),
        ("    when:\n      path: *", "4:13: YAML reads `*` as an alias; quote it: '*'"),
        ("    when:\n      path: */a # b", "4:13: YAML reads `*/a` as an alias; quote it: '*/a'"),
        (
            "    when: { host: *.a.b, c: d }",
            "3:19: YAML reads `*.a.b` as an alias; quote it: '*.a.b'",
        ),
        ("    when: { plan: &free }", "3:19: YAML reads `&free` as an anchor; quote it: '&free'"),
        ("    when: { user: @a }", "3:19: a YAML value cannot begin with `@`; quote it: '@a'"),
        ("    when:\n      plan: %a", "4:13: a YAML value cannot begin with `%`; quote it: '%a'"),
        ("    per: [`ip`]", "3:11: a YAML value cannot begin with a backtick; quote it: '`ip`'"),
        (
            "    when: { user: @it's }",
            "3:19: a YAML value cannot begin with `@`; quote it: '@it''s'",
        ),
    ] {
        let text = match text.starts_with("routes") {
            true => format!("{text}\nrules: []\n"),
            false => policy_with_fields(&format!("{text}\n    limits: [1/s]")),
        };
        assert_eq!(formatted_errors(&text), [expected], "{text}");
    }
}

#[test]
fn tag_error_contains_negated_condition() {
    for (value, negated) in [
        ("!free", "free"),
        ("!=free", "free"),
        ("! free", "free"),
        ("!not free", "free"),
        ("!\"free\"", "\"free\""),
        ("!10.0.0.0/8", "10.0.0.0/8"),
        ("!/a/*", "'/a/*'"),
        ("![free, pro]", "[free, pro]"),
    ] {
        let text = |value: &str| {
            policy_with_fields(&format!("    when: {{ plan: {value} }}\n    limits: [1/s]"))
        };
        let errors = formatted_errors(&text(value));
        assert_eq!(errors.len(), 1, "{errors:?}");
        let end = format!("as a tag; to negate a condition, write {{ not: {negated} }}");
        assert!(errors[0].starts_with("3:19: YAML reads `!"), "{errors:?}");
        assert!(errors[0].ends_with(&end), "{errors:?}");
        assert_eq!(formatted_errors(&text(&format!("{{ not: {negated} }}"))), [""; 0], "{value}");
    }
    // Tags of YAML itself have no effect.
    let text = policy_with_fields("    when: { plan: !!str 5 }\n    limits: [1/s]");
    assert_eq!(formatted_errors(&text), [""; 0]);
}

#[test]
fn tab_error_names_line_with_tab() {
    let policy = "\
rules:
  - name: a
    when:
      plan: free
      method: GET
    per:
      - ip
      - user
    limits:
      - max: 5
        window: 1m
    mode: observe
";
    assert_eq!(formatted_errors(policy), [""; 0]);
    for index in 1..policy.lines().count() {
        let lines = policy.lines().enumerate().map(|(other, line)| match other == index {
            true => format!("\t{}", line.trim_start()),
            false => line.to_owned(),
        });
        let text = lines.collect::<Vec<_>>().join("\n");
        let expected = format!("{}:1: the indentation contains a tab; use spaces", index + 1);
        assert_eq!(formatted_errors(&text), [expected], "{text}");
    }
}

#[test]
fn names_of_other_rate_limiters_have_suggestion() {
    for (fields, expected) in [
        ("mode: shadow", "`observe`"),
        ("mode: dry_run", "`observe`"),
        ("mode: Dry-Run", "`observe`"),
        ("mode: log_only", "`observe`"),
        ("mode: monitor", "`observe`"),
        ("mode: report_only", "`observe`"),
        ("mode: block", "`enforce`"),
        ("mode: enforced", "`enforce`"),
        ("mode: on", "`enforce`"),
        ("on_store_error: fail_open", "`allow`"),
        ("on_store_error: open", "`allow`"),
        ("on_store_error: fail-closed", "`deny`"),
        ("on_store_error: closed", "`deny`"),
        ("when_missing: reject", "`deny`"),
        ("algorithm: leaky_bucket", "`token_bucket`"),
        ("algorithm: GCRA", "`token_bucket`"),
        ("algorithm: sliding_window_log", "`sliding_log`"),
        ("algorithm: sliding_window_counter", "`sliding_counter`"),
        ("algorithm: rolling_window", "`sliding_window`"),
        ("algorithm: fixed", "`fixed_window`"),
        ("algorithm: fixed_window_counter", "`fixed_window`"),
        ("rate: 5/s", "`limits`"),
        ("limit: 5/s", "`limits`"),
        ("key: ip", "`per`"),
        ("keys: [ip]", "`per`"),
        ("by: [ip]", "`per`"),
        ("match: { path: /a }", "`when`"),
        ("if: { path: /a }", "`when`"),
    ] {
        let text = format!("rules: [{{ name: a, {fields}, limits: [1/s] }}]");
        let errors = formatted_errors(&text);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(errors[0].ends_with(&format!("; did you mean {expected}?")), "{errors:?}");
    }
    for (limit, expected) in [
        ("requests: 5", "`max`"),
        ("limit: 5", "`max`"),
        ("requests_per_unit: 5", "`max`"),
        ("window_size: 1m", "`window`"),
        ("unit: minute", "`window`"),
        ("burst_size: 5", "`burst`"),
    ] {
        let text = format!("rules: [{{ name: a, limits: [{{ max: 5, window: 1m, {limit} }}] }}]");
        let errors = formatted_errors(&text);
        assert!(errors[0].ends_with(&format!("; did you mean {expected}?")), "{errors:?}");
    }
    for (field, expected) in [
        ("path: /a", "write it in `when`, for example `when: { path: … }`"),
        ("burst: 5", "write it in a limit, for example `limits: [{ max: 100, window: 1m }]`"),
    ] {
        let text = format!("rules: [{{ name: a, {field}, limits: [1/s] }}]");
        let errors = formatted_errors(&text);
        assert!(errors[0].ends_with(expected), "{errors:?}");
    }
}

#[test]
fn separator_error_contains_corrected_line() {
    let errors = formatted_errors("rules:\n  - name:a\n    limits: [1/s]\n");
    assert_eq!(errors, ["2:5: a space is missing after `name:`; write `name: a`"]);
    let errors = formatted_errors(&policy_with_fields("    limits [1/s]"));
    assert_eq!(errors, ["3:5: `:` is missing after `limits`; write `limits: [1/s]`"]);
}

/// Returns the text with the value that an error marks replaced by the quoted form that its message suggests.
fn apply_suggested_quotes(text: &str, error: &PolicyError) -> Option<String> {
    let (_, quoted) = error.message.split_once("; quote it: ")?;
    let value = quoted.strip_prefix('\'')?.strip_suffix('\'')?.replace("''", "'");
    let line_index = usize::try_from(error.line).unwrap() - 1;
    let column_index = usize::try_from(error.column).unwrap() - 1;
    let lines = text.lines().enumerate().map(|(index, line)| match index == line_index {
        true => {
            let before: String = line.chars().take(column_index).collect();
            let rest = &line[before.len()..];
            let after = rest.strip_prefix(&value).unwrap_or_else(|| panic!("{error}"));
            format!("{before}{quoted}{after}")
        }
        false => line.to_owned(),
    });
    Some(lines.collect::<Vec<_>>().join("\n"))
}

proptest! {
    #[test]
    fn suggested_quotes_remove_error(value in "[*&@%`!]?(/|[a-z]{1,3}|\\{\\*?[a-z]{1,2}\\}|: ?|\\*|'|\\[[0-9]\\]){1,5}", is_flow: bool) {
        let text = policy_with_fields(&match is_flow {
            true => format!("    when: {{ plan: {value} }}\n    limits: [1/s]"),
            false => format!("    when:\n      plan: {value}\n    limits: [1/s]"),
        });
        if let [error] = &policy_errors(&text)[..]
            && let Some(quoted) = apply_suggested_quotes(&text, error)
        {
            let remaining = policy_errors(&quoted);
            // A quoted value can have another problem, such as `'::/{a}'`, which is not a network.
            let is_same = |other: &PolicyError| {
                (other.line, other.column, &other.message) == (error.line, error.column, &error.message)
            };
            prop_assert!(!remaining.iter().any(is_same), "{}\n{}\n{:?}", text, quoted, remaining);
        }
    }

    #[test]
    fn suggested_quota_parses(
        max in "|[0-9]{1,5}|[0-9]{1,3}[k,_]?[0-9]{0,3}",
        middle in "( ?r| req| requests| calls)?",
        separator in "/| / | per | every |r?p|",
        window in "[0-9]{0,3} ?(ms|millis|s|secs|seconds?|m|min|minutes?|hours?|hrs|days?|weeks?|months?|years?|x)",
    ) {
        let text = format!("{max}{middle}{separator}{window}");
        if let Err(error) = text.parse::<Quota>()
            && let Some((_, end)) = error.to_string().split_once("did you mean `")
        {
            let suggested = end.strip_suffix("`?").unwrap();
            prop_assert!(suggested.parse::<Quota>().is_ok(), "{} for {}", suggested, text);
            prop_assert_ne!(suggested, text.as_str());
        }
    }
}
