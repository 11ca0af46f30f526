//! Patterns for the values of attributes (literals, globs and networks), and conditions that consist of such patterns.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use super::normalization::{NormalizeStep, normalize};
use crate::host::normalize_host;
use crate::network::{NetworkError, parse_address, parse_network};

/// A pattern that matches some values of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Literal(Box<str>),
    Glob(Glob),
    /// Matches every address in the network, independent of the spelling of the address. A single address is stored as
    /// a network that contains only this address.
    Network(IpNet),
}

/// A pattern that contains `*`. Each `*` matches any text, including the empty text and text with `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    prefix: Box<str>,
    middle: Box<[Box<str>]>,
    suffix: Box<str>,
}

/// The reason why a text cannot be parsed as a pattern.
#[derive(Debug, PartialEq, Eq, Error)]
pub(crate) enum PatternError {
    #[error("the value is empty; write a value, or '*' for every value")]
    Empty,
    #[error(transparent)]
    Network(#[from] NetworkError),
    #[error(
        "`{0}` is not a host; write it as api.example.com, without a scheme, a port and a path"
    )]
    Host(String),
    #[error(
        "`{0}` is not a host pattern; remove its port and brackets, as in *.example.com, or write a network such as 2001:db8::/32 for addresses"
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
    /// Parses a pattern for host names. The pattern matches host names in canonical form: in lower case, without a
    /// port.
    pub(crate) fn parse_host(text: &str) -> Result<Self, PatternError> {
        match text.parse()? {
            Self::Literal(_) => match &*normalize_host(text) {
                "" => Err(PatternError::Host(text.to_owned())),
                // Without brackets and port, the host may be an address.
                host => host.parse(),
            },
            Self::Glob(_) if text.contains([':', '[']) => {
                Err(PatternError::HostGlob(text.to_owned()))
            }
            Self::Glob(_) => normalize_host(text).parse(),
            network => Ok(network),
        }
    }
}

impl Pattern {
    /// Parses a pattern for values that are normalized by these steps. Slashes and white space next to a `*` are kept.
    pub(crate) fn parse_normalized(
        text: &str,
        steps: &[NormalizeStep],
    ) -> Result<Self, PatternError> {
        match text.parse()? {
            Self::Literal(text) => Ok(Self::Literal(normalize(steps, &text).into())),
            Self::Glob(_) if steps.contains(&NormalizeStep::Lowercase) => {
                normalize(&[NormalizeStep::Lowercase], text).parse()
            }
            pattern => Ok(pattern),
        }
    }
}

impl Glob {
    /// Returns the text before the first `*`. Every value that the glob matches begins with this text.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns `true` if the glob matches every value that begins with its [`prefix`](Self::prefix).
    pub(crate) fn is_prefix(&self) -> bool {
        self.middle.is_empty() && self.suffix.is_empty()
    }

    /// Returns the glob as text. Consecutive stars in the source text are merged into one.
    pub(crate) fn text(&self) -> String {
        let middle = self.middle.iter().map(|part| format!("{part}*"));
        format!("{}*{}{}", self.prefix, middle.collect::<String>(), self.suffix)
    }

    /// Returns `true` if the glob matches a value. Each part between two stars is searched from left to right, and its
    /// first occurrence is used. A later occurrence would only leave less text for the remaining parts.
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

/// A condition on the value of one attribute.
///
/// The condition is met if at least one of its patterns matches the value. A negated condition (`not`) is met if none
/// of its patterns matches.
///
/// Two conditions are equal if they have the same patterns after parsing, even if the source texts differ.
#[derive(Clone, Debug)]
pub struct Condition {
    is_negated: bool,
    /// The source texts of the patterns, in the order of the file.
    source_texts: Box<[Box<str>]>,
    /// The literal patterns, sorted for binary search.
    literals: Box<[Box<str>]>,
    globs: Box<[Glob]>,
    /// The network patterns, sorted. A network inside another network of the list is left out.
    networks: Box<[IpNet]>,
}

impl Condition {
    /// Creates a condition from patterns. Each pattern comes with its source text.
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

    /// Returns `true` if the value of an attribute meets the condition. `None` is an absent attribute, which matches no
    /// pattern and therefore meets only negated conditions.
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

    /// Returns `true` if exactly one value meets the condition. Always returns `false` if the condition is negated or
    /// contains globs or networks.
    pub(crate) fn allows_one_value(&self) -> bool {
        !self.is_negated && self.source_texts.len() == 1 && self.literals.len() == 1
    }

    /// Returns `true` if no value meets both this condition and `other`. Always returns `false` if this condition is
    /// negated or contains globs or networks, since these are not analyzed.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let has_literals_only =
            !self.is_negated && self.globs.is_empty() && self.networks.is_empty();
        has_literals_only && self.literals.iter().all(|literal| !other.matches(Some(literal)))
    }

    /// Returns `true` if every value that meets this condition provably also meets `other`. Returns `false` if this is
    /// wrong or cannot be proved.
    pub(crate) fn implies(&self, other: &Self) -> bool {
        match (self.is_negated, other.is_negated) {
            (false, false) => self.is_subset_of(other),
            (true, true) => other.is_subset_of(self),
            (false, true) => self.is_disjoint_from(other),
            // An absent attribute meets only the negated condition.
            (true, false) => false,
        }
    }

