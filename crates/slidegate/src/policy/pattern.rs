//! Patterns for values of attributes: literals, globs and networks; and conditions made of them.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::host::normal_host;
use crate::network::{NetworkError, parse_address, parse_network};

/// A pattern for a value of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Literal(Box<str>),
    Glob(Glob),
    /// Matches addresses in the network. A single address is a network of one address, since an address has several
    /// spellings.
    Network(IpNet),
}

/// A pattern with `*`, which matches any number of any characters, including none and including `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    prefix: Box<str>,
    middle: Box<[Box<str>]>,
    suffix: Box<str>,
}

/// The reason why a text is not a pattern.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum PatternError {
    #[error("a pattern cannot be empty")]
    Empty,
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(
        "`{0}` is not a host: write it as api.example.com, without a scheme, a port and a path"
    )]
    Host(String),
    #[error(
        "`{0}` is not a pattern of hosts: leave its port and brackets out, as in *.example.com, and write a network for addresses, such as 2001:db8::/32"
    )]
    HostGlob(String),
}

impl FromStr for Pattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<Self, PatternError> {
        if text.is_empty() {
            return Err(PatternError::Empty);
        }
        if let Some(network) = parse_network(text) {
            return Ok(Self::Network(network?));
        }
        match text.split_once('*') {
            None => Ok(Self::Literal(text.into())),
            Some((prefix, rest)) => {
                let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
                let middle = middle.split('*').filter(|part| !part.is_empty()).map(Into::into);
                Ok(Self::Glob(Glob {
                    prefix: prefix.into(),
                    middle: middle.collect(),
                    suffix: suffix.into(),
                }))
            }
        }
    }
}

impl Pattern {
    /// Parses a pattern for hosts. It matches hosts in canonical form.
    pub(crate) fn for_host(text: &str) -> Result<Self, PatternError> {
        match text.parse()? {
            Self::Literal(_) => match &*normal_host(text) {
                "" => Err(PatternError::Host(text.to_owned())),
                // Without brackets and port, the host may be an address.
                host => host.parse(),
            },
            Self::Glob(_) if text.contains([':', '[']) => {
                Err(PatternError::HostGlob(text.to_owned()))
            }
            Self::Glob(_) => normal_host(text).parse(),
            network => Ok(network),
        }
    }
}

impl Glob {
    /// Returns the text that every matching value begins with.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the pattern as text, with consecutive stars merged.
    pub(crate) fn text(&self) -> String {
        let middle = self.middle.iter().map(|part| format!("{part}*"));
        format!("{}*{}{}", self.prefix, middle.collect::<String>(), self.suffix)
    }

    /// Returns whether the pattern matches a value. Each part is matched at its first occurrence: since only stars are
    /// between parts, a later occurrence cannot match more.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let Some(mut rest) = value.strip_prefix(&*self.prefix) else {
            return false;
        };
        for part in &self.middle {
            let Some((_, rest_after)) = rest.split_once(&**part) else {
                return false;
            };
            rest = rest_after;
        }
        rest.ends_with(&*self.suffix)
    }
}

/// A condition on one attribute: one of several patterns matches or, if negated, none.
///
/// Two conditions are equal if they have the same patterns, independent of their spelling.
#[derive(Clone, Debug)]
pub struct Condition {
    is_negated: bool,
    /// The patterns as written, in the order of the file.
    source_texts: Box<[Box<str>]>,
    /// Sorted.
    literals: Box<[Box<str>]>,
    globs: Box<[Glob]>,
    /// Sorted, without networks inside others.
    networks: Box<[IpNet]>,
}

impl Condition {
    /// Creates a condition from patterns and their source texts.
    pub(crate) fn new(is_negated: bool, patterns: Vec<(&str, Pattern)>) -> Self {
        let source_texts = patterns.iter().map(|(text, _)| (*text).into()).collect();
        let (mut literals, mut globs, mut networks) = (Vec::new(), Vec::new(), Vec::new());
        for (_, pattern) in patterns {
            match pattern {
                Pattern::Literal(literal) => literals.push(literal),
                Pattern::Glob(glob) => globs.push(glob),
                Pattern::Network(network) => networks.push(network),
            }
        }
        literals.sort_unstable();
        Self {
            is_negated,
            source_texts,
            literals: literals.into(),
            globs: globs.into(),
            networks: IpNet::aggregate(&networks).into(),
        }
    }

