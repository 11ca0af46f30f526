//! Tests that converted policies apply the same limits as Envoy's reference rate limit server. An independent
//! implementation of the server's lookup provides the expected limits.

use proptest::prelude::*;
use slidegate::store::Value;
use slidegate::{Descriptor, Request};

use super::{Conversion, convert_valid_config};

/// A generated descriptor of a configuration file, with its nested descriptors.
#[derive(Clone, Debug)]
struct GeneratedDescriptor {
    key: &'static str,
    value: &'static str,
    is_shared: bool,
    limit: GeneratedLimit,
    branches: Vec<GeneratedDescriptor>,
}

/// The limit of a generated descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeneratedLimit {
    None,
    Unlimited,
    Some,
}

/// The key and value of one entry in the descriptor of a request.
type DescriptorEntry = (&'static str, &'static str);

/// Looks up the limit of a request as Envoy's reference rate limit server does. Returns the name of the limit and the
/// values that identify its counter, or `None` if no limit applies.
///
/// The lookup goes down one level for each entry. On each level it takes the descriptor with exactly this value,
/// otherwise the first matching wildcard, otherwise the descriptor without a value. No limit applies if no descriptor
/// matches, or if the last descriptor has no limit. The lookup never tries another descriptor.
fn find_limit_as_reference_server(
    branches: &[GeneratedDescriptor],
    path: &str,
    entries: &[DescriptorEntry],
) -> Option<(String, Vec<String>)> {
    let (&(key, value), rest) = entries.split_first()?;
    let with_key = || branches.iter().enumerate().filter(|(_, branch)| branch.key == key);
    let is_wildcard = |branch: &GeneratedDescriptor| branch.value.contains('*');
    let exact = with_key().find(|(_, branch)| !value.is_empty() && branch.value == value);
    let wildcard = || {
        with_key().find(|(_, branch)| is_wildcard(branch) && matches_wildcard(branch.value, value))
    };
    let bare = || with_key().find(|(_, branch)| branch.value.is_empty());
    let (index, branch) = exact.or_else(wildcard).or_else(bare)?;
    let path = format!("{path}.{index}");
    let (name, mut counted_values) = match rest {
        [] if branch.limit == GeneratedLimit::None => return None,
        [] => (path, Vec::new()),
        rest => find_limit_as_reference_server(&branch.branches, &path, rest)?,
    };
    if branch.value.is_empty() || (is_wildcard(branch) && !branch.is_shared) {
        counted_values.insert(0, value.to_owned());
    }
    Some((name, counted_values))
}

/// Returns `true` if a value matches a wildcard, in which each `*` matches any text.
fn matches_wildcard(wildcard: &str, value: &str) -> bool {
    let mut rest = value.chars();
    match wildcard.chars().next() {
        None => value.is_empty(),
        Some('*') => {
            matches_wildcard(&wildcard[1..], value)
                || (rest.next().is_some() && matches_wildcard(wildcard, rest.as_str()))
        }
        Some(char) => rest.next() == Some(char) && matches_wildcard(&wildcard[1..], rest.as_str()),
    }
}

/// Generates descriptors with distinct keys and values, and up to `depth` levels of nested descriptors.
fn arbitrary_descriptors(depth: u32) -> BoxedStrategy<Vec<GeneratedDescriptor>> {
    let key = prop::sample::select(vec!["k", "l"]);
    let value = prop::sample::select(vec![
        "",
        "",
        "x",
        "xy",
        "10.0.0.1",
        "10.0.0.0/8",
        "x*",
        "*y",
        "x*y",
        "*",
        "10.*",
    ]);
    let limit = prop::sample::select(vec![
        GeneratedLimit::None,
        GeneratedLimit::Unlimited,
        GeneratedLimit::Some,
        GeneratedLimit::Some,
    ]);
    let children =
        if depth == 0 { Just(Vec::new()).boxed() } else { arbitrary_descriptors(depth - 1) };
    let branch = (key, value, any::<bool>(), limit, children).prop_map(
        |(key, value, is_shared, limit, branches)| GeneratedDescriptor {
            key,
            value,
            is_shared: is_shared && value.contains('*'),
            limit,
            branches,
        },
    );
    let list = prop::collection::vec(branch, 0..6);
    let distinct = list.prop_map(|mut list: Vec<GeneratedDescriptor>| {
        let mut seen = Vec::new();
        list.retain(|branch| {
            let entry = (branch.key, branch.value);
            let is_new = !seen.contains(&entry);
            seen.push(entry);
            is_new
        });
        list
    });
    distinct.boxed()
}