    /// Returns `true` if the patterns of `other` provably match every value that the patterns of this condition match.
    /// Returns `false` if this is wrong or cannot be proved.
    fn is_subset_of(&self, other: &Self) -> bool {
        let in_globs = |text: &str| other.globs.iter().any(|glob| glob.matches(text));
        let in_networks = |inner: &IpNet| other.networks.iter().any(|outer| outer.contains(inner));
        self.literals.iter().all(|literal| other.matches_any_pattern(literal))
            // If a glob matches the text of another glob, its stars match anything that the other's stars match.
            && self.globs.iter().all(|glob| in_globs(&glob.text()))
            && self.networks.iter().all(|inner| in_networks(inner) || in_globs("*"))
    }

    /// Returns `true` if provably no value is matched by patterns of both conditions. Returns `false` if this is wrong
    /// or cannot be proved.
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

    /// Returns `true` if the patterns match every value of a present attribute: one of them is `*`.
    pub(crate) fn matches_every_value(&self) -> bool {
        self.globs.iter().any(|glob| glob.matches(""))
    }

    /// Returns `true` if the condition is negated (`not`). A negated condition is met by values that none of its
    /// patterns matches.
    pub fn is_negated(&self) -> bool {
        self.is_negated
    }

    /// Returns the source texts of the patterns, in the order of the policy file.
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

/// Formats the patterns in backticks, such as `` `POST` ``, `` `a` or `b*` `` or ``not `10.0.0.0/8` ``.
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

    fn pattern_matches(pattern: &str, value: &str) -> bool {
        let pattern = (pattern, pattern.parse().unwrap());
        Condition::new(false, vec![pattern]).matches(Some(value))
    }

    /// Returns `true` if a glob matches a value. This reference implementation is recursive: a star matches either the
    /// empty text, or one character and the text that the same star then matches.
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
    fn glob_star_also_matches_slashes() {
        assert!(pattern_matches("/v1/*", "/v1/users/7"));
        assert!(!pattern_matches("/v1/*", "/v2/users"));
        assert!(pattern_matches("*", ""));
        assert!(!pattern_matches("ab*ba", "aba"), "the parts may not overlap");
        assert!(!pattern_matches("a", "ab"));
    }

    #[test]
    fn network_matches_every_address_spelling() {
        assert!(pattern_matches("10.0.0.0/8", "10.255.0.1"));
        assert!(pattern_matches("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!pattern_matches("10.0.0.0/8", "11.0.0.0"));
        assert!(!pattern_matches("10.0.0.0/8", "10.0.0.0/8"));
        assert!(pattern_matches("2001:db8::1", "2001:0DB8:0::1"));
        assert!(!pattern_matches("2001:db8::/32", "2001:db9::"));
        assert!(pattern_matches("0.0.0.0/0", "1.2.3.4") && !pattern_matches("0.0.0.0/0", "::1"));
    }

    #[test]
    fn absent_attribute_matches_no_pattern() {
        let condition = |is_negated| Condition::new(is_negated, vec![("*", "*".parse().unwrap())]);
        assert!(!condition(false).matches(None) && condition(true).matches(None));
        assert!(condition(false).matches(Some("")) && !condition(true).matches(Some("a")));
    }

    #[test]
    fn invalid_network_error_contains_reason() {
        let error = |text: &str| text.parse::<Pattern>().unwrap_err().to_string();
        let prefix = "is not a network; an IPv4 prefix is a whole number from 0 to 32";
        for text in ["10.0.0.0/33", "10.0.0.0/", "10.0.0.0/+8", "10.0.0.0/8/8"] {
            assert_eq!(error(text), format!("`{text}` {prefix}"));
        }
        assert!(error("::/129").ends_with("an IPv6 prefix is a whole number from 0 to 128"));
        assert!(error("10.1.0.0/8").ends_with("did you mean `10.0.0.0/8`?"));
        assert!("/v1/8".parse::<Pattern>().is_ok(), "a path is none");
    }

    fn arbitrary_pattern_texts() -> impl Strategy<Value = Vec<String>> {
        proptest::collection::vec(
            "[ab]{1,2}|[ab]?\\*[ab]?|10\\.[01]\\.0\\.0/16|10\\.0\\.0\\.0/8",
            1..3,
        )
    }

    proptest! {
        #[test]
        fn glob_match_agrees_with_reference_implementation(pattern in "[ab*]{1,8}", value in "[ab]{0,10}") {
            prop_assert_eq!(
                pattern_matches(&pattern, &value),
                reference_glob_match(pattern.as_bytes(), value.as_bytes())
            );
        }

        #[test]
        fn implied_condition_is_met_by_every_value(
            (left, right) in (arbitrary_pattern_texts(), arbitrary_pattern_texts()),
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

        /// Checks that a condition with several patterns, which uses binary search, is met exactly if at least one
        /// condition with only one of these patterns is met.
        #[test]
        fn condition_matches_if_any_pattern_matches(
            patterns in proptest::collection::vec("[ab]{1,2}|[ab]?\\*[ab]?|10\\.[01]\\.0\\.0/16|10\\.0\\.0\\.0/(8|9)|::/[1-9]", 1..12),
            value in "[ab]{1,3}|10\\.[012]\\.[0-3]\\.7|[0-9a-f]{1,4}::",
        ) {
            let parsed: Vec<(&str, Pattern)> = (patterns.iter())
                .map(|pattern| (pattern.as_str(), pattern.parse().unwrap())).collect();
            prop_assert_eq!(
                Condition::new(false, parsed).matches(Some(&value)),
                patterns.iter().any(|pattern| pattern_matches(pattern, &value))
            );
        }
    }
}
