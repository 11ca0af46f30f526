//! Property tests that compare summaries of frequent keys with exact counts, and tests of the report of top keys.

use std::collections::HashMap;
use std::iter;

use proptest::prelude::*;
use slidegate::Policy;

use super::label::KeyLabel;
use super::summary::{MergedSummary, Summary, TopEntry};
use super::*;

/// Generates a stream of keys with amounts, in order of arrival. Low keys are more frequent.
fn arbitrary_keys_and_amounts() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let key = (0..40_u64, 0..40_u64).prop_map(|(left, right)| left * right / 40);
    prop::collection::vec((key, 1..20_u64), 0..300)
}

fn build_summary(stream: &[(u64, u64)], capacity: usize) -> Summary<u64> {
    let mut summary = Summary::default();
    for &(key, amount) in stream {
        summary.add(key, amount, |keys| keys < capacity, |label| *label = key);
    }
    summary
}

/// Checks the guarantees of a merged summary against the exact counts of the whole stream of keys.
fn assert_summary_guarantees(
    stream: &[(u64, u64)],
    merged: &MergedSummary<&u64>,
    capacity: u64,
) -> Result<(), TestCaseError> {
    let mut exact: HashMap<u64, u64> = HashMap::new();
    stream.iter().for_each(|(key, amount)| *exact.entry(*key).or_default() += amount);
    let total: u64 = exact.values().sum();
    prop_assert_eq!(merged.total(), total);
    let entries = merged.top_entries();
    prop_assert!(entries.len() as u64 <= capacity);
    prop_assert!(entries.is_sorted_by(|left, right| left.count >= right.count));
    for TopEntry { label, count, max_overcount } in &entries {
        let truth = exact[*label];
        prop_assert!(
            count - max_overcount <= truth && truth <= *count,
            "{truth}: {count} - {max_overcount}"
        );
        prop_assert!(
            max_overcount * capacity <= total,
            "max_overcount {max_overcount} of total {total}"
        );
    }
    for (key, truth) in exact {
        let kept = entries.iter().any(|entry| *entry.label == key);
        prop_assert!(kept || truth * capacity <= total, "{key}: {truth} of {total}");
    }
    Ok(())
}

/// Merges the summaries `parts` into one summary. If `in_pairs` is `true`, merges the summaries in pairs, and then the
/// results in pairs. Otherwise merges one summary after the other into the same result.
fn merge_summaries<L: Copy>(
    mut parts: Vec<MergedSummary<L>>,
    in_pairs: bool,
    capacity: usize,
) -> MergedSummary<L> {
    while parts.len() > 1 {
        let last = parts.pop().unwrap();
        let index = if in_pairs { 0 } else { parts.len() - 1 };
        let other = parts.remove(index);
        let index = if in_pairs { parts.len() } else { index };
        parts.insert(index, last.merge(other, capacity));
    }
    parts.pop().unwrap()
}

proptest! {
    #[test]
    fn summary_count_error_is_at_most_max_overcount(
        stream in arbitrary_keys_and_amounts(), capacity in 1..24_usize,
    ) {
        assert_summary_guarantees(&stream, &MergedSummary::from(&build_summary(&stream, capacity)), capacity as u64)?;
    }

    #[test]
    fn summary_guarantees_hold_for_any_merge_order(
        stream in prop::collection::vec(arbitrary_keys_and_amounts(), 1..9),
        capacity in 1..24_usize,
        in_pairs in any::<bool>(),
    ) {
        let parts: Vec<_> = stream.iter().map(|part| build_summary(part, capacity)).collect();
        let merged = merge_summaries(parts.iter().map(MergedSummary::from).collect(), in_pairs, capacity);
        assert_summary_guarantees(&stream.concat(), &merged, capacity as u64)?;
    }

    #[test]
    fn summary_counts_below_capacity_are_exact(stream in arbitrary_keys_and_amounts()) {
        let summary = build_summary(&stream, 40);
        prop_assert!(MergedSummary::from(&summary).top_entries().iter().all(|key| key.max_overcount == 0));
    }
}

