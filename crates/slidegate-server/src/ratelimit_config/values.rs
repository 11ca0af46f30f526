//! Values of descriptors: which of two goes before, and how a policy says them.

use std::net::IpAddr;

/// Whether a policy would take a text for an address or a network, which may be written in more than one way.
pub fn is_like_network(text: &str) -> bool {
    let address = |text: &str| text.parse::<IpAddr>().is_ok();
    address(text) || text.split_once('/').is_some_and(|(before, _)| address(before))
}

/// Whether a value is as a wildcard wants it: each `*` is anything.
pub fn matches(wildcard: &str, value: &str) -> bool {
    let mut parts = wildcard.split('*');
    let Some(mut rest) = parts.next().and_then(|first| value.strip_prefix(first)) else {
        return false;
    };
    let Some(last) = parts.next_back() else { return rest.is_empty() };
    for part in parts {
        match rest.split_once(part) {
            Some((_, behind)) => rest = behind,
            None => return false,
        }
    }
    rest.ends_with(last)
}

/// Whether a value may be as two wildcards want it. It may seem so where it is not.
pub fn may_overlap(one: &str, other: &str) -> bool {
    let ((first, last), (other_first, other_last)) = (ends(one), ends(other));
    (first.starts_with(other_first) || other_first.starts_with(first))
        && (last.ends_with(other_last) || other_last.ends_with(last))
}

/// What stands before the first star, and behind the last.
fn ends(wildcard: &str) -> (&str, &str) {
    let (first, rest) = wildcard.split_once('*').unwrap_or((wildcard, ""));
    (first, rest.rsplit_once('*').map_or(rest, |(_, last)| last))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// By the book: a star takes nothing, or one character and then the rest.
    fn matches_by_the_book(wildcard: &[u8], value: &[u8]) -> bool {
        match (wildcard, value) {
            ([], _) => value.is_empty(),
            ([b'*', rest @ ..], _) => {
                matches_by_the_book(rest, value)
                    || (!value.is_empty() && matches_by_the_book(wildcard, &value[1..]))
            }
            ([one, rest @ ..], [other, value @ ..]) => {
                one == other && matches_by_the_book(rest, value)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn a_network_is_known_by_its_address() {
        assert!(is_like_network("10.0.0.0/8") && is_like_network("::1"));
        assert!(is_like_network("10.0.0.0/anything"), "a policy would refuse it");
        assert!(!is_like_network("/v1/10.0.0.0") && !is_like_network("10.0.0"));
    }

    proptest! {
        #[test]
        fn a_wildcard_agrees_with_the_book(
            wildcard in "[ab]{0,2}\\*[ab*]{0,4}", other in "[ab]{0,2}\\*[ab*]{0,4}",
            value in "[ab]{0,7}",
        ) {
            let book = |wildcard: &str| matches_by_the_book(wildcard.as_bytes(), value.as_bytes());
            prop_assert_eq!(matches(&wildcard, &value), book(&wildcard));
            if book(&wildcard) && book(&other) {
                prop_assert!(may_overlap(&wildcard, &other));
            }
        }
    }
}
