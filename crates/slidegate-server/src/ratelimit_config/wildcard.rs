//! Wildcards in the values of descriptors, and values that a policy reads as networks.

use std::net::IpAddr;

/// Returns whether a policy would read a text as an address or a network, which may have several notations.
pub fn is_like_network(text: &str) -> bool {
    let is_address = |text: &str| text.parse::<IpAddr>().is_ok();
    is_address(text) || text.split_once('/').is_some_and(|(prefix, _)| is_address(prefix))
}

/// Returns whether a value matches a wildcard, in which each `*` matches any text.
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

/// Returns whether a value may match both wildcards. The result may be a false positive, never a false negative.
pub fn may_overlap(wildcard: &str, other: &str) -> bool {
    let ((first, last), (other_first, other_last)) = (fixed_ends(wildcard), fixed_ends(other));
    (first.starts_with(other_first) || other_first.starts_with(first))
        && (last.ends_with(other_last) || other_last.ends_with(last))
}

/// Returns the texts before the first `*` and after the last `*`.
fn fixed_ends(wildcard: &str) -> (&str, &str) {
    let (first, rest) = wildcard.split_once('*').unwrap_or((wildcard, ""));
    (first, rest.rsplit_once('*').map_or(rest, |(_, last)| last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Matches by definition: a `*` matches the empty text, or one character and then the rest.
    fn matches_by_definition(wildcard: &[u8], value: &[u8]) -> bool {
        match (wildcard, value) {
            ([], _) => value.is_empty(),
            ([b'*', rest @ ..], _) => {
                matches_by_definition(rest, value)
                    || (!value.is_empty() && matches_by_definition(wildcard, &value[1..]))
            }
            ([expected, rest @ ..], [actual, value @ ..]) => {
                expected == actual && matches_by_definition(rest, value)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn network_is_recognized_by_its_address() {
        assert!(is_like_network("10.0.0.0/8") && is_like_network("::1"));
        assert!(is_like_network("10.0.0.0/anything"), "a policy would reject it");
        assert!(!is_like_network("/v1/10.0.0.0") && !is_like_network("10.0.0"));
    }

    proptest! {
        #[test]
        fn wildcard_matches_like_its_definition(
            wildcard in "[ab]{0,2}\\*[ab*]{0,4}", other in "[ab]{0,2}\\*[ab*]{0,4}",
            value in "[ab]{0,7}",
        ) {
            let expected = |wildcard: &str| matches_by_definition(wildcard.as_bytes(), value.as_bytes());
            prop_assert_eq!(matches_wildcard(&wildcard, &value), expected(&wildcard));
            if expected(&wildcard) && expected(&other) {
                prop_assert!(may_overlap(&wildcard, &other));
            }
        }
    }
}
