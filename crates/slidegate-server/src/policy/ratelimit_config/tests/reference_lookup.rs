//! Tests that converted policies apply the same limits as Envoy's reference rate limit server. An independent
//! implementation of the server's lookup provides the expected limits, vetoes and counters.

use std::collections::HashMap;

use proptest::prelude::*;
use slidegate::store::Veto;
use slidegate::{Descriptor, Quota, Request};

use super::{Conversion, convert_valid_config};

/// A generated descriptor of a configuration file, with its nested descriptors.
#[derive(Clone, Debug)]
struct GeneratedDescriptor {
    key: &'static str,
    value: &'static str,
    is_shared: bool,
    limit: GeneratedLimit,
    mode: GeneratedMode,
    /// The name of the limit that the limit of this descriptor replaces.
    replaces: Option<&'static str>,
    branches: Vec<GeneratedDescriptor>,
}

/// The limit of a generated descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeneratedLimit {
    None,
    Unlimited,
    Some,
}

/// The mode of a generated descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GeneratedMode {
    Enforce,
    Shadow,
    Quota,
}

/// The key and value of one entry in the descriptor of a request.
type DescriptorEntry = (&'static str, &'static str);

/// A generated descriptor of a request: its entries, and whether it contains a limit.
type RequestDescriptor = (Vec<DescriptorEntry>, bool);

/// The limit that the reference server applies to a descriptor of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedLimit {
    /// `None` if the limit is in the request.
    name: Option<String>,
    /// `None` if the limit is unlimited.
    counter: Option<AppliedCounter>,
}

/// The counter of a limit, and the effect of the limit on the decision.
#[derive(Clone, Debug, PartialEq, Eq)]
struct AppliedCounter {
    veto: Veto,
    /// The keys and values that the reference server joins to the name of the counter.
    name: Vec<(&'static str, &'static str)>,
}

/// Returns the limits that the reference server applies to the descriptors of a request, one result for each descriptor.
/// `branches` are the descriptors of the configuration file.
fn apply_as_reference_server(
    branches: &[GeneratedDescriptor],
    request: &[RequestDescriptor],
) -> Vec<Option<AppliedLimit>> {
    let mut replaced = Vec::new();
    let limits = request.iter().map(|(entries, has_limit)| {
        // A limit in the request is looked up nowhere: it has no mode, no name and no `replaces`.
        if *has_limit {
            let counter = AppliedCounter { veto: Veto::Alone, name: entries.clone() };
            return Some(AppliedLimit { name: None, counter: Some(counter) });
        }
        let (name, branch, counted) = find_limit_as_reference_server(branches, "r", entries)?;
        replaced.extend(branch.replaces.filter(|replaced| *replaced != name));
        let veto = match branch.mode {
            GeneratedMode::Enforce => Veto::Alone,
            GeneratedMode::Shadow => Veto::Never,
            GeneratedMode::Quota => Veto::Jointly,
        };
        let counter = (branch.limit == GeneratedLimit::Some)
            .then_some(AppliedCounter { veto, name: counted });
        Some(AppliedLimit { name: Some(name), counter })
    });
    let limits: Vec<_> = limits.collect();
    let is_replaced = |limit: &AppliedLimit| {
        let name = limit.name.as_deref();
        limit.counter.is_some() && name.is_some_and(|name| replaced.contains(&name))
    };
    limits.into_iter().map(|limit| limit.filter(|limit| !is_replaced(limit))).collect()
}

