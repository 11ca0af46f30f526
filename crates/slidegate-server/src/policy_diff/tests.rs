use super::*;

fn policy_diff_lines(old: &str, new: &str) -> Vec<String> {
    let policy = |text: &str| Policy::from_yaml(text).unwrap();
    diff(&policy(old), &policy(new)).lines
}

/// Asserts that the change from the rule `old` to the rule `new` is described as `description`. An empty `description`
/// means that the rules do not differ.
#[track_caller]
fn assert_rule_change_description(old: &str, new: &str, description: &str) {
    let policy = |rule: &str| format!("rules: [{{ name: a, {rule} }}]");
    let expected = match description {
        "" => Vec::new(),
        description => vec![format!("rule `a` has changed: {description}")],
    };
    assert_eq!(policy_diff_lines(&policy(old), &policy(new)), expected);
}

#[test]
fn each_changed_rule_has_one_diff_line() {
    let old = "
routes: [/a, /b]
rules:
  - { name: same, limits: [1/s] }
  - { name: other, domain: api, limits: [1/s] }
  - { name: old, limits: [1/s] }
";
    let new = "
routes: [/b, '/c/{id}']
rules:
  - { name: new, domain: api, limits: [5/min], algorithm: sliding_log, per: [ip] }
  - { name: other, domain: api, limits: [2/s] }
  - { name: same, limits: [1/s] }
";
    let (old, new) = (Policy::from_yaml(old).unwrap(), Policy::from_yaml(new).unwrap());
    let changes = diff(&old, &new);
    assert_eq!(
        changes.lines,
        [
            "rule `new` of domain `api` was added: counted per ip; without it the rule does not apply; never more than 5 in any 1m (5/1m sliding_log)",
            "rule `other` of domain `api` has changed: was [never more than 1 in any 1s (1/1s sliding_window)], is [never more than 2 in any 1s (2/1s sliding_window)]; counters kept",
            "rule `old` was removed",
            "routes have changed: added /c/{id}; removed /a",
        ]
    );
    assert_eq!(changes.summary(), "rules: 1 added, 1 changed, 1 removed");
    assert_eq!(diff(&new, &new), PolicyDiff::default());
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
    assert!(diff(&Policy::from_yaml(old).unwrap(), &Policy::from_yaml(new).unwrap()).is_empty());
}

#[test]
fn only_max_or_burst_change_keeps_counters() {
    assert_rule_change_description(
        "limits: [10/min]",
        "limits: [10/h]",
        "was [never more than 10 in any 1m (10/1m sliding_window)], is [never more than 10 in any 1h (10/1h sliding_window)]; counters reset",
    );
    assert_rule_change_description(
        "limits: [10/min]",
        "limits: [10/min], algorithm: sliding_log",
        "was [never more than 10 in any 1m (10/1m sliding_window)], is [never more than 10 in any 1m (10/1m sliding_log)]; counters reset",
    );
    assert_rule_change_description(
        "limits: [10/min, 5/s, 9/h]",
        "limits: [20/min, 5/s, 9/d]",
        "was [never more than 10 in any 1m (10/1m sliding_window); never more than 9 in any 1h (9/1h sliding_window)], is [never more than 20 in any 1m (20/1m sliding_window); never more than 9 in any 1d (9/1d sliding_window)]; counters of `1m` kept, of `1d` reset",
    );
    assert_rule_change_description(
        "limits: [10/min]",
        "limits: [10/min, 5/s]",
        "added [never more than 5 in any 1s (5/1s sliding_window)]; counters of `1s` reset",
    );
    assert_rule_change_description(
        "limits: [10/min, 5/s]",
        "limits: [10/min]",
        "removed [never more than 5 in any 1s (5/1s sliding_window)]",
    );
    let bucket = |burst| {
        format!("limits: [{{ max: 9, window: 1s, algorithm: token_bucket, burst: {burst} }}]")
    };
    assert_rule_change_description(
        &bucket(5),
        &bucket(6),
        "was [5 at once, then 9 per 1s at a steady rate (9/1s token_bucket)], is [6 at once, then 9 per 1s at a steady rate (9/1s token_bucket)]; counters kept",
    );
}

#[test]
fn limit_name_and_precision_changes_are_described() {
    assert_rule_change_description(
        "limits: [{ max: 9, window: 1s }]",
        "limits: [{ max: 9, window: 1s, name: few }]",
        "was [`1s` counted as sliding_window:1s], is [`few` counted as sliding_window:1s]; counters reset",
    );
    assert_rule_change_description(
        "limits: [{ max: 9, window: 1h, algorithm: sliding_buckets }]",
        "limits: [{ max: 9, window: 1h, algorithm: sliding_buckets, precision: 1m }]",
        "was [`1h` counted as sliding_buckets:1h:6m], is [`1h` counted as sliding_buckets:1h:1m]; counters reset",
    );
}

