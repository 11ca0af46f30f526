//! What a summary promises, held against exact counts; and what is told of it.

use std::collections::HashMap;
use std::iter;

use proptest::prelude::*;
use slidegate::Policy;

use super::label::KeyLabel;
use super::summary::{Merged, Summary, TopEntry};
use super::*;

/// Keys and costs, in the order in which they come. Low keys come more often.
fn streams() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let key = (0..40_u64, 0..40_u64).prop_map(|(one, other)| one * other / 40);
    prop::collection::vec((key, 1..20_u64), 0..300)
}

fn summary(stream: &[(u64, u64)], capacity: usize) -> Summary<u64> {
    let mut summary = Summary::default();
    for &(key, cost) in stream {
        summary.count(key, cost, |keys| keys < capacity, |label| *label = key);
    }
    summary
}

/// The promises, of all that was counted.
fn hold(stream: &[(u64, u64)], merged: &Merged<&u64>, capacity: u64) -> Result<(), TestCaseError> {
    let mut exact: HashMap<u64, u64> = HashMap::new();
    stream.iter().for_each(|(key, cost)| *exact.entry(*key).or_default() += cost);
    let total: u64 = exact.values().sum();
    prop_assert_eq!(merged.total(), total);
    let top_entries = merged.top_entries();
    prop_assert!(top_entries.len() as u64 <= capacity);
    prop_assert!(top_entries.is_sorted_by(|one, other| one.count >= other.count));
    for TopEntry { label, count, max_overcount } in &top_entries {
        let truth = exact[*label];
        prop_assert!(
            count - max_overcount <= truth && truth <= *count,
            "{truth}: {count} - {max_overcount}"
        );
        prop_assert!(
            max_overcount * capacity <= total,
            "an error of {max_overcount}, {total} in all"
        );
    }
    for (key, truth) in exact {
        let kept = top_entries.iter().any(|top_entries| *top_entries.label == key);
        prop_assert!(kept || truth * capacity <= total, "{key} came {truth} of {total}");
    }
    Ok(())
}

/// One by one, or in pairs, and pairs of these.
fn merge_all<L: Copy>(mut parts: Vec<Merged<L>>, in_pairs: bool, capacity: usize) -> Merged<L> {
    while parts.len() > 1 {
        let last = parts.pop().unwrap();
        let place = if in_pairs { 0 } else { parts.len() - 1 };
        let other = parts.remove(place);
        let place = if in_pairs { parts.len() } else { place };
        parts.insert(place, last.merge(other, capacity));
    }
    parts.pop().unwrap()
}

proptest! {
    #[test]
    fn counts_are_never_too_low_and_not_too_high_by_more_than_the_error(
        stream in streams(), capacity in 1..24_usize,
    ) {
        hold(&stream, &Merged::from(&summary(&stream, capacity)), capacity as u64)?;
    }

    #[test]
    fn parts_merged_in_any_order_promise_the_same_as_the_whole(
        stream in prop::collection::vec(streams(), 1..9),
        capacity in 1..24_usize,
        in_pairs in any::<bool>(),
    ) {
        let parts: Vec<_> = stream.iter().map(|part| summary(part, capacity)).collect();
        let merged = merge_all(parts.iter().map(Merged::from).collect(), in_pairs, capacity);
        hold(&stream.concat(), &merged, capacity as u64)?;
    }

    #[test]
    fn while_all_have_room_counts_are_exact(stream in streams()) {
        let summary = summary(&stream, 40);
        prop_assert!(Merged::from(&summary).top_entries().iter().all(|key| key.max_overcount == 0));
    }
}

#[test]
fn counts_at_the_end_of_numbers_stay_there() {
    let stream = [(1, u64::MAX), (1, 2), (2, u64::MAX), (3, u64::MAX), (4, 1)];
    let one = summary(&stream, 2);
    let merged = Merged::from(&one).merge(Merged::from(&one), 2);
    assert!(
        merged.top_entries().iter().all(|key| key.count == u64::MAX),
        "{:?}",
        merged.top_entries()
    );
}

fn policy(rules: usize) -> Policy {
    let rule = |nth| format!("  - {{ name: r{nth}, domain: api, per: [a], limits: [5/min] }}\n");
    let rules: String = (0..rules).map(rule).collect();
    Policy::from_yaml(&format!("rules:\n{rules}")).unwrap()
}

fn top(capacity: usize) -> TopKeys {
    TopKeys::new(capacity, Redactor::default(), Timestamp::from_secs(0))
}

fn at(seconds: u64) -> Timestamp {
    Timestamp::from_secs(seconds)
}

fn deny(top: &TopKeys, rule: &Rule, value: &str, now: u64) {
    top.count(TopList::Denied, rule, || iter::once(("a", value.into())), 1, at(now));
}

