//! `docs/POLICY.md` names every field of a policy, what holds without it, and every bound.

use std::collections::BTreeSet;

use serde_json::Value;
use slidegate::policy::file::{
    CLIENT_CHOSEN, MAX_COMBINATIONS, MAX_LIMITS, MAX_OVERRIDES, MAX_PER, MAX_POLICY_BYTES,
    MAX_RULES, MAX_SPLIT_BY, schema,
};
use slidegate::{MAX_UNITS, Policy, RedisOptions};

use crate::read;

/// The heading of a table, and the schema's name of what it is a table of.
const TABLES: [(&str, &str); 10] = [
    ("Of the policy", ""),
    ("Of `defaults`", "DefaultsEntry"),
    ("Of a rule", "RuleEntry"),
    ("Of an override", "OverrideEntry"),
    ("Of a limit", "LimitMap"),
    ("Of a mode", "EnforceMap"),
    ("Of `redis`", "RedisEntry"),
    ("Of `split`", "SplitEntry"),
    ("Of `cluster`", "ClusterEntry"),
    ("Of a condition", "ConditionMap"),
];

/// The rows of the table below a heading: field, what holds without it, what it takes.
fn rows(heading: &str) -> Vec<[String; 3]> {
    let document = read("docs/POLICY.md");
    let (_, section) = document
        .split_once(&format!("\n### {heading}\n"))
        .unwrap_or_else(|| panic!("no heading `{heading}`"));
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells = |row: &str| row.trim_matches('|').split(" | ").map(cell).collect::<Vec<_>>();
    let rows =
        rows.map(|row| cells(row).try_into().unwrap_or_else(|_| panic!("three cells: {row}")));
    rows.collect()
}

fn cell(text: &str) -> String {
    text.trim().to_owned()
}

fn unquoted(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn tables_list_exactly_the_schema_fields() {
    let schema = serde_json::to_value(schema()).unwrap();
    let definitions = schema["$defs"].as_object().unwrap();
    let told: BTreeSet<&str> = TABLES.iter().map(|(_, name)| *name).collect();
    for (name, definition) in definitions {
        let has_fields = definition.get("properties").is_some();
        assert!(!has_fields || told.contains(name.as_str()), "no table of {name}");
    }
    for (heading, name) in TABLES {
        let definition = if name.is_empty() { &schema } else { &definitions[name] };
        let fields: BTreeSet<&str> =
            definition["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let rows = rows(heading);
        let told: BTreeSet<&str> = rows.iter().map(|[name, ..]| unquoted(name).unwrap()).collect();
        assert_eq!(told, fields, "in the table `{heading}`");
    }
}

#[test]
fn every_keyword_is_documented() {
    fn words<'s>(schema: &'s Value, found: &mut Vec<&'s str>) {
        match schema {
            Value::Object(map) => {
                let of = |name: &str| map.get(name).into_iter();
                let listed = of("enum").filter_map(Value::as_array).flatten();
                found.extend(listed.chain(of("const")).filter_map(Value::as_str));
                map.values().for_each(|value| words(value, found));
            }
            Value::Array(list) => list.iter().for_each(|value| words(value, found)),
            _ => {}
        }
    }
    let schema = serde_json::to_value(schema()).unwrap();
    let (document, mut all) = (read("docs/POLICY.md"), Vec::new());
    words(&schema, &mut all);
    assert!(
        all.contains(&"observe") && all.contains(&"sliding_log") && all.contains(&"clock"),
        "{all:?}"
    );
    for word in all {
        assert!(document.contains(&format!("`{word}`")), "`{word}` is not told");
    }
}

#[test]
fn documented_defaults_match_the_parser() {
    // How a policy is understood where a field is absent, and where it says what the table says.
    let understood = |yaml: &str| format!("{:?}", Policy::from_yaml(yaml).expect(yaml).rules());
    let mut held = 0;
    for (heading, before, behind) in [
        ("Of the policy", "", "\nrules: [{ name: a, per: [ip], limits: [100/min] }]"),
        ("Of `defaults`", "rules: [{ name: a, per: [ip], limits: [100/min] }]\ndefaults: { ", " }"),
        ("Of a rule", "rules: [{ name: a, per: [ip], limits: [100/min], ", " }]"),
        ("Of a limit", "rules: [{ name: a, per: [ip], limits: [{ max: 9, window: 1m, ", " }] }]"),
        ("Of `cluster`", "rules: [{ name: a, limits: [9/s], cluster: { max_unsynced: 9, ", " } }]"),
    ] {
        for [field, absent, _] in rows(heading) {
            let (Some(field), Some(value)) = (unquoted(&field), unquoted(&absent)) else {
                continue;
            };
            let algorithm = match field {
                "precision" => "algorithm: sliding_buckets, ",
                "burst" | "max_debt" => "algorithm: token_bucket, ",
                "align" => "algorithm: fixed_window, ",
                _ => "",
            };
            let with = understood(&format!("{before}{algorithm}{field}: {value}{behind}"));
            let without = understood(&format!("{before}{algorithm}{behind}"));
            assert_eq!(with, without, "{heading}: {field}: {value}");
            held += 1;
        }
    }
    assert!(held >= 15, "{held} fields");
}

#[test]
fn client_chosen_attributes_are_documented() {
    let document = read("docs/POLICY.md");
    for section in ["## `per`: who is counted", "### Warnings"] {
        let (_, section) = document.split_once(&format!("\n{section}\n")).unwrap();
        let section = section.split("\n##").next().unwrap();
        for name in CLIENT_CHOSEN {
            assert!(section.contains(&format!("`{name}`")), "{name} in {section}");
        }
    }
}

#[test]
fn documented_bounds_match_the_program() {
    let thousands = |number: u64| {
        let digits = number.to_string();
        let groups: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| str::from_utf8(group).unwrap())
            .collect();
        groups.join(",")
    };
    let document = read("docs/POLICY.md");
    let (_, section) = document.split_once("\n### Bounds\n").unwrap();
    let section = section.split("\n#").next().unwrap();
    for (what, most) in [
        ("rules", MAX_RULES as u64),
        ("limits of a rule", MAX_LIMITS as u64),
        ("overrides of a rule", MAX_OVERRIDES as u64),
        ("attributes in `per`", MAX_PER as u64),
        ("attributes in `by`", MAX_SPLIT_BY as u64),
        ("parts of a split", RedisOptions::MAX_PARTS.into()),
        ("combinations of names", MAX_COMBINATIONS as u64),
        ("`max`, `burst`, `max_debt`, `cost`, `required`, `max_unsynced`", MAX_UNITS),
        ("`max` of `sliding_log`", slidegate::algorithm::sliding_log::MAX_ENTRIES),
        ("buckets", slidegate::algorithm::sliding_buckets::MAX_BUCKETS),
    ] {
        let row = format!("\n| {what} | {} |", thousands(most));
        assert!(section.contains(&row), "should have{row}");
    }
    assert!(section.contains(&format!("\n| size of the file | {} MiB |", MAX_POLICY_BYTES >> 20)));
}