#[test]
fn resolution_change_resets_counters_only_in_cluster() {
    let limit = |max, resolution| {
        format!("{{ max: {max}, window: 1m, algorithm: sliding_window, resolution: {resolution} }}")
    };
    let described = "never more than 90 in any 1m (90/1m sliding_window";
    assert_rule_change_description(
        &format!("limits: [{}]", limit(90, 32)),
        &format!("limits: [{}]", limit(90, 64)),
        &format!(
            "was [{described})], is [{described} with resolution 64)]; counters kept, counters in a cluster reset"
        ),
    );
    // The default resolution is the same as no resolution.
    assert_rule_change_description("limits: [90/min]", &format!("limits: [{}]", limit(90, 32)), "");
    assert_rule_change_description(
        &format!("limits: [5/s, {}]", limit(80, 8)),
        &format!("limits: [5/s, {}]", limit(90, 32)),
        &format!(
            "was [never more than 80 in any 1m (80/1m sliding_window with resolution 8)], is [{described})]; counters kept, counters of `1m` in a cluster reset"
        ),
    );
    assert_rule_change_description(
        &format!("limits: [5/s, {}]", limit(90, 8)),
        &format!("limits: [6/s, {}, 7/h]", limit(90, 32)),
        &format!(
            "was [never more than 5 in any 1s (5/1s sliding_window); {described} with resolution 8)], is [never more than 6 in any 1s (6/1s sliding_window); {described}); never more than 7 in any 1h (7/1h sliding_window)]; counters of `1s`, `1m` kept, of `1h` reset, counters of `1m` in a cluster reset"
        ),
    );
}

#[test]
fn changed_per_attributes_reset_counters() {
    let missing = "without it the rule does not apply";
    assert_rule_change_description(
        "limits: [9/s], per: [tenant]",
        "limits: [9/s], per: [user]",
        &format!(
            "was [counted per tenant; {missing}], is [counted per user; {missing}]; counters reset"
        ),
    );
    assert_rule_change_description(
        "limits: [9/s], per: [key]",
        "limits: [9/s], per: [key|ip]",
        &format!(
            "was [counted per key; {missing}], is [counted per key, or else ip; {missing}]; counters per ip reset"
        ),
    );
    assert_rule_change_description(
        "limits: [9/s], per: [ip]",
        "limits: [9/s], per: [ip], ipv6_prefix: 48",
        &format!(
            "was [counted per ip; {missing}], is [counted per ip; {missing}; IPv6 by /48]; counters of IPv6 addresses reset"
        ),
    );
    assert_rule_change_description(
        "limits: [9/s], per: [ip]",
        "limits: [9/s], per: [ip], redis: { split: { by: [user], into: 4 } }",
        "added [in Redis: each counter is split into 4, by user]; counters in Redis reset",
    );
}

#[test]
fn condition_and_mode_changes_are_described() {
    assert_rule_change_description(
        "limits: [9/s], when: { method: GET }",
        "limits: [9/s], when: { method: [GET, HEAD] }, mode: observe, charge: always, on_store_error: deny",
        "was [for requests whose method is `GET`], is [for requests whose method is `GET` or `HEAD`; only observes: never denies; denied requests are charged too, above max; while the store is unavailable, no request passes]",
    );
    assert_rule_change_description(
        "limits: [9/s], cluster: { max_unsynced: 4 }",
        "limits: [9/s], cluster: { on_partition: bounded }",
        "removed [in a cluster: a node allows at most 4 units per counter that are not yet replicated to all nodes]",
    );
}

#[test]
fn override_order_change_is_described() {
    let pro = "{ name: pro, when: { plan: pro }, limits: [90/s] }";
    let live = "{ when: { key: live }, limits: unlimited }";
    assert_rule_change_description(
        &format!("limits: [9/s], overrides: [{pro}, {live}]"),
        &format!("limits: [9/s], overrides: [{live}, {pro}]"),
        "the order of the overrides is now [key is `live`], `pro`",
    );
    assert_rule_change_description(
        &format!("limits: [9/s], overrides: [{pro}]"),
        &format!("limits: [9/s], overrides: [{live}, {pro}]"),
        "added [an override, if key is `live`: everything passes]",
    );
    assert_rule_change_description(
        "limits: [9/s]",
        &format!("limits: [9/s], overrides: [{pro}]"),
        "added [override `pro`, if plan is `pro`: never more than 90 in any 1s (90/1s sliding_window)]; counters kept",
    );
}

#[test]
fn long_description_is_cut_to_one_line() {
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
fn changed_attributes_are_described_by_domain() {
    let policy = |attributes: &str| {
        let rules = "rules: [{ name: a, per: [ip], limits: [1/s] }]";
        Policy::from_yaml(&format!("{attributes}\n{rules}")).unwrap()
    };
    let lines = |old: &str, new: &str| diff(&policy(old), &policy(new)).lines;
    assert_eq!(
        lines("attributes: [ip, user]", "attributes: { default: [ip, plan] }"),
        ["attributes of domain `default` have changed: was [user], is [plan]"]
    );
    assert_eq!(
        lines("", "attributes: [ip]"),
        ["attributes of domain `default` have changed: added [ip]"]
    );
    assert!(lines("attributes: [ip]", "attributes: { default: [ip] }").is_empty());
}