/// Values and counts of the first rule's denials.
fn denied(top: &TopKeys, now: u64) -> Vec<(String, u64)> {
    let rules = top.report(10, at(now)).rules;
    let keys = rules.into_iter().take(1).flat_map(|rule| rule.denied);
    keys.map(|key| (key.key[0].1.clone(), key.count)).collect()
}

#[test]
fn a_report_is_this_json() {
    let policy = Policy::from_yaml(
        "rules:
          - { name: per-tenant, domain: api, per: [tenant], limits: [5/min] }
          - { name: logins, per: [user, ip], limits: [5/min] }",
    );
    let policy = policy.unwrap();
    let [tenants, logins] = policy.rules() else { panic!("two rules") };
    let top = top(2);
    let tenant = |list, name: &str, cost| {
        top.count(list, tenants, || iter::once(("tenant", name.into())), cost, at(30));
    };
    tenant(TopList::Denied, "acme", 12);
    tenant(TopList::Denied, "globex", 2);
    tenant(TopList::Near, "globex", 3);
    tenant(TopList::Denied, "initech", 1);
    let network = Value::Network("2001:db8::/64".parse().unwrap());
    let login = || [("user", "eve".into()), ("ip", network)].into_iter();
    top.count(TopList::Denied, logins, login, 16, at(30));
    assert_eq!(
        serde_json::to_string(&top.report(10, at(42))).unwrap(),
        concat!(
            r#"{"since_seconds":42,"rules":["#,
            r#"{"domain":"default","rule":"logins","#,
            r#""denied":[{"key":{"user":"eve","ip":"2001:db8::/64"},"count":16,"max_overcount":0}],"near":[]},"#,
            r#"{"domain":"api","rule":"per-tenant","#,
            r#""denied":[{"key":{"tenant":"acme"},"count":12,"max_overcount":0},"#,
            r#"{"key":{"tenant":"initech"},"count":3,"max_overcount":2}],"#,
            r#""near":[{"key":{"tenant":"globex"},"count":3,"max_overcount":0}]}]}"#,
        )
    );
    assert_eq!(top.report(1, at(42)).rules[1].denied.len(), 1);
}

#[test]
fn what_would_have_been_denied_is_told_apart() {
    let (top, policy) = (top(4), policy(1));
    top.count(TopList::Observed, &policy.rules()[0], || iter::once(("a", "x".into())), 1, at(0));
    let json = serde_json::to_value(top.report(10, at(0))).unwrap();
    let rule = &json["rules"][0];
    assert_eq!(
        rule["observed"],
        serde_json::json!([{"key": {"a": "x"}, "count": 1, "max_overcount": 0}])
    );
    assert_eq!(rule["denied"], serde_json::json!([]));
}

#[test]
fn what_is_older_than_five_minutes_is_forgotten_and_what_is_younger_than_four_is_not() {
    let (top, policy) = (top(8), policy(1));
    for minute in 0..20 {
        let now = minute * 60 + 59;
        deny(&top, &policy.rules()[0], &format!("m{minute:02}"), now);
        let mut told: Vec<_> = denied(&top, now).into_iter().map(|(value, _)| value).collect();
        told.sort();
        let live = (minute.saturating_sub(4)..=minute).map(|minute| format!("m{minute:02}"));
        assert_eq!(told, live.collect::<Vec<_>>());
    }
    assert_eq!(denied(&top, 20 * 60).len(), 4);
    assert_eq!(denied(&top, 24 * 60).len(), 0);
}

#[test]
fn who_comes_late_is_counted_in_the_minute_in_which_it_was_denied() {
    let (top, policy) = (top(8), policy(1));
    let rule = &policy.rules()[0];
    for (value, now) in [("b", 600), ("a", 599), ("b", 601), ("old", 60)] {
        deny(&top, rule, value, now);
    }
    assert_eq!(denied(&top, 601), [("b".to_owned(), 2), ("a".to_owned(), 1)]);
    assert_eq!(denied(&top, 9 * 60 + 300), [("b".to_owned(), 2)]);
}

#[test]
fn a_report_tells_how_far_back_it_reaches() {
    let top = TopKeys::new(8, Redactor::default(), at(90));
    let since = |now| top.report(10, at(now)).since_seconds;
    assert_eq!([90, 100, 329, 330, 360, 719, 720].map(since), [0, 10, 239, 240, 240, 299, 240]);
}

#[test]
fn a_hashed_value_is_never_kept() {
    let redact = Redactor::new(true);
    let (top, policy) = (TopKeys::new(8, redact.clone(), at(0)), policy(1));
    deny(&top, &policy.rules()[0], "secret", 0);
    assert_eq!(denied(&top, 0), [(redact.redact("a", "secret".into()).to_string(), 1)]);
    assert!(!format!("{top:?}").contains("\"secret"), "{top:?}");
}