#[test]
fn summary_counts_saturate_at_u64_max() {
    let stream = [(1, u64::MAX), (1, 2), (2, u64::MAX), (3, u64::MAX), (4, 1)];
    let one = build_summary(&stream, 2);
    let merged = MergedSummary::from(&one).merge(MergedSummary::from(&one), 2);
    assert!(
        merged.top_entries().iter().all(|key| key.count == u64::MAX),
        "{:?}",
        merged.top_entries()
    );
}

fn policy_with_rules(rules: usize) -> Policy {
    let rule = |nth| format!("  - {{ name: r{nth}, domain: api, per: [a], limits: [5/min] }}\n");
    let rules: String = (0..rules).map(rule).collect();
    Policy::from_yaml(&format!("rules:\n{rules}")).unwrap()
}

fn new_top_keys(capacity: usize) -> TopKeys {
    TopKeys::new(capacity, Redactor::default(), Timestamp::from_secs(0))
}

fn timestamp_at_seconds(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn record_denial(top: &TopKeys, rule: &Rule, value: &str, now: u64) {
    top.record(
        TopList::Denied,
        rule,
        || iter::once(("a", value.into())),
        1,
        timestamp_at_seconds(now),
    );
}

/// Returns the values and counts of the denied keys of the first rule in the report.
fn list_denied_keys(top: &TopKeys, now: u64) -> Vec<(String, u64)> {
    let rules = top.report(10, timestamp_at_seconds(now)).rules;
    let keys = rules.into_iter().take(1).flat_map(|rule| rule.denied);
    keys.map(|key| (key.key[0].1.clone(), key.count)).collect()
}

#[test]
fn top_keys_report_serializes_to_json() {
    let policy = Policy::from_yaml(
        "rules:
          - { name: per-tenant, domain: api, per: [tenant], limits: [5/min] }
          - { name: logins, per: [user, ip], limits: [5/min] }",
    );
    let policy = policy.unwrap();
    let [tenants, logins] = policy.rules() else { panic!("two rules") };
    let top = new_top_keys(2);
    let tenant = |list, name: &str, amount| {
        top.record(
            list,
            tenants,
            || iter::once(("tenant", name.into())),
            amount,
            timestamp_at_seconds(30),
        );
    };
    tenant(TopList::Denied, "acme", 11);
    tenant(TopList::Denied, "globex", 2);
    tenant(TopList::Near, "globex", 3);
    // Counted in the filter, and then listed in place of a key that is as frequent.
    tenant(TopList::Denied, "initech", 1);
    tenant(TopList::Denied, "initech", 1);
    let network = Value::Network { address: "2001:db8::".parse().unwrap(), prefix_bits: 64 };
    let login = || [("user", "eve".into()), ("ip", network)].into_iter();
    top.record(TopList::Denied, logins, login, 16, timestamp_at_seconds(30));
    assert_eq!(
        serde_json::to_string(&top.report(10, timestamp_at_seconds(42))).unwrap(),
        concat!(
            r#"{"since_seconds":42,"rules":["#,
            r#"{"domain":"default","rule":"logins","#,
            r#""denied":[{"key":{"user":"eve","ip":"2001:db8::/64"},"count":16,"max_overcount":0}],"near":[]},"#,
            r#"{"domain":"api","rule":"per-tenant","#,
            r#""denied":[{"key":{"tenant":"acme"},"count":11,"max_overcount":0},"#,
            r#"{"key":{"tenant":"initech"},"count":2,"max_overcount":1}],"#,
            r#""near":[{"key":{"tenant":"globex"},"count":3,"max_overcount":0}]}]}"#,
        )
    );
    assert_eq!(top.report(1, timestamp_at_seconds(42)).rules[1].denied.len(), 1);
}

#[test]
fn keys_over_observed_limits_are_listed_separately() {
    let (top, policy) = (new_top_keys(4), policy_with_rules(1));
    top.record(
        TopList::Observed,
        &policy.rules()[0],
        || iter::once(("a", "x".into())),
        1,
        timestamp_at_seconds(0),
    );
    let json = serde_json::to_value(top.report(10, timestamp_at_seconds(0))).unwrap();
    let rule = &json["rules"][0];
    assert_eq!(
        rule["observed"],
        serde_json::json!([{"key": {"a": "x"}, "count": 1, "max_overcount": 0}])
    );
    assert_eq!(rule["denied"], serde_json::json!([]));
}

#[test]
fn key_counts_expire_within_five_minutes() {
    let (top, policy) = (new_top_keys(8), policy_with_rules(1));
    for minute in 0..20 {
        let now = minute * 60 + 59;
        record_denial(&top, &policy.rules()[0], &format!("m{minute:02}"), now);
        let mut reported: Vec<_> =
            list_denied_keys(&top, now).into_iter().map(|(value, _)| value).collect();
        reported.sort();
        let live = (minute.saturating_sub(4)..=minute).map(|minute| format!("m{minute:02}"));
        assert_eq!(reported, live.collect::<Vec<_>>());
    }
    assert_eq!(list_denied_keys(&top, 20 * 60).len(), 4);
    assert_eq!(list_denied_keys(&top, 24 * 60).len(), 0);
}

#[test]
fn denial_recorded_late_counts_in_its_own_minute() {
    let (top, policy) = (new_top_keys(8), policy_with_rules(1));
    let rule = &policy.rules()[0];
    for (value, now) in [("b", 600), ("a", 599), ("b", 601), ("old", 60)] {
        record_denial(&top, rule, value, now);
    }
    assert_eq!(list_denied_keys(&top, 601), [("b".to_owned(), 2), ("a".to_owned(), 1)]);
    assert_eq!(list_denied_keys(&top, 9 * 60 + 300), [("b".to_owned(), 2)]);
}

#[test]
fn top_keys_report_states_covered_seconds() {
    let top = TopKeys::new(8, Redactor::default(), timestamp_at_seconds(90));
    let since = |now| top.report(10, timestamp_at_seconds(now)).since_seconds;
    assert_eq!([90, 100, 329, 330, 360, 719, 720].map(since), [0, 10, 239, 240, 240, 299, 240]);
}

#[test]
fn hashed_value_is_not_kept_as_plain_text() {
    let redact = Redactor::new(true);
    let (top, policy) =
        (TopKeys::new(8, redact.clone(), timestamp_at_seconds(0)), policy_with_rules(1));
    record_denial(&top, &policy.rules()[0], "secret", 0);
    assert_eq!(list_denied_keys(&top, 0), [(redact.redact("a", "secret".into()).to_string(), 1)]);
    assert!(!format!("{top:?}").contains("\"secret"), "{top:?}");
}

#[test]
fn long_values_with_equal_prefix_count_separately() {
    let (top, policy) = (new_top_keys(8), policy_with_rules(1));
    for end in ["1", "2", "2"] {
        record_denial(&top, &policy.rules()[0], &("x".repeat(1_023) + end), 0);
    }
    assert_eq!(
        list_denied_keys(&top, 0).into_iter().map(|(_, count)| count).collect::<Vec<_>>(),
        [2, 1]
    );
}

#[test]
fn frequent_key_is_listed_despite_many_keys() {
    let (top, policy) = (new_top_keys(64), policy_with_rules(1));
    let rule = &policy.rules()[0];
    for nth in 0..1_000_000_u64 {
        let value = if nth % 50 == 0 { "acme".to_owned() } else { nth.to_string() };
        record_denial(&top, rule, &value, nth / 3_000);
    }
    assert_eq!(top.key_budget.remaining(), key_budget::MAX_KEYS - 5 * 64);
    let top_key = &top.report(1, timestamp_at_seconds(333)).rules[0].denied[0];
    // Minutes 1 to 5 received 820,000 requests: all but the 180,000 of minute 0.
    assert_eq!(top_key.key, [("a".to_owned(), "acme".to_owned())]);
    assert!(
        top_key.count >= 16_400 && top_key.count - top_key.max_overcount <= 16_400,
        "{top_key:?}"
    );
    assert!(top_key.max_overcount <= 820_000 / 64);
}

#[test]
fn expired_minutes_return_keys_to_shared_budget() {
    let (key_budget, policy) = (KeyBudget::new(4_096), policy_with_rules(10_000));
    let top = TopKeys::with_key_budget(
        64,
        Redactor::default(),
        timestamp_at_seconds(0),
        key_budget.clone(),
    );
    for nth in 0..64 {
        for rule in policy.rules() {
            record_denial(&top, rule, &nth.to_string(), 0);
        }
    }
    let report = top.report(100, timestamp_at_seconds(0));
    let lengths = || report.rules.iter().map(|rule| rule.denied.len());
    assert_eq!(
        (report.rules.len(), lengths().sum::<usize>()),
        (10_000, 4_096 - key_budget.remaining())
    );
    // The next minute finds no budget until the first minute expires.
    record_denial(&top, &policy.rules()[0], "x", 60);
    for _ in 0..RULE_SHARD_COUNT {
        record_denial(&top, &policy.rules()[0], "y", 300);
    }
    let all = RULE_SHARD_COUNT as u64;
    assert_eq!(
        (list_denied_keys(&top, 300), key_budget.remaining()),
        (vec![("y".to_owned(), all)], 4_095)
    );
    assert_eq!(top.shards.iter().map(|shard| shard.read().len()).sum::<usize>(), 1);
}

#[test]
fn rule_beyond_max_rules_is_not_counted() {
    let (top, first, more) = (new_top_keys(1), policy_with_rules(10_000), policy_with_rules(1));
    let renamed: Vec<Policy> = (0..2)
        .map(|nth| {
            let names = (0..10_000)
                .map(|rule| format!("  - {{ name: n{nth}-{rule}, per: [a], limits: [5/min] }}\n"));
            Policy::from_yaml(&format!("rules:\n{}", names.collect::<String>())).unwrap()
        })
        .collect();
    for policy in iter::once(&first).chain(&renamed) {
        policy.rules().iter().for_each(|rule| record_denial(&top, rule, "x", 0));
    }
    record_denial(&top, &more.rules()[0], "x", 0);
    assert_eq!(
        top.report(1, timestamp_at_seconds(0)).rules.len(),
        RULE_SHARD_COUNT * MAX_RULES_PER_SHARD
    );
}

#[test]
fn concurrent_denials_are_all_counted() {
    let (top, policy) = (new_top_keys(64), policy_with_rules(4));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (top, policy) = (&top, &policy);
            scope.spawn(move || {
                for nth in 0..5_000 {
                    record_denial(
                        top,
                        &policy.rules()[nth % 4],
                        "x",
                        (nth / 50) as u64 * (thread % 2),
                    );
                }
            });
        }
    });
    let reported = |now| {
        top.report(1, timestamp_at_seconds(now))
            .rules
            .iter()
            .map(|rule| rule.denied[0].count)
            .sum::<u64>()
    };
    assert_eq!(reported(99), 20_000);
}

#[test]
fn new_key_overwrites_label_of_replaced_key() {
    let mut summary: Summary<KeyLabel> = Summary::default();
    for (key, value) in [(1, "a long one"), (2, "b"), (3, "c")] {
        let identity = || iter::once(("a", value.into()));
        summary.add(key, 1, |keys| keys < 1, |label| label.write(identity(), &Redactor::default()));
    }
    let merged = MergedSummary::from(&summary);
    let reported = merged.top_entries();
    assert_eq!(reported.len(), 1);
    assert_eq!(reported[0].label.pairs().collect::<Vec<_>>(), [("a", "c")]);
}