    /// Returns whether an attribute meets the condition. An absent attribute matches no pattern.
    pub fn matches(&self, value: Option<&str>) -> bool {
        match value {
            Some(value) => self.matches_any_pattern(value) != self.is_negated,
            None => self.is_negated,
        }
    }

    fn matches_any_pattern(&self, value: &str) -> bool {
        self.literals.binary_search_by(|literal| (**literal).cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(value))
            || (!self.networks.is_empty() && self.matches_any_network(value))
    }

    fn matches_any_network(&self, value: &str) -> bool {
        parse_address(value).is_some_and(|address| {
            // Only the last network that begins at or before the address can contain it.
            let end = self.networks.partition_point(|network| network.network() <= address);
            self.networks[..end].last().is_some_and(|network| network.contains(&address))
        })
    }

    /// Returns whether no value meets both conditions. Decides this only if this condition consists of literals and is
    /// not negated; otherwise returns `false`.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let has_literals_only =
            !self.is_negated && self.globs.is_empty() && self.networks.is_empty();
        has_literals_only && self.literals.iter().all(|literal| !other.matches(Some(literal)))
    }

    /// Returns whether every value that meets this condition also meets `other`. Returns `false` if that cannot be
    /// shown.
    pub(crate) fn implies(&self, other: &Self) -> bool {
        match (self.is_negated, other.is_negated) {
            (false, false) => self.is_subset_of(other),
            (true, true) => other.is_subset_of(self),
            (false, true) => self.is_disjoint_from(other),
            // An absent attribute meets only the negated condition.
            (true, false) => false,
        }
    }

    /// Returns whether the patterns of `other` match every value that these patterns match. Returns `false` if that
    /// cannot be shown.
    fn is_subset_of(&self, other: &Self) -> bool {
        let in_globs = |text: &str| other.globs.iter().any(|glob| glob.matches(text));
        let in_networks = |inner: &IpNet| other.networks.iter().any(|outer| outer.contains(inner));
        self.literals.iter().all(|literal| other.matches_any_pattern(literal))
            // If a glob matches the text of another glob, its stars match anything that the other's stars match.
            && self.globs.iter().all(|glob| in_globs(&glob.text()))
            && self.networks.iter().all(|inner| in_networks(inner) || in_globs("*"))
    }

    /// Returns whether the patterns of `other` match no value that these patterns match. Returns `false` if that cannot
    /// be shown.
    fn is_disjoint_from(&self, other: &Self) -> bool {
        let has_literals_only =
            |condition: &Self| condition.globs.is_empty() && condition.networks.is_empty();
        let is_apart = |literals: &[Box<str>], from: &Self| {
            !literals.iter().any(|l| from.matches_any_pattern(l))
        };
        is_apart(&self.literals, other)
            && (has_literals_only(self)
                || has_literals_only(other) && is_apart(&other.literals, self))
    }

    /// Returns whether the patterns match every value of a present attribute.
    pub(crate) fn matches_every_value(&self) -> bool {
        self.globs.iter().any(|glob| glob.matches(""))
    }

    /// Returns whether the condition is negated (`not`).
    pub fn is_negated(&self) -> bool {
        self.is_negated
    }

    /// Returns the patterns as written.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.source_texts.iter().map(|pattern| &**pattern)
    }

    pub(crate) fn literals(&self) -> &[Box<str>] {
        &self.literals
    }

    pub(crate) fn globs(&self) -> &[Glob] {
        &self.globs
    }

    pub(crate) fn networks(&self) -> &[IpNet] {
        &self.networks
    }
}

impl PartialEq for Condition {
    fn eq(&self, other: &Self) -> bool {
        let Self { is_negated, source_texts: _, literals, globs, networks } = self;
        (is_negated, literals, globs, networks)
            == (&other.is_negated, &other.literals, &other.globs, &other.networks)
    }
}

impl Eq for Condition {}

