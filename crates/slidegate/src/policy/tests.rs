//! Tests of the rules that apply to a request.

use proptest::prelude::*;

use super::*;

/// Generates the text of a `when` field with up to two conditions, or an empty text. `attributes` is the pattern of
/// the attribute names.
fn arbitrary_when_field(attributes: &'static str) -> impl Strategy<Value = String> {
    let value = "a|b|abc|a\\*|ab\\*|\\*c|10\\.0\\.0\\.0/8|10\\.1\\.0\\.0/16|10\\.1\\.0\\.1|::/16";
    let entry = (attributes, proptest::collection::vec(value, 1..3), any::<bool>());
    proptest::collection::btree_map(attributes, entry, 0..3).prop_map(|entries| {
        let entry = |(name, (_, values, negated)): (&String, &(String, Vec<String>, bool))| {
            let values = values.iter().map(|v| format!("'{v}'")).collect::<Vec<_>>().join(", ");
            if *negated {
                format!("{name}: {{ not: [{values}] }}")
            } else {
                format!("{name}: [{values}]")
            }
        };
        match entries.iter().map(entry).collect::<Vec<_>>().join(", ") {
            empty if empty.is_empty() => empty,
            conditions => format!("when: {{ {conditions} }},"),
        }
    })
}

/// Checks that a policy of several rules, which uses the index, matches the same rules as policies of one rule
/// each, which do not use the index. `rule_fields` contains the fields `when` and `per` of each rule.
fn check_index_against_single_rules(
    rule_fields: &[(String, String)],
    attributes: &[(&str, &str)],
) -> Result<(), TestCaseError> {
    let rule = |(rule_index, (when, per)): (usize, &(String, String))| {
        format!("  - {{ name: r{rule_index}, {when} per: {per}, limits: [1/s] }}\n")
    };
    let rules: Vec<String> = rule_fields.iter().enumerate().map(rule).collect();
    let all = Policy::from_yaml(&format!("rules:\n{}", rules.concat())).unwrap();
    let request = Request::new("default", Descriptor::new(attributes.iter().copied()));
    let names = |policy: &Policy| -> Vec<String> {
        let applied = policy.apply(&request);
        applied.matches().map(|matched| matched.rule().name().to_owned()).collect()
    };
    let alone = rules
        .iter()
        .flat_map(|rule| names(&Policy::from_yaml(&format!("rules:\n{rule}")).unwrap()));
    prop_assert_eq!(names(&all), alone.collect::<Vec<_>>());
    Ok(())
}

proptest! {
    #[test]
    fn index_finds_every_matching_rule(
        rule_fields in proptest::collection::vec(
            (arbitrary_when_field("[xyz]"), "(\\[\\])|(\\[x\\])|(\\['y\\|z'\\])"), 5..12,
        ),
        values in proptest::array::uniform3("|a|b|ab|abc|10\\.1\\.0\\.[12]|10\\.2\\.0\\.1|::1"),
    ) {
        let attributes = ["x", "y", "z"].into_iter().zip(values.iter().map(String::as_str));
        let attributes: Vec<_> = attributes.filter(|(_, value)| !value.is_empty()).collect();
        check_index_against_single_rules(&rule_fields, &attributes)?;
    }

    /// Names of attributes can occur twice in the request. Rules use the first.
    #[test]
    fn index_of_many_attributes_finds_every_matching_rule(
        rule_fields in proptest::collection::vec(
            (arbitrary_when_field("[s-z]"), "(\\[\\])|(\\[[s-z]\\])|(\\['y\\|z'\\])"), 10..20,
        ),
        attributes in proptest::collection::vec(
            ("[s-z]", "a|b|ab|abc|10\\.1\\.0\\.[12]|10\\.2\\.0\\.1|::1"), 0..10,
        ),
    ) {
        let attributes: Vec<_> =
            attributes.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        check_index_against_single_rules(&rule_fields, &attributes)?;
    }
}