/// Looks up the limit of a descriptor as Envoy's reference rate limit server does. Returns the name of the limit, the
/// descriptor of the configuration file that has the limit, and the name of its counter, or `None` if no limit applies.
///
/// The lookup goes down one level for each entry. On each level it takes the descriptor with exactly this value,
/// otherwise the first matching wildcard, otherwise the descriptor without a value. No limit applies if no descriptor
/// matches, or if the last descriptor has no limit. The lookup never tries another descriptor.
fn find_limit_as_reference_server<'b>(
    branches: &'b [GeneratedDescriptor],
    path: &str,
    entries: &[DescriptorEntry],
) -> Option<(String, &'b GeneratedDescriptor, Vec<DescriptorEntry>)> {
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
    let (name, limited, mut counted) = match rest {
        [] if branch.limit == GeneratedLimit::None => return None,
        [] => (path, branch, Vec::new()),
        rest => find_limit_as_reference_server(&branch.branches, &path, rest)?,
    };
    let counted_value = if is_wildcard(branch) && branch.is_shared { branch.value } else { value };
    counted.insert(0, (key, counted_value));
    Some((name, limited, counted))
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
    let mode = prop::sample::select(vec![
        GeneratedMode::Enforce,
        GeneratedMode::Enforce,
        GeneratedMode::Shadow,
        GeneratedMode::Quota,
    ]);
    let replaces = prop::option::weighted(
        0.3,
        prop::sample::select(vec!["r.0", "r.1", "r.2", "r.0.0", "r.1.0", "unknown", "requested"]),
    );
    let children =
        if depth == 0 { Just(Vec::new()).boxed() } else { arbitrary_descriptors(depth - 1) };
    let branch = (key, value, any::<bool>(), limit, mode, replaces, children).prop_map(
        |(key, value, is_shared, limit, mode, replaces, branches)| GeneratedDescriptor {
            key,
            value,
            is_shared: is_shared && value.contains('*'),
            limit,
            mode,
            replaces,
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

/// Generates the descriptors of a request.
fn arbitrary_request() -> impl Strategy<Value = Vec<RequestDescriptor>> {
    prop::collection::vec((arbitrary_request_entries(), prop::bool::weighted(0.3)), 1..4)
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
        let GeneratedDescriptor { key, value, is_shared, limit, mode, replaces, branches } = branch;
        let path = format!("{path}.{index}");
        let replaces = replaces.filter(|replaced| *replaced != path);
        let replaces =
            replaces.map_or(String::new(), |name| format!(", replaces: [{{ name: {name} }}]"));
        text += &format!("{margin}- key: {key}\n");
        if !value.is_empty() {
            text +=
                &format!("{margin}  value: '{value}'\n{margin}  share_threshold: {is_shared}\n");
        }
        match mode {
            GeneratedMode::Enforce => {}
            GeneratedMode::Shadow => text += &format!("{margin}  shadow_mode: true\n"),
            GeneratedMode::Quota => text += &format!("{margin}  quota_mode: true\n"),
        }
        let quota = match limit {
            GeneratedLimit::None => None,
            GeneratedLimit::Unlimited => Some("unlimited: yes"),
            GeneratedLimit::Some => Some("unit: HOUR, requests_per_unit: 5"),
        };
        if let Some(quota) = quota {
            text += &format!("{margin}  rate_limit: {{ name: {path}, {quota}{replaces} }}\n");
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

/// Returns `true` if slidegate counts a value of the counter together with another value: an IPv4 address in IPv6 notation
/// counts as the IPv4 address.
fn has_mapped_address(counter: &AppliedCounter) -> bool {
    counter.name.iter().any(|(_, value)| *value == "::ffff:10.0.0.1")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn converted_policy_applies_reference_server_limits(
        branches in arbitrary_descriptors(2), requests in prop::collection::vec(arbitrary_request(), 1..30),
    ) {
        let config = format!("domain: d\n{}", format_config_descriptors(&branches, "r", 0));
        let Conversion { policy, text, .. } = convert_valid_config(&config);
        // Counters of slidegate by counters of the reference server, and the reverse.
        let (mut keys, mut counters) = (HashMap::new(), HashMap::new());
        for sent in requests {
            let attributes: Vec<_> =
                sent.iter().map(|(entries, _)| attributes_from_entries(entries)).collect();
            let descriptors = sent.iter().zip(&attributes).map(|((_, has_limit), attributes)| {
                let attributes = attributes.iter().map(|(name, value)| (name.as_str(), *value));
                let descriptor = Descriptor::new(attributes).exact();
                if *has_limit { descriptor.with_limit(requested_quota()) } else { descriptor }
            });
            let request = Request::with_descriptors("d", descriptors);
            let matched = policy.apply(&request);
            let mut found = vec![None; sent.len()];
            let mut found_keys = vec![None; sent.len()];
            for rule_match in matched.matches() {
                let index = rule_match.descriptor_index();
                prop_assert!(found[index].is_none(), "{:?} has two limits in\n{}", sent, text);
                let hit = rule_match.hits().next();
                found_keys[index] = hit.as_ref().map(|hit| hit.key.to_string());
                found[index] = Some((rule_match.rule().name().to_owned(), hit.map(|hit| hit.veto)));
            }
            let expected = apply_as_reference_server(&branches, &sent);
            let expected_limits: Vec<_> = expected.iter().map(|limit| {
                let AppliedLimit { name, counter } = limit.as_ref()?;
                let name = name.as_deref().unwrap_or("requested").to_owned();
                Some((name, counter.as_ref().map(|counter| counter.veto)))
            }).collect();
            prop_assert_eq!(found, expected_limits, "{:?} in\n{}", sent, text);
            for (key, limit) in found_keys.into_iter().zip(expected) {
                let counter = limit.and_then(|limit| limit.counter);
                let (Some(key), Some(counter)) = (key, counter) else { continue };
                if has_mapped_address(&counter) {
                    continue;
                }
                let name = counter.name;
                let known_key = keys.entry(name.clone()).or_insert_with(|| key.clone());
                prop_assert_eq!(&*known_key, &key, "{:?} has two counters in\n{}", name, text);
                let known_name = counters.entry(key).or_insert_with(|| name.clone());
                prop_assert_eq!(&*known_name, &name, "share a counter in\n{}", text);
            }
        }
    }
}

/// Returns the limit of generated descriptors that contain one. Its unit is the unit of the limits in the configuration
/// file, because limits with the same unit share counters.
fn requested_quota() -> Quota {
    "3/h".parse().unwrap()
}
