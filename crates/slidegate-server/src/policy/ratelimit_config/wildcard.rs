//! Matches the values of descriptors with wildcards, and detects values that a policy would interpret as networks.

use std::net::IpAddr;

/// Returns `true` if a policy would interpret a text as an IP address or a network. An address or network has several
/// notations, so it cannot be compared as text.
pub fn is_like_network(text: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    is_address(text) || text.split_once('/').is_some_and(|(prefix, _)| is_address(prefix))
}

/// Returns `true` if a value matches a wildcard, in which each `*` matches any text.
pub fn matches_wildcard(wildcard: &str, value: &str) -> bool {
    let mut parts = wildcard.split('*');
    let Some(mut rest) = parts.next().and_then(|first| value.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, after)) => rest = after,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Returns `true` if some value may match both wildcards, even if this is not certain. Returns `false` only if no value
/// can match both.
pub fn may_overlap(wildcard: &str, other: &str) -> bool {
    let ((first, last), (other_first, other_last)) = (
        text_before_first_and_after_last_wildcard(wildcard),
        text_before_first_and_after_last_wildcard(other),
    );
    (first.starts_with(other_first) || other_first.starts_with(first))
        && (last.ends_with(other_last) || other_last.ends_with(last))
}

/// Returns the text before the first `*` and the text after the last `*` of a wildcard.
fn text_before_first_and_after_last_wildcard(wildcard: &str) -> (&str, &str) {
    let (first, rest) = wildcard.split_once('*').unwrap_or((wildcard, ""));
    (first, rest.rsplit_once('*').map_or(rest, |(_, last)| last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns `true` if a value matches a wildcard. Directly implements the definition, for comparison: a `*` matches
    /// the empty text, or one character and then the rest.
    fn matches_wildcard_by_definition(wildcard: &[u8], value: &[u8]) -> bool {
        match (wildcard, value) {
            ([], _) => value.is_empty(),
            ([b'*', rest @ ..], _) => {
                matches_wildcard_by_definition(rest, value)
                    || (!value.is_empty() && matches_wildcard_by_definition(wildcard, &value[1..]))
            }
            ([expected, rest @ ..], [actual, value @ ..]) => {
                expected == actual && matches_wildcard_by_definition(rest, value)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn address_with_invalid_prefix_length_resembles_network() {
        assert!(is_like_network("10.0.0.0/8") && is_like_network("::1"));
        assert!(is_like_network("10.0.0.0/anything"), "a policy would reject it");
        assert!(!is_like_network("/v1/10.0.0.0") && !is_like_network("10.0.0"));
    }

    proptest! {
        #[test]
        fn wildcard_match_follows_definition(
            wildcard in "[ab]{0,2}\\*[ab*]{0,4}", other in "[ab]{0,2}\\*[ab*]{0,4}",
            value in "[ab]{0,7}",
        ) {
            let expected = |wildcard: &str| matches_wildcard_by_definition(wildcard.as_bytes(), value.as_bytes());
            prop_assert_eq!(matches_wildcard(&wildcard, &value), expected(&wildcard));
            if expected(&wildcard) && expected(&other) {
                prop_assert!(may_overlap(&wildcard, &other));
            }
        }
    }
}