#[test]
fn long_values_that_begin_alike_are_counted_apart() {
    let (top, policy) = (top(8), policy(1));
    for end in ["1", "2", "2"] {
        deny(&top, &policy.rules()[0], &("x".repeat(1_023) + end), 0);
    }
    assert_eq!(denied(&top, 0).into_iter().map(|(_, count)| count).collect::<Vec<_>>(), [2, 1]);
}

#[test]
fn a_flood_of_a_million_keys_takes_no_more_room_and_hides_nobody_who_is_denied_much() {
    let (top, policy) = (top(64), policy(1));
    let rule = &policy.rules()[0];
    for nth in 0..1_000_000_u64 {
        let value = if nth % 50 == 0 { "acme".to_owned() } else { nth.to_string() };
        deny(&top, rule, &value, nth / 3_000);
    }
    assert_eq!(top.key_budget.remaining(), key_budget::MAX_KEYS - 5 * 64);
    let most = &top.report(1, at(333)).rules[0].denied[0];
    // Minutes 1 to 5 have 820,000 of them: all but the 180,000 of minute 0.
    assert_eq!(most.key, [("a".to_owned(), "acme".to_owned())]);
    assert!(most.count >= 16_400 && most.count - most.max_overcount <= 16_400, "{most:?}");
    assert!(most.max_overcount <= 820_000 / 64);
}

#[test]
fn ten_thousand_rules_share_what_room_there_is_and_give_it_back() {
    let (key_budget, policy) = (KeyBudget::new(4_096), policy(10_000));
    let top = TopKeys::with_key_budget(64, Redactor::default(), at(0), key_budget.clone());
    for nth in 0..64 {
        for rule in policy.rules() {
            deny(&top, rule, &nth.to_string(), 0);
        }
    }
    let report = top.report(100, at(0));
    let lengths = || report.rules.iter().map(|rule| rule.denied.len());
    assert_eq!(
        (report.rules.len(), lengths().sum::<usize>()),
        (10_000, 4_096 - key_budget.remaining())
    );
    // The next minute finds no room, until the first is too old.
    deny(&top, &policy.rules()[0], "x", 60);
    for _ in 0..SHARDS {
        deny(&top, &policy.rules()[0], "y", 300);
    }
    let all = SHARDS as u64;
    assert_eq!((denied(&top, 300), key_budget.remaining()), (vec![("y".to_owned(), all)], 4_095));
    assert_eq!(top.shards.iter().map(|shard| shard.read().len()).sum::<usize>(), 1);
}

#[test]
fn a_rule_beyond_the_bound_is_not_counted() {
    let (top, first, more) = (top(1), policy(10_000), policy(1));
    let renamed: Vec<Policy> = (0..2)
        .map(|nth| {
            let names = (0..10_000)
                .map(|rule| format!("  - {{ name: n{nth}-{rule}, per: [a], limits: [5/min] }}\n"));
            Policy::from_yaml(&format!("rules:\n{}", names.collect::<String>())).unwrap()
        })
        .collect();
    for policy in iter::once(&first).chain(&renamed) {
        policy.rules().iter().for_each(|rule| deny(&top, rule, "x", 0));
    }
    deny(&top, &more.rules()[0], "x", 0);
    assert_eq!(top.report(1, at(0)).rules.len(), SHARDS * MAX_RULES_PER_SHARD);
}

#[test]
fn who_counts_at_once_is_counted() {
    let (top, policy) = (top(64), policy(4));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (top, policy) = (&top, &policy);
            scope.spawn(move || {
                for nth in 0..5_000 {
                    deny(top, &policy.rules()[nth % 4], "x", (nth / 50) as u64 * (thread % 2));
                }
            });
        }
    });
    let told =
        |now| top.report(1, at(now)).rules.iter().map(|rule| rule.denied[0].count).sum::<u64>();
    assert_eq!(told(99), 20_000);
}

#[test]
fn a_label_is_written_anew_for_each_who_takes_a_place() {
    let mut summary: Summary<KeyLabel> = Summary::default();
    for (key, value) in [(1, "a long one"), (2, "b"), (3, "c")] {
        let identity = || iter::once(("a", value.into()));
        summary.count(
            key,
            1,
            |keys| keys < 1,
            |label| label.write(identity(), &Redactor::default()),
        );
    }
    let merged = Merged::from(&summary);
    let told = merged.top_entries();
    assert_eq!(told.len(), 1);
    assert_eq!(told[0].label.pairs().collect::<Vec<_>>(), [("a", "c")]);
}
