//! Whether an attribute's value is as a rule wants it: literally, or by a glob.

/// What a value has to look like. `*` stands for any characters, also none, also `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Literal(Box<str>),
    /// What stands before, between and after the stars; at least two parts.
    Glob(Box<[Box<str>]>),
}

impl Pattern {
    pub(crate) fn new(text: &str) -> Self {
        if text.contains('*') {
            Self::Glob(text.split('*').map(Into::into).collect())
        } else {
            Self::Literal(text.into())
        }
    }

    /// Takes each part at its first place: with stars only, no later place could do better.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let parts = match self {
            Self::Literal(literal) => return **literal == *value,
            Self::Glob(parts) => parts,
        };
        let [first, between @ .., last] = &**parts else {
            return false;
        };
        let Some(mut rest) = value.strip_prefix(&**first) else {
            return false;
        };
        for part in between {
            let Some(at) = rest.find(&**part) else {
                return false;
            };
            rest = &rest[at + part.len()..];
        }
        rest.ends_with(&**last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// By the book: a star takes nothing, or one character and then the rest.
    fn matches_by_the_book(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern, value) {
            ([], _) => value.is_empty(),
            ([b'*', pattern @ ..], _) => {
                matches_by_the_book(pattern, value)
                    || (!value.is_empty()
                        && matches_by_the_book(&[&b"*"[..], pattern].concat(), &value[1..]))
            }
            ([one, pattern @ ..], [other, value @ ..]) => {
                one == other && matches_by_the_book(pattern, value)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn a_star_crosses_slashes() {
        assert!(Pattern::new("/v1/*").matches("/v1/users/7"));
        assert!(!Pattern::new("/v1/*").matches("/v2/users"));
        assert!(Pattern::new("*").matches(""));
        assert!(!Pattern::new("ab*ba").matches("aba"), "the parts may not overlap");
        assert!(!Pattern::new("a").matches("ab"));
    }

    proptest! {
        #[test]
        fn agrees_with_the_book(pattern in "[ab*]{0,8}", value in "[ab]{0,10}") {
            prop_assert_eq!(
                Pattern::new(&pattern).matches(&value),
                matches_by_the_book(pattern.as_bytes(), value.as_bytes())
            );
        }
    }
}
