//! Tests that `docs/reference/policy.md` documents every field of a policy, with its default value and its bounds.

use std::collections::BTreeSet;

use serde_json::Value;
use slidegate::Policy;
use slidegate::limit::MAX_SMALL_UNITS;
use slidegate::limit::MAX_UNITS;
use slidegate::policy::file::{
    CLIENT_CHOSEN_ATTRIBUTES, MAX_KEY_ATTRIBUTE_COMBINATIONS, MAX_LIMITS_PER_RULE, MAX_OVERRIDES,
    MAX_PER_ENTRIES, MAX_POLICY_BYTES, MAX_RULES, MAX_SPLIT_ATTRIBUTES, schema,
};
use slidegate::store::RedisOptions;

use crate::docs::read_document;

/// The tables of policy fields in `docs/reference/policy.md`. An entry consists of the heading above the table, and the
/// name of the JSON Schema definition with the same fields. An empty name refers to the top level of the schema, which
/// describes the whole policy.
const DOCUMENTED_FIELD_TABLES: [(&str, &str); 11] = [
    ("Policy fields", ""),
    ("Fields of `defaults`", "DefaultsSpec"),
    ("Rule fields", "RuleSpec"),
    ("Override fields", "OverrideSpec"),
    ("Limit fields", "LimitMap"),
    ("Mode fields", "EnforceMap"),
    ("Fields of `redis`", "RedisSpec"),
    ("Fields of `split`", "SplitSpec"),
    ("Fields of `cluster`", "ClusterSpec"),
    ("Condition fields", "ConditionMap"),
    ("Fields of `block`", "BlockMap"),
];

/// Returns the rows of the table below a heading in `docs/reference/policy.md`. A row has three cells: field, default,
/// and accepted values.
fn documented_table_rows(heading: &str) -> Vec<[String; 3]> {
    let document = read_document("docs/reference/policy.md");
    let (_, section) = document
        .split_once(&format!("\n### {heading}\n"))
        .unwrap_or_else(|| panic!("no heading `{heading}`"));
    let section = section.split("\n#").next().unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let cells =
        |row: &str| row.trim_matches('|').split(" | ").map(trim_to_owned).collect::<Vec<_>>();
    let rows =
        rows.map(|row| cells(row).try_into().unwrap_or_else(|_| panic!("three cells: {row}")));
    rows.collect()
}

fn trim_to_owned(text: &str) -> String {
    text.trim().to_owned()
}

/// Returns the text of a table cell without the enclosing backticks, or `None` if the cell is not enclosed in
/// backticks.
fn strip_backticks(cell: &str) -> Option<&str> {
    cell.strip_prefix('`')?.strip_suffix('`')
}

#[test]
fn documented_field_tables_list_exactly_schema_fields() {
    let schema = serde_json::to_value(schema()).unwrap();
    let definitions = schema["$defs"].as_object().unwrap();
    let documented: BTreeSet<&str> =
        DOCUMENTED_FIELD_TABLES.iter().map(|(_, name)| *name).collect();
    for (name, definition) in definitions {
        let has_fields = definition.get("properties").is_some();
        assert!(!has_fields || documented.contains(name.as_str()), "no table for {name}");
    }
    for (heading, name) in DOCUMENTED_FIELD_TABLES {
        let definition = if name.is_empty() { &schema } else { &definitions[name] };
        let fields: BTreeSet<&str> =
            definition["properties"].as_object().unwrap().keys().map(String::as_str).collect();
        let rows = documented_table_rows(heading);
        let documented: BTreeSet<&str> =
            rows.iter().map(|[name, ..]| strip_backticks(name).unwrap()).collect();
        assert_eq!(documented, fields, "in the table `{heading}`");
    }
}

#[test]
fn every_enum_value_in_schema_is_documented() {
    fn collect_schema_enum_values<'s>(schema: &'s Value, found: &mut Vec<&'s str>) {
        match schema {
            Value::Object(map) => {
                let values = |name: &str| map.get(name).into_iter();
                let listed = values("enum").filter_map(Value::as_array).flatten();
                found.extend(listed.chain(values("const")).filter_map(Value::as_str));
                map.values().for_each(|value| collect_schema_enum_values(value, found));
            }
            Value::Array(list) => {
                list.iter().for_each(|value| collect_schema_enum_values(value, found))
            }
            _ => {}
        }
    }
    let schema = serde_json::to_value(schema()).unwrap();
    let (document, mut all) = (read_document("docs/reference/policy.md"), Vec::new());
    collect_schema_enum_values(&schema, &mut all);
    assert!(
        all.contains(&"observe") && all.contains(&"sliding_log") && all.contains(&"clock"),
        "{all:?}"
    );
    for keyword in all {
        assert!(document.contains(&format!("`{keyword}`")), "`{keyword}` is not documented");
    }
}