/// Formats as `POST`, ``one of `a` or `b*` `` or ``not `10.0.0.0/8` ``.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_negated {
            f.write_str("not ")?;
        }
        for (index, pattern) in self.source_texts.iter().enumerate() {
            let is_last = index + 1 == self.source_texts.len();
            let separator = match index {
                0 => "",
                _ if is_last => " or ",
                _ => ", ",
            };
            write!(f, "{separator}`{pattern}`")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn matches(pattern: &str, value: &str) -> bool {
        let pattern = (pattern, pattern.parse().unwrap());
        Condition::new(false, vec![pattern]).matches(Some(value))
    }

    /// Reference implementation: a star matches nothing, or one character and then the rest.
    fn reference_glob_match(pattern: &[u8], value: &[u8]) -> bool {
        match (pattern, value) {
            ([], _) => value.is_empty(),
            ([b'*', pattern @ ..], _) => {
                reference_glob_match(pattern, value)
                    || (!value.is_empty()
                        && reference_glob_match(&[&b"*"[..], pattern].concat(), &value[1..]))
            }
            ([expected, pattern @ ..], [found, value @ ..]) => {
                expected == found && reference_glob_match(pattern, value)
            }
            (_, []) => false,
        }
    }

    #[test]
    fn star_matches_slashes() {
        assert!(matches("/v1/*", "/v1/users/7"));
        assert!(!matches("/v1/*", "/v2/users"));
        assert!(matches("*", ""));
        assert!(!matches("ab*ba", "aba"), "the parts may not overlap");
        assert!(!matches("a", "ab"));
    }

    #[test]
    fn network_matches_every_address_spelling() {
        assert!(matches("10.0.0.0/8", "10.255.0.1"));
        assert!(matches("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!matches("10.0.0.0/8", "11.0.0.0"));
        assert!(!matches("10.0.0.0/8", "10.0.0.0/8"));
        assert!(matches("2001:db8::1", "2001:0DB8:0::1"));
        assert!(!matches("2001:db8::/32", "2001:db9::"));
        assert!(matches("0.0.0.0/0", "1.2.3.4") && !matches("0.0.0.0/0", "::1"));
    }

    #[test]
    fn absent_attribute_matches_no_pattern() {
        let condition = |is_negated| Condition::new(is_negated, vec![("*", "*".parse().unwrap())]);
        assert!(!condition(false).matches(None) && condition(true).matches(None));
        assert!(condition(false).matches(Some("")) && !condition(true).matches(Some("a")));
    }

    #[test]
    fn invalid_network_error_names_reason() {
        let error = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
        let prefix = "is not a network: a prefix of IPv4 is a whole number from 0 to 32";
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8"] {
            assert_eq!(error(text), format!("`{text}` {prefix}"));
        }
        assert!(error("::/129").ends_with("IPv6 is a whole number from 0 to 128"));
        assert!(error("10.1.0.0/8").ends_with("did you mean `10.0.0.0/8`?"));
        assert!("/v1/8".parse::<Pattern>().is_ok(), "a path is none");
    }

    fn patterns() -> impl Strategy<Value = Vec<String>> {
        proptest::collection::vec(
            "[ab]{1,2}|[ab]?\\*[ab]?|10\\.[01]\\.0\\.0/16|10\\.0\\.0\\.0/8",
            1..3,
        )
    }

    proptest! {
        #[test]
        fn glob_agrees_with_reference(pattern in "[ab*]{1,8}", value in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(&pattern, &value),
                reference_glob_match(pattern.as_bytes(), value.as_bytes())
            );
        }

        #[test]
        fn implied_condition_holds_for_every_value(
            (left, right) in (patterns(), patterns()),
            (left_negated, right_negated) in (any::<bool>(), any::<bool>()),
            value in proptest::option::of("[ab]{0,3}|10\\.[01]\\.[01]\\.7"),
        ) {
            let condition = |is_negated, texts: &[String]| {
                let parsed = texts.iter().map(|text| (text.as_str(), text.parse().unwrap()));
                Condition::new(is_negated, parsed.collect())
            };
            let (left, right) = (condition(left_negated, &left), condition(right_negated, &right));
            let is_met = |condition: &Condition| condition.matches(value.as_deref());
            prop_assert!(!left.implies(&right) || !is_met(&left) || is_met(&right), "{left}, {right}");
            prop_assert!(left.implies(&left), "{left}");
        }

        /// Lists are searched by bisection; this compares with single patterns.
        #[test]
        fn list_matches_if_any_pattern_does(
            patterns in proptest::collection::vec("[ab]{1,2}|[ab]?\\*[ab]?|10\\.[01]\\.0\\.0/16|10\\.0\\.0\\.0/(8|9)|::/[1-9]", 1..12),
            value in "[ab]{1,3}|10\\.[012]\\.[0-3]\\.7|[0-9a-f]{1,4}::",
        ) {
            let parsed: Vec<(&str, Pattern)> = (patterns.iter())
                .map(|pattern| (pattern.as_str(), pattern.parse().unwrap())).collect();
            prop_assert_eq!(
                Condition::new(false, parsed).matches(Some(&value)),
                patterns.iter().any(|pattern| matches(pattern, &value))
            );
        }
    }
}
