//! Tests of the format of policy files, and of the errors in invalid files.

use std::fmt::Write;
use std::time::Duration;

use proptest::prelude::*;
use proptest::sample::Index;
use slidegate::policy::file::{
    MAX_DOMAIN_LIMITS, MAX_KEY_SCOPES, MAX_POLICY_BYTES, MAX_ROUTES, MAX_RULES,
};
use slidegate::policy::{Mode, OnStoreError, PolicyError, Rule, WhenMissing};
use slidegate::{Algorithm, Align, Policy};

/// A policy that uses every field of the format.
const POLICY_WITH_EVERY_FIELD: &str = "
version: 1
defaults: { algorithm: token_bucket, on_store_error: deny, mode: observe, when_missing: deny, ipv6_prefix: 56 }
routes: ['/users/{id}', /v1/search]
rules:
  - name: per-client
    domain: api
    when: { method: POST, route: /v1/*, ip: { not: [10.0.0.0/8, '::1'] }, beta: true, status: 200 }
    per: [api_key|ip, tenant]
    when_missing: skip
    limits: [10/s, 600/min]
    algorithm: sliding_log
    mode: { enforce: 2.5% }
    on_store_error: allow
    charge: always
    ipv6_prefix: 48
    overrides:
      - { name: live, when: { key_type: live }, limits: unlimited }
      - { when: { tenant: evil* }, limits: denied, mode: enforce }
      - { when: { plan: [pro, max] }, algorithm: fixed_window }
  - name: login
    per: [ip]
    limits:
      - { name: burst, max: 5, window: 1m, algorithm: token_bucket, burst: 8 }
      - { max: 100, window: 1d, algorithm: sliding_buckets, precision: 1h }
      - { max: 7, window: h, algorithm: fixed_window, align: clock }
      - 9/w
";

fn formatted_errors(yaml: &str) -> Vec<String> {
    let errors = Policy::from_yaml(yaml).expect_err(yaml);
    let errors = errors.0.iter();
    errors.map(|error| format!("{}:{}: {}", error.line, error.column, error.message)).collect()
}

/// Returns the errors of a policy with one rule that has these fields, as text with one error per line.
fn formatted_errors_of_rule(fields: &str) -> String {
    formatted_errors(&format!("rules:\n  - {{ name: a, {fields} }}\n")).join("\n")
}

fn formatted_limits(rule: &Rule) -> Vec<String> {
    let limits = rule.settings().limits().iter();
    limits.map(|limit| format!("{} {}", limit.id(), limit.limit())).collect()
}

#[test]
fn policy_file_reads_every_field() {
    let policy = Policy::from_yaml(POLICY_WITH_EVERY_FIELD).unwrap();
    let [client, login] = policy.rules() else { panic!("two rules") };
    assert_eq!(policy.routes().collect::<Vec<_>>(), ["/users/{id}", "/v1/search"]);
    assert_eq!((client.domain(), login.domain()), ("api", "default"));
    let per: Vec<String> = client.per().entries().iter().map(ToString::to_string).collect();
    assert_eq!(per, ["api_key|ip", "tenant"]);
    assert_eq!((client.per().ipv6_prefix(), login.per().ipv6_prefix()), (48, 56));
    assert_eq!(client.when_missing(), WhenMissing::Skip);
    assert_eq!(login.when_missing(), WhenMissing::Deny);
    assert_eq!(client.on_store_error(), OnStoreError::Allow);
    assert_eq!(login.on_store_error(), OnStoreError::Deny);
    assert_eq!(client.settings().mode(), Mode::EnforceFor("2.5%".parse().unwrap()));
    assert_eq!(login.settings().mode(), Mode::Observe);
    assert!(client.charges_always() && !login.charges_always());
    let when: Vec<String> =
        client.when().conditions().map(|(name, wanted)| format!("{name} {wanted}")).collect();
    assert_eq!(
        when,
        [
            "method `POST`",
            "route `/v1/*`",
            "ip not `10.0.0.0/8` or `::1`",
            "beta `true`",
            "status `200`"
        ]
    );
    assert_eq!(formatted_limits(client), ["1s 10/1s sliding_log", "1m 600/1m sliding_log"]);
    let [live, evil, paying] = client.overrides() else { panic!("three overrides") };
    assert_eq!((live.name(), live.settings().limits().len()), (Some("live"), 0));
    assert_eq!((evil.name(), evil.settings().mode()), (None, Mode::Enforce));
    assert_eq!(evil.settings().limits()[0].limit().capacity(), 0);
    let counted = |index: usize| paying.settings().limits()[index].limit().to_string();
    assert_eq!([counted(0), counted(1)], ["10/1s fixed_window", "600/1m fixed_window"]);
    assert_eq!(
        formatted_limits(login),
        [
            "burst 5/1m token_bucket",
            "1d 100/1d sliding_buckets",
            "1h 7/1h fixed_window",
            "1w 9/1w token_bucket"
        ]
    );
    let algorithm = |index: usize| login.settings().limits()[index].limit().algorithm();
    assert_eq!(algorithm(0), Algorithm::TokenBucket { burst: Some(8), max_debt: Some(10) });
    let hour = Some(Duration::from_secs(3_600));
    assert_eq!(algorithm(1), Algorithm::SlidingBuckets { precision: hour });
    assert_eq!(algorithm(2), Algorithm::FixedWindow { align: Align::Clock });
}

#[test]
fn all_errors_are_reported_in_file_order() {
    let found = formatted_errors(
        "
version: 2
default: {}
rules:
  - name: Per Client
    per: [ip, ip]
    limits: [10, 5/min]
    mode: observ
  - name: a
    limits: []
    algorithm: leaky
    charge: yes
  - name: a
    limits:
      - { max: 5, window: 1m, precision: 10s }
      - { max: many, window: 7s, algorithm: sliding_buckets, precision: 2s }
      - { max: 5, window: 7s, algorithm: sliding_buckets, precision: 2s }
      - 1/m
      - { max: 2, window: 60s }
  - limits: [1/s]
    whem: { a: b }
",
    );
    let prefixes = [
        "2:10: unknown version 2",
        "3:1: unknown field `default`; did you mean `defaults`?",
        "5:11: invalid rule name `Per Client`; use 1 to 128 of the characters a-z, 0-9, `.`, `_` and `-`, for example `per-client`",
        "6:15: `ip` is listed twice in `per`",
        "7:14: `10` is not a quota",
        "8:11: unknown value `observ`; did you mean `observe`?",
        "10:13: the list of limits is empty",
        "11:16: unknown value `leaky`; did you mean `token_bucket`?",
        "12:13: unknown value `yes`; write `if_admitted` or `always`",
        "13:11: rule `a` already exists in domain `default`, in line 9",
        "15:42: `precision` is only for sliding_buckets",
        "16:16: expected a whole number, found `many`",
        "17:9: a precision of 2s does not divide the window of 7s",
        "19:9: two limits of this rule have the name `1m`",
        "20:5: `name` is missing",
        "21:5: unknown field `whem`; did you mean `when`?",
    ];
    assert_eq!(found.len(), prefixes.len(), "{found:#?}");
    for (found, prefix) in found.iter().zip(prefixes) {
        assert!(found.starts_with(prefix), "{found}\nshould begin with\n{prefix}");
    }
}

#[test]
fn error_excerpt_marks_position_in_source_line() {
    let errors =
        Policy::from_yaml("rules:\n  - { name: a, limits: [1/s], mode: obsrve }\n").unwrap_err();
    assert_eq!(
        errors.to_string(),
        "2:37: unknown value `obsrve`; did you mean `observe`?\n    \
         2 |   - { name: a, limits: [1/s], mode: obsrve }\n      \
           |                                     ^^^^^^"
    );
}

#[test]
fn every_error_suggests_correction() {
    for (fields, expected) in [
        ("limits: 10/s", "did you mean `[10/s]`?"),
        ("limits: unlimitd", "did you mean `unlimited`?"),
        ("limits: [{ max: 5 }]", "`window` is missing; add it, for example `window: 1m`"),
        (
            "limits: [[1/s]]",
            "expected a limit such as 100/min, or a map with `max` and `window`, found a list",
        ),
        ("limits: [{ max: 5, window: 1m, burst: 9 }]", "write `algorithm: token_bucket`"),
        ("limits: [{ max: 5, window: 1m, name: 'x y' }]", "for example `x-y`"),
        ("limits: [1/s], per: ip", "did you mean `[ip]`?"),
        ("limits: [1/s], per: [header.X-Key]", "did you mean `header.x-key`?"),
        ("limits: [1/s], per: ['a|']", "the attribute name is empty"),
        ("limits: [1/s], per: ['a|b|c|d|e', 'f|g|h|i|j', 'k|l|m']", "the maximum is 64"),
        ("limits: [1/s], when: { method: post }", "did you mean `POST`?"),
        ("limits: [1/s], when: { path: 'v1/*' }", "did you mean `/v1/*`?"),
        ("limits: [1/s], when: { ip: 10.0.0.0/33 }", "a whole number from 0 to 32"),
        ("limits: [1/s], when: { net: 10.1.0.0/8 }", "did you mean `10.0.0.0/8`?"),
        ("limits: [1/s], when: { ip: localhost }", "is not an address or a network"),
        ("limits: [1/s], when: { ip: '::ffff:0:0/95' }", "write 0.0.0.0/0 for all IPv4 addresses"),
        ("limits: [1/s], when: { ip: '::ffff:10.0.0.7/104' }", "did you mean `10.0.0.0/8`?"),
        ("limits: [1/s], when: { host: ':80' }", "`:80` is not a host"),
        ("limits: [1/s], when: { host: 'https://a.example' }", "without a scheme"),
        ("limits: [1/s], when: { host: '*.a.example:80' }", "remove its port and brackets"),
        ("limits: [1/s], when: { header.host: '[2001:*]' }", "such as 2001:db8::/32"),
        (
            "limits: [1/s], overrides: [{ when: { host: A.example }, mode: off }, { when: { host: 'a.example:80' }, mode: off }]",
            "this override never applies",
        ),
        ("limits: [1/s], when: { a: [] }", "the list is empty and matches nothing"),
        ("limits: [1/s], when: { a: '' }", "the value is empty"),
        ("limits: [1/s], when: { a: { nto: b } }", "did you mean `not`?"),
        ("limits: [1/s], when: { a: { not: { not: b } } }", "`not` inside of `not`"),
        (
            "limits: [1/s], when: [a]",
            "expected a map of attributes, such as { method: POST }, found a list",
        ),
        ("limits: [1/s], when: { a: [{ not: b }] }", "expected text, found a map"),
        ("limits: [1/s], when: {}", "`when` is empty"),
        ("limits: [1/s], per: [ip], mode: { enforce: 5 }", "did you mean `5%`?"),
        ("limits: [1/s], per: [ip], mode: { enforce: 500% }", "a number from 0% to 100%"),
        (
            "limits: [1/s], per: [ip], mode: { observe: 5% }",
            "unknown field `observe`; the only field here is `enforce`",
        ),
        ("limits: [1/s], mode: { enforce: 5% }", "add `per`"),
        ("limits: [1/s], when_missing: deny", "`when_missing` has no effect without `per`"),
        ("limits: [1/s], when_missing: ignore", "unknown value `ignore`; did you mean `skip`?"),
        ("limits: [1/s], on_store_error: locale", "did you mean `local`?"),
        ("limits: [1/s], ipv6_prefix: 129", "129 is not an IPv6 prefix length; write 1 to 128"),
        ("limits: [1/s], deny_status: 200", "200 is not an error status; write 400 to 599"),
        ("limits: [1/s], deny_status: 600", "600 is not an error status; write 400 to 599"),
        ("limits: [1/s], deny_status: no", "expected a whole number, found `no`"),
        ("limits: [1/s], ipv6_prefix: /64", "expected a whole number, found `/64`"),
        ("limits: [1/s], domain: ''", "the domain name is empty"),
        ("limits: [1/s], domain:", "expected text, found no value"),
        (
            "limits: [1/s], overrides: [{ limits: [1/m] }]",
            "`when` is missing; add it, for example `when: { plan: pro }`",
        ),
        ("limits: [1/s], overrides: [{ when: { a: b } }]", "this override changes nothing"),
        (
            "limits: [1/s], overrides: [{ when: { a: b }, limits: denied, algorithm: sliding_log }]",
            "remove `algorithm`",
        ),
        (
            "limits: [1/s], overrides: [{ when: { a: b }, mode: off }, { when: { a: b }, mode: off }]",
            "the override in line 2 has the same `when`",
        ),
        (
            "limits: [1/s], when: { plan: free }, overrides: [{ when: { plan: pro }, mode: off }]",
            "because the rule applies only if `plan` is `free`",
        ),
    ] {
        let found = formatted_errors_of_rule(fields);
        assert!(found.contains(expected), "{fields} gives\n{found}\nwithout\n{expected}");
        assert!(found.lines().count() <= 2, "{fields} gives\n{found}");
    }
}

#[test]
fn unlisted_route_in_condition_is_reported() {
    let rule = |route: &str| {
        format!(
            "routes: ['/users/{{id}}', /search]\nrules:\n  - {{ name: a, when: {{ route: '{route}' }}, limits: [1/s] }}\n"
        )
    };
    for route in ["/users/{id}", "/search", "/users/*", "*"] {
        assert!(Policy::from_yaml(&rule(route)).is_ok(), "{route}");
    }
    let expected = formatted_errors(&rule("/users/{user}"));
    assert!(
        expected[0].ends_with("is not listed in `routes`; did you mean `/users/{id}`?"),
        "{expected:?}"
    );
    assert!(
        formatted_errors(&rule("/v1/*"))[0]
            .contains("`/v1/*` is not listed in `routes`; add it there")
    );
    // Without templates, callers send the route.
    assert!(
        Policy::from_yaml(&rule("/any").replace("routes: ['/users/{id}', /search]", "version: 1"))
            .is_ok()
    );
    let two = formatted_errors("routes: [users, '/a/{b}', '/a/{c}']\nrules: []\n");
    assert!(two[0].starts_with("1:10: a route begins with `/`"), "{two:?}");
    assert!(two[1].starts_with("1:27: some paths match both `/a/{c}` and `/a/{b}`"), "{two:?}");
}

#[test]
fn invalid_yaml_error_has_source_position() {
    for (yaml, position) in [
        (
            "rules:\n  - name: a\n    limit: [1/s]\n",
            "2:5: `limits` is missing; add it, for example `limits: [100/min]`",
        ),
        ("rules: 5\n", "1:8: expected a list, found `5`"),
        ("rules:\n  - name: [\n", "2:11: invalid YAML: "),
        ("rules:\n  - name: a\n    name: b\n", "3:5: invalid YAML: duplicate mapping key: name"),
        ("rules:\n\t- name: a\n", "2:"),
        ("- name: a\n", "1:1: expected a map with `rules`, found a list"),
        ("version: 1\n", "1:1: `rules` is missing; add `rules:` with a list of rules"),
    ] {
        let found = formatted_errors(yaml);
        assert!(found[0].starts_with(position), "{yaml} gives {found:?}");
    }
    for empty in ["", "# nothing\n", "---\n", "~"] {
        let found = formatted_errors(empty);
        assert!(found[0].contains("the policy is empty"), "{empty:?} gives {found:?}");
    }
}

#[test]
fn condition_values_keep_source_text() {
    let policy = Policy::from_yaml(
        "rules:\n  - { name: a, when: { v: [1.10, 007, 0x1F, yes, off, 1e3, +5, 2026-11-21] }, limits: [1/s] }",
    );
    let policy = policy.unwrap();
    let (_, wanted) = policy.rules()[0].when().conditions().next().unwrap();
    let written: Vec<&str> = wanted.patterns().collect();
    assert_eq!(written, ["1.10", "007", "0x1F", "yes", "off", "1e3", "+5", "2026-11-21"]);
}

#[test]
fn yaml_alias_reuses_anchored_limits() {
    let policy = Policy::from_yaml(
        "
rules:
  - { name: a, limits: &usual [10/s, 600/min] }
  - { name: b, limits: *usual }
",
    );
    assert_eq!(
        formatted_limits(&policy.unwrap().rules()[1]),
        ["1s 10/1s sliding_window", "1m 600/1m sliding_window"]
    );
}

#[test]
fn exponential_yaml_alias_expansion_is_rejected() {
    let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for index in 1..12 {
        let before = format!("*a{}, ", index - 1).repeat(9);
        yaml += &format!("a{index}: &a{index} [{before} *a{}]\n", index - 1);
    }
    let found = formatted_errors(&yaml);
    assert!(found[0].contains("invalid YAML: too many values"), "{found:?}");
    assert!(found[0].contains("use fewer values or aliases"), "{found:?}");
}

#[test]
fn extension_fields_hold_anchors() {
    let policy = Policy::from_yaml(
        "
x-usual: &usual [10/s, 600/min]
x-rule: &rule { per: [ip], limits: *usual }
rules:
  - { <<: *rule, name: a }
  - { <<: *rule, name: b, per: [user] }
",
    )
    .unwrap();
    for rule in policy.rules() {
        assert_eq!(formatted_limits(rule), ["1s 10/1s sliding_window", "1m 600/1m sliding_window"]);
    }
    let found = formatted_errors("x-a: 1\ny-a: 1\nrules: [{ name: a, limits: [1/s], x-b: 1 }]");
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found[0].starts_with("2:1: ") && found[1].starts_with("3:35: "), "{found:?}");
}

/// Formats a YAML list with `count` entries, one per line. `entry` returns the text of the entry with an index.
fn format_yaml_list(count: usize, entry: impl Fn(usize) -> String) -> String {
    (0..count).fold(String::new(), |mut text, index| {
        writeln!(text, "  - {}", entry(index)).unwrap();
        text
    })
}

#[test]
fn at_most_1000_policy_errors_are_reported() {
    let filler = "x".repeat(400);
    let rules = format_yaml_list(MAX_RULES, |index| {
        format!("{{ name: r{index}, {filler}{index}: 1, mode: {filler} }}")
    });
    let text = format!("rules:\n{rules}");
    assert!((MAX_POLICY_BYTES - 100_000..MAX_POLICY_BYTES).contains(&text.len()), "{}", text.len());
    let errors = Policy::from_yaml(&text).unwrap_err().0;
    let [expected @ .., last] = &errors[..] else { panic!("no mistakes") };
    assert_eq!(expected.len(), 1_000);
    assert_eq!(last.message, "more errors follow after these 1000; fix these first");
    let text_lines: Vec<&str> = text.lines().collect();
    errors.iter().for_each(|error| assert_error_is_within_text(error, &text_lines));
}

#[test]
fn inherited_limit_error_is_reported_once() {
    let rules = format_yaml_list(200, |index| match index {
        0 => "{ name: r0, limits: &usual [1/s, 2/fortnight] }".to_owned(),
        _ => format!("{{ name: r{index}, limits: *usual }}"),
    });
    let found = formatted_errors(&format!("rules:\n{rules}"));
    // Each use of the anchor has its own position.
    let unique: std::collections::HashSet<&String> = found.iter().collect();
    assert_eq!(found.len(), unique.len());
    let overrides = "{ when: { a: b }, algorithm: token_bucket },";
    let found = formatted_errors(&format!(
        "rules: [{{ name: a, limits: [2/fortnight], overrides: [{overrides}] }}]"
    ));
    assert_eq!(found.len(), 1, "{found:?}");
}

#[test]
fn oversized_policy_is_rejected() {
    let no_rules = |text: String| formatted_errors(&format!("{text}\nrules: []"));
    let long = no_rules("#".repeat(MAX_POLICY_BYTES));
    assert_eq!(long, ["1:1: the policy has 8388618 bytes; the maximum is 8388608"]);
    let route = |index| format!("/{index}");
    let routes = no_rules(format!("routes:\n{}", format_yaml_list(MAX_ROUTES + 1, route)));
    assert_eq!(routes, ["2:3: too many routes: 10001; the maximum is 10000"]);
    let rule = |index| format!("{{ name: r{index}, limits: [1/s] }}");
    let rules = formatted_errors(&format!("rules:\n{}", format_yaml_list(MAX_RULES + 1, rule)));
    assert_eq!(rules, ["2:3: too many rules: 10001; the maximum is 10000"]);
    // Each rule has 64 combinations and 2 limits.
    let per = "per: [a|b, c|d, e|f, g|h, i|j, k|l]";
    let rule = |index| format!("{{ name: r{index}, {per}, limits: [1/s, 1/m] }}");
    let max_rules = MAX_KEY_SCOPES / 128;
    let at_most = format!("rules:\n{}", format_yaml_list(max_rules, rule));
    assert!(Policy::from_yaml(&at_most).is_ok());
    let scopes = formatted_errors(&format!("rules:\n{}", format_yaml_list(max_rules + 9, rule)));
    assert_eq!(scopes.len(), 1, "{scopes:?}");
    assert!(
        scopes[0].starts_with(&format!("{}:5: too many limits in the policy", max_rules + 2)),
        "{scopes:?}"
    );
    let names: Vec<String> = (0..100_000).map(|index| format!("a{index}")).collect();
    assert!(
        formatted_errors_of_rule(&format!("per: ['{}'], limits: [1/s]", names.join("|")))
            .contains("the maximum is 64")
    );
    let parameters = no_rules(format!("routes: ['{}']", "/{a}".repeat(26)));
    assert!(
        parameters[0].ends_with("has too many parameters; the maximum is 25"),
        "{parameters:?}"
    );
}

/// Tests [`MAX_DOMAIN_LIMITS`]. A Redis script has 16 bits for the number of limits of a request.
#[test]
fn domain_with_too_many_limits_is_rejected() {
    let limits: Vec<String> = (1..=15).map(|seconds| format!("9/{seconds}s")).collect();
    let limits = limits.join(", ");
    let rule = |index| format!("{{ name: r{index}, limits: [{limits}] }}");
    let rules = MAX_DOMAIN_LIMITS / 15;
    assert_eq!(15 * rules, MAX_DOMAIN_LIMITS);
    assert!(Policy::from_yaml(&format!("rules:\n{}", format_yaml_list(rules, rule))).is_ok());
    let last = |domain| format!("  - {{ name: more, domain: {domain}, limits: [1/s] }}\n");
    let text = |domain| format!("rules:\n{}{}", format_yaml_list(rules, rule), last(domain));
    assert!(Policy::from_yaml(&text("other")).is_ok());
    let found = formatted_errors(&text("default"));
    assert_eq!(found.len(), 1, "{found:?}");
    let expected = format!("{}:5: too many limits in domain `default`", rules + 2);
    assert!(found[0].starts_with(&expected), "{found:?}");
}

/// Tests that the number of comparisons is bounded. To compare each of 10,000 long globs with each of 10,000 long
/// routes would take minutes.
#[test]
fn route_comparison_steps_are_bounded() {
    let long = "abcdefgh/".repeat(12);
    let routes = format_yaml_list(MAX_ROUTES, |index| format!("/{long}{index}"));
    let rule =
        |index| format!("{{ name: r{index}, limits: [1/s], when: {{ route: '*a*b*{index}c' }} }}");
    let rules = format_yaml_list(MAX_RULES, rule);
    let found = formatted_errors(&format!("routes:\n{routes}\nrules:\n{rules}"));
    assert!((1..1_000).contains(&found.len()), "{}", found.len());
    assert!(found.iter().all(|expected| expected.contains("is not listed in `routes`")));
}

/// Asserts that the position of an error is inside of the text, and that its excerpt shows this position. `lines` are
/// the lines of the text.
fn assert_error_is_within_text(error: &PolicyError, lines: &[&str]) {
    let PolicyError { line, column, message, .. } = error;
    assert!(!message.is_empty());
    if lines.is_empty() {
        assert_eq!((*line, *column, error.excerpt()), (1, 1, ""), "{message}");
        return;
    }
    assert!((1..=lines.len() as u64).contains(line), "line {line} of {}: {message}", lines.len());
    let length = lines[*line as usize - 1].chars().count() as u64;
    assert!((1..=length + 1).contains(column), "column {column} of {length}: {message}");
    let [shown, mark] = error.excerpt().lines().collect::<Vec<_>>()[..] else {
        panic!("two lines: {:?}", error.excerpt())
    };
    assert!(shown.trim_start().starts_with(&format!("{line} |")), "{shown}");
    assert!(mark.contains('^') && mark.find('|') == shown.find('|'), "{shown}\n{mark}");
}

/// A typing error that is applied to the text of a policy.
#[derive(Clone, Debug)]
enum PolicyTypo {
    Delete(Index, usize),
    Insert(Index, &'static str),
    Repeat(Index),
    Swap(Index, Index),
    Indent(Index),
}

fn arbitrary_policy_typo() -> impl Strategy<Value = PolicyTypo> {
    const TEXTS_INSERTED_BY_TYPO: &[&str] = &[
        " ", "\n", "\r\n", "\t", "'", "\"", "[", "]", "{", "}", ":", ": ", "- ", ",", "|", "*",
        "&a ", "*a", "#", " #", "é", "\u{2028}", "\u{feff}", "\0", "%", "~", "!!str ", "? ",
        "---\n", "0", "-1", "<<: ",
    ];
    let position = any::<Index>;
    prop_oneof![
        (position(), 1usize..8).prop_map(|(at, bytes)| PolicyTypo::Delete(at, bytes)),
        (position(), proptest::sample::select(TEXTS_INSERTED_BY_TYPO))
            .prop_map(|(at, text)| PolicyTypo::Insert(at, text)),
        position().prop_map(PolicyTypo::Repeat),
        (position(), position()).prop_map(|(one, other)| PolicyTypo::Swap(one, other)),
        position().prop_map(PolicyTypo::Indent),
    ]
}

impl PolicyTypo {
    fn apply_to_text(&self, text: &str) -> String {
        let mut lines: Vec<&str> = text.split('\n').collect();
        let cut = |at: &Index| text.split_at(text.floor_char_boundary(at.index(text.len() + 1)));
        let indented;
        match self {
            Self::Delete(at, count) => {
                let (before, after) = cut(at);
                return before.chars().chain(after.chars().skip(*count)).collect();
            }
            Self::Insert(at, new) => {
                let (before, after) = cut(at);
                return [before, new, after].concat();
            }
            Self::Repeat(at) => {
                let index = at.index(lines.len());
                lines.insert(index, lines[index]);
            }
            Self::Swap(one, other) => {
                let (one, other) = (one.index(lines.len()), other.index(lines.len()));
                lines.swap(one, other);
            }
            Self::Indent(at) => {
                let index = at.index(lines.len());
                indented = format!(" {}", lines[index]);
                lines[index] = &indented;
            }
        }
        lines.join("\n")
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// Parses a policy with random typing errors twice. Both results must be equal, and all errors must have a position
    /// in the text.
    #[test]
    fn policy_with_typos_has_positioned_errors(
        typos in proptest::collection::vec(arbitrary_policy_typo(), 1..6),
    ) {
        let text = typos.iter().fold(POLICY_WITH_EVERY_FIELD.to_owned(), |text, typo| typo.apply_to_text(&text));
        let read = Policy::from_yaml(&text);
        let again = Policy::from_yaml(&text);
        let lines: Vec<&str> = text.lines().collect();
        match (read, again) {
            (Err(errors), again) => {
                prop_assert!(!errors.0.is_empty());
                prop_assert!(errors.0.is_sorted_by_key(|error| (error.line, error.column)));
                errors.0.iter().for_each(|error| assert_error_is_within_text(error, &lines));
                prop_assert_eq!(Some(errors), again.err());
            }
            (Ok(policy), again) => {
                let expected = again.map(|again| format!("{:?}", again.rules()));
                prop_assert_eq!(Ok(format!("{:?}", policy.rules())), expected);
            }
        }
    }
}