#[test]
fn documented_defaults_match_parser() {
    // A field that is absent must have the same effect as the field with its documented default.
    let parsed_rules = |yaml: &str| format!("{:?}", Policy::from_yaml(yaml).expect(yaml).rules());
    let mut checked = 0;
    for (heading, before, after) in [
        ("Policy fields", "", "\nrules: [{ name: a, per: [ip], limits: [100/min] }]"),
        (
            "Fields of `defaults`",
            "rules: [{ name: a, per: [ip], limits: [100/min] }]\ndefaults: { ",
            " }",
        ),
        ("Rule fields", "rules: [{ name: a, per: [ip], limits: [100/min], ", " }]"),
        ("Limit fields", "rules: [{ name: a, per: [ip], limits: [{ max: 9, window: 1m, ", " }] }]"),
        (
            "Fields of `cluster`",
            "rules: [{ name: a, limits: [9/s], cluster: { max_unsynced: 9, ",
            " } }]",
        ),
    ] {
        for [field, default, _] in documented_table_rows(heading) {
            let (Some(field), Some(value)) = (strip_backticks(&field), strip_backticks(&default))
            else {
                continue;
            };
            // A limit with a calendar has no window.
            let period = match field {
                "timezone" | "starts" => "calendar: day",
                "week_starts" => "calendar: week",
                _ => "window: 1m",
            };
            let before = before.replace("window: 1m", period);
            let algorithm = match field {
                "precision" => "algorithm: sliding_buckets, ",
                "burst" | "max_debt" => "algorithm: token_bucket, ",
                "align" => "algorithm: fixed_window, ",
                _ => "",
            };
            let with_default = parsed_rules(&format!("{before}{algorithm}{field}: {value}{after}"));
            let without_field = parsed_rules(&format!("{before}{algorithm}{after}"));
            assert_eq!(with_default, without_field, "{heading}: {field}: {value}");
            checked += 1;
        }
    }
    assert!(checked >= 15, "{checked} fields");
}

#[test]
fn client_chosen_attributes_are_documented() {
    let document = read_document("docs/reference/policy.md");
    for section in ["## `per`: counted attributes", "### Warnings"] {
        let (_, section) = document.split_once(&format!("\n{section}\n")).unwrap();
        let section = section.split("\n##").next().unwrap();
        for name in CLIENT_CHOSEN_ATTRIBUTES {
            assert!(section.contains(&format!("`{name}`")), "{name} in {section}");
        }
    }
}

#[test]
fn documented_policy_bounds_match_program() {
    let with_thousands_separators = |number: u64| {
        let digits = number.to_string();
        let groups: Vec<&str> = digits
            .as_bytes()
            .rchunks(3)
            .rev()
            .map(|group| str::from_utf8(group).unwrap())
            .collect();
        groups.join(",")
    };
    let document = read_document("docs/reference/policy.md");
    let (_, section) = document.split_once("\n### Bounds\n").unwrap();
    let section = section.split("\n#").next().unwrap();
    for (bound, value) in [
        ("rules", MAX_RULES as u64),
        ("limits of a rule", MAX_LIMITS_PER_RULE as u64),
        ("overrides of a rule", MAX_OVERRIDES as u64),
        ("attributes in `per`", MAX_PER_ENTRIES as u64),
        ("attributes in `by`", MAX_SPLIT_ATTRIBUTES as u64),
        ("parts of a split", RedisOptions::MAX_SUB_KEYS.into()),
        ("combinations of names", MAX_KEY_ATTRIBUTE_COMBINATIONS as u64),
        ("`max`, `cost`, `required`, `max_unsynced`", MAX_UNITS),
        (
            "`max`, `burst`, `max_debt` of `token_bucket`, `max` of `sliding_counter`",
            MAX_SMALL_UNITS,
        ),
        ("`max` of `sliding_log`", slidegate::algorithm::MAX_LOG_UNITS),
        ("buckets", slidegate::algorithm::MAX_BUCKETS),
    ] {
        let row = format!("\n| {bound} | {} |", with_thousands_separators(value));
        assert!(section.contains(&row), "missing row:{row}");
    }
    assert!(section.contains(&format!("\n| size of the file | {} MiB |", MAX_POLICY_BYTES >> 20)));
}
