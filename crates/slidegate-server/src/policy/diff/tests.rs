use super::*;

fn policy_diff_lines(old: &str, new: &str) -> Vec<String> {
    let policy = |text: &str| Policy::from_yaml(text).unwrap();
    diff(&policy(old), &policy(new))
}

/// Returns the differences from the rule `old` to the rule `new`, without the name of the rule.
fn rule_diff_lines(old: &str, new: &str) -> Vec<String> {
    let policy = |rule: &str| format!("rules: [{{ name: a, {rule} }}]");
    let lines = policy_diff_lines(&policy(old), &policy(new));
    lines.iter().map(|line| line.replacen("rule `a`: ", "", 1)).collect()
}

#[test]
fn each_difference_names_its_rule() {
    let old = "
routes: [/a, /b]
rules:
  - { name: same, limits: [1/s] }
  - { name: other, domain: api, limits: [1/s] }
  - { name: old, limits: denied }
";
    let new = "
routes: [/b, '/c/{id}']
rules:
  - { name: new, domain: api, limits: unlimited, per: [ip] }
  - { name: other, domain: api, limits: [2/s] }
  - { name: same, limits: [1/s] }
";
    assert_eq!(
        policy_diff_lines(old, new),
        [
            "+ rule `new` of domain `api`: counted per ip; without it the rule does not apply",
            "+ rule `new` of domain `api`: everything passes",
            "- rule `other` of domain `api`: never more than 1 in any 1s (1/1s sliding_window)",
            "+ rule `other` of domain `api`: never more than 2 in any 1s (2/1s sliding_window)",
            "- rule `old`: one counter for all requests",
            "- rule `old`: nothing passes",
            "- route /a",
            "+ route /c/{id}",
        ]
    );
}

#[test]
fn equivalent_policy_has_no_diff() {
    let old = "
routes: [/a, /b]
rules:
  - { name: a, limits: [60/min], per: [tenant] }
  - { name: b, limits: [1/s] }
";
    let new = "
# The same.
defaults: { algorithm: sliding_window }
routes: [/b, /a]
rules:
  - { name: b, limits: [{ max: 1, window: 1s }] }
  - { name: a, domain: default, limits: [60/1m], per: [tenant] }
";
    assert!(policy_diff_lines(old, new).is_empty());
}

#[test]
fn replaced_rules_have_lines() {
    let policy = |replaces: &str| {
        format!("rules: [{{ name: b, limits: [1/s] }}, {{ name: a, limits: [1/s]{replaces} }}]")
    };
    let lines = policy_diff_lines(&policy(""), &policy(", replaces: [b]"));
    assert_eq!(lines, ["+ rule `a`: applies in place of `b`"]);
}

#[test]
fn changed_counters_have_lines() {
    assert_eq!(
        rule_diff_lines("limits: [10/min]", "limits: [10/min], algorithm: sliding_log"),
        [
            "- never more than 10 in any 1m (10/1m sliding_window)",
            "- `1m` counted as sliding_window:1m",
            "+ never more than 10 in any 1m (10/1m sliding_log)",
            "+ `1m` counted as sliding_log:1m",
        ]
    );
    assert_eq!(
        rule_diff_lines(
            "limits: [{ max: 9, window: 1s }]",
            "limits: [{ max: 9, window: 1s, name: few }]"
        ),
        ["- `1s` counted as sliding_window:1s", "+ `few` counted as sliding_window:1s"]
    );
    assert_eq!(
        rule_diff_lines(
            "limits: [{ max: 9, window: 1h, algorithm: sliding_buckets }]",
            "limits: [{ max: 9, window: 1h, algorithm: sliding_buckets, precision: 1m }]"
        ),
        ["- `1h` counted as sliding_buckets:1h:6m", "+ `1h` counted as sliding_buckets:1h:1m"]
    );
}

#[test]
fn override_order_change_has_lines() {
    let pro = "{ name: pro, when: { plan: pro }, limits: [90/s] }";
    let live = "{ name: live, when: { key: live }, limits: unlimited }";
    let lines = rule_diff_lines(
        &format!("limits: [9/s], overrides: [{pro}, {live}]"),
        &format!("limits: [9/s], overrides: [{live}, {pro}]"),
    );
    assert_eq!(lines.len(), 2, "{lines:?}");
}

#[test]
fn long_line_is_cut() {
    let many: Vec<String> = (0..500).map(|nth| format!("'10.0.{}.0/24'", nth % 250)).collect();
    let new = format!(
        "rules: [{{ name: a, limits: [1/s], when: {{ ip: [{}], key: \"a\\nb\" }} }}]",
        many.join(", ")
    );
    let lines = policy_diff_lines("rules: []", &new);
    assert!(lines[0].ends_with('…') && lines[0].chars().count() < 500, "{lines:?}");
    let lines = policy_diff_lines(
        "rules: []",
        "rules: [{ name: a, limits: [1/s], when: { key: \"a\\nb\" } }]",
    );
    assert!(lines[0].contains("key is `a\\nb`"), "{lines:?}");
}

#[test]
fn changed_attributes_have_lines() {
    let policy = |attributes: &str| {
        format!("{attributes}\nrules: [{{ name: a, per: [ip], limits: [1/s] }}]")
    };
    assert_eq!(
        policy_diff_lines(
            &policy("attributes: [ip, user]"),
            &policy("attributes: { default: [ip, plan] }")
        ),
        ["- domain `default`: attribute user", "+ domain `default`: attribute plan"]
    );
}