/// Generates the entries in the descriptor of a request.
fn arbitrary_request_entries() -> impl Strategy<Value = Vec<DescriptorEntry>> {
    let value = prop::sample::select(vec![
        "",
        "x",
        "y",
        "xy",
        "xzy",
        "z",
        "10.0.0.1",
        "10.0.0.2",
        "::ffff:10.0.0.1",
        "10.0.0.0/8",
    ]);
    prop::collection::vec((prop::sample::select(vec!["k", "l"]), value), 1..5)
}

/// Formats descriptors as the text of a configuration file. The name of a limit is its path, such as `r.0.1`.
fn format_config_descriptors(
    branches: &[GeneratedDescriptor],
    path: &str,
    indent: usize,
) -> String {
    let margin = " ".repeat(indent);
    let mut text = format!("{margin}descriptors:\n");
    for (index, branch) in branches.iter().enumerate() {
        let GeneratedDescriptor { key, value, is_shared, limit, branches } = branch;
        let path = format!("{path}.{index}");
        text += &format!("{margin}- key: {key}\n");
        if !value.is_empty() {
            text +=
                &format!("{margin}  value: '{value}'\n{margin}  share_threshold: {is_shared}\n");
        }
        match limit {
            GeneratedLimit::None => {}
            GeneratedLimit::Unlimited => {
                text += &format!("{margin}  rate_limit: {{ name: {path}, unlimited: yes }}\n");
            }
            GeneratedLimit::Some => {
                text += &format!(
                    "{margin}  rate_limit: {{ name: {path}, unit: HOUR, requests_per_unit: 5 }}\n"
                );
            }
        }
        if !branches.is_empty() {
            text += &format_config_descriptors(branches, &path, indent + 2);
        }
    }
    text
}

/// Returns the attributes for the entries in a request's descriptor. The n-th entry with the same key becomes the
/// attribute `key#n`.
fn attributes_from_entries(entries: &[DescriptorEntry]) -> Vec<(String, &'static str)> {
    let name = |(index, (key, value)): (usize, &DescriptorEntry)| match entries[..index]
        .iter()
        .filter(|(other, _)| other == key)
        .count()
    {
        0 => ((*key).to_owned(), *value),
        count => (format!("{key}#{}", count + 1), *value),
    };
    entries.iter().enumerate().map(name).collect()
}

fn format_key_attribute_value(value: Value<'_>) -> String {
    match value {
        Value::Text(_) | Value::Ipv4(_) => value.to_string(),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn converted_policy_applies_reference_server_limits(
        branches in arbitrary_descriptors(2), requests in prop::collection::vec(arbitrary_request_entries(), 1..30),
    ) {
        let text = format!("domain: d\n{}", format_config_descriptors(&branches, "r", 0));
        let Conversion { policy, text, .. } = convert_valid_config(&text);
        for entries in requests {
            let attributes = attributes_from_entries(&entries);
            let attributes = attributes.iter().map(|(name, value)| (name.as_str(), *value));
            let request = Request::new("d", Descriptor::new(attributes).exact());
            let matched = policy.apply(&request);
            let found: Vec<(String, Vec<String>)> = matched.matches().map(|rule_match| {
                let counted_values = if rule_match.limits().is_empty() { Vec::new() } else { rule_match.identity().map(|(_, value)| format_key_attribute_value(value)).collect() };
                (rule_match.rule().name().to_owned(), counted_values)
            }).collect();
            let mut expected = find_limit_as_reference_server(&branches, "r", &entries);
            // Unlimited rules count nothing.
            if let (Some((_, counted_values)), Some(rule_match)) = (&mut expected, matched.matches().next())
                && rule_match.limits().is_empty()
            {
                counted_values.clear();
            }
            // IPv4-mapped IPv6 addresses are counted as IPv4 addresses.
            if let Some((_, counted_values)) = &mut expected {
                for value in counted_values.iter_mut().filter(|value| **value == "::ffff:10.0.0.1") {
                    *value = "10.0.0.1".to_owned();
                }
            }
            prop_assert_eq!(found, expected.into_iter().collect::<Vec<_>>(), "{:?} in\n{}", entries, text);
        }
    }
}
