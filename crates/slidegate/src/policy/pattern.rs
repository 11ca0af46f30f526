//! Whether an attribute's value is as a rule wants it: literally, by a glob, or in a network.

use std::fmt;
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

use crate::host::normal_host;
use crate::network::{NetworkError, parse_address, parse_network};

/// What a value has to look like.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Literal(Box<str>),
    Glob(Glob),
    /// The value is an address in the network. An address alone is a network of one: it may be written
    /// in more than one way.
    Network(IpNet),
}

/// `*` stands for any characters, also none, also `/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Glob {
    first: Box<str>,
    between: Box<[Box<str>]>,
    last: Box<str>,
}

/// Why a text is no pattern.
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
            Some((first, rest)) => {
                let (between, last) = rest.rsplit_once('*').unwrap_or(("", rest));
                let between = between.split('*').filter(|part| !part.is_empty()).map(Into::into);
                Ok(Self::Glob(Glob {
                    first: first.into(),
                    between: between.collect(),
                    last: last.into(),
                }))
            }
        }
    }
}

impl Pattern {
    /// The pattern of a host, which holds for canonical hosts.
    pub(crate) fn of_host(text: &str) -> Result<Self, PatternError> {
        match text.parse()? {
            Self::Literal(_) => match &*normal_host(text) {
                "" => Err(PatternError::Host(text.to_owned())),
                // Without its brackets, or its port, it may be an address.
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
    /// What every value that matches begins with.
    pub(crate) fn prefix(&self) -> &str {
        &self.first
    }

    /// The pattern as text; stars that follow each other are one.
    pub(crate) fn text(&self) -> String {
        let between = self.between.iter().map(|part| format!("{part}*"));
        format!("{}*{}{}", self.first, between.collect::<String>(), self.last)
    }

    /// Takes each part at its first place: with stars only, no later place could do better.
    pub(crate) fn matches(&self, value: &str) -> bool {
        let Some(mut rest) = value.strip_prefix(&*self.first) else {
            return false;
        };
        for part in &self.between {
            let Some((_, behind)) = rest.split_once(&**part) else {
                return false;
            };
            rest = behind;
        }
        rest.ends_with(&*self.last)
    }
}

/// What one attribute has to be: one of some patterns, or, negated, none of them.
///
/// Two conditions are equal if they have the same patterns, however these are written.
#[derive(Clone, Debug)]
pub struct Condition {
    negated: bool,
    /// As written, in the order of the file.
    written: Box<[Box<str>]>,
    /// In order.
    literals: Box<[Box<str>]>,
    globs: Box<[Glob]>,
    /// In order, none within another.
    networks: Box<[IpNet]>,
}

impl Condition {
    /// The condition of patterns and what was written for them.
    pub(crate) fn new(negated: bool, patterns: Vec<(&str, Pattern)>) -> Self {
        let written = patterns.iter().map(|(text, _)| (*text).into()).collect();
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
            negated,
            written,
            literals: literals.into(),
            globs: globs.into(),
            networks: IpNet::aggregate(&networks).into(),
        }
    }

    /// Whether an attribute is as wanted. One that is absent is none of the patterns.
    pub fn holds(&self, value: Option<&str>) -> bool {
        match value {
            Some(value) => self.is_one(value) != self.negated,
            None => self.negated,
        }
    }

    fn is_one(&self, value: &str) -> bool {
        self.literals.binary_search_by(|literal| (**literal).cmp(value)).is_ok()
            || self.globs.iter().any(|glob| glob.matches(value))
            || (!self.networks.is_empty() && self.has_address(value))
    }

    fn has_address(&self, value: &str) -> bool {
        parse_address(value).is_some_and(|address| {
            // The last network that begins at or before the address is the only one that can have it.
            let behind = self.networks.partition_point(|network| network.network() <= address);
            self.networks[..behind].last().is_some_and(|network| network.contains(&address))
        })
    }

    /// Whether nothing that meets this condition can meet another. Literals can be told.
    pub(crate) fn excludes(&self, other: &Self) -> bool {
        let literal = !self.negated && self.globs.is_empty() && self.networks.is_empty();
        literal && self.literals.iter().all(|literal| !other.holds(Some(literal)))
    }

    /// Whether whatever meets this condition meets another. `false` where that cannot be shown.
    pub(crate) fn implies(&self, other: &Self) -> bool {
        match (self.negated, other.negated) {
            (false, false) => self.is_within(other),
            (true, true) => other.is_within(self),
            (false, true) => self.is_apart_from(other),
            // An absent attribute meets the negated one only.
            (true, false) => false,
        }
    }

    /// Whether the patterns of another match all that these match. `false` where that cannot be shown.
    fn is_within(&self, other: &Self) -> bool {
        let in_globs = |text: &str| other.globs.iter().any(|glob| glob.matches(text));
        let in_networks = |inner: &IpNet| other.networks.iter().any(|outer| outer.contains(inner));
        self.literals.iter().all(|literal| other.is_one(literal))
            // If a glob matches the text of another, its stars take what the stars of the other take.
            && self.globs.iter().all(|glob| in_globs(&glob.text()))
            && self.networks.iter().all(|inner| in_networks(inner) || in_globs("*"))
    }

    /// Whether the patterns of another match nothing that these match. `false` where that cannot be shown.
    fn is_apart_from(&self, other: &Self) -> bool {
        let has_literals_only = |one: &Self| one.globs.is_empty() && one.networks.is_empty();
        let is_apart =
            |literals: &[Box<str>], from: &Self| !literals.iter().any(|l| from.is_one(l));
        is_apart(&self.literals, other)
            && (has_literals_only(self)
                || has_literals_only(other) && is_apart(&other.literals, self))
    }

    /// Whether every value that is present matches.
    pub(crate) fn matches_every_value(&self) -> bool {
        self.globs.iter().any(|glob| glob.matches(""))
    }

    /// Whether it is about what the attribute is *not*.
    pub fn is_negated(&self) -> bool {
        self.negated
    }

    /// The patterns, as written.
    pub fn patterns(&self) -> impl Iterator<Item = &str> {
        self.written.iter().map(|pattern| &**pattern)
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
        let Self { negated, written: _, literals, globs, networks } = self;
        (negated, literals, globs, networks)
            == (&other.negated, &other.literals, &other.globs, &other.networks)
    }
}

impl Eq for Condition {}

/// `POST`, ``one of `a` or `b*` ``, ``not `10.0.0.0/8` ``.
impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.negated {
            f.write_str("not ")?;
        }
        for (nth, pattern) in self.written.iter().enumerate() {
            let last = nth + 1 == self.written.len();
            let before = match nth {
                0 => "",
                _ if last => " or ",
                _ => ", ",
            };
            write!(f, "{before}`{pattern}`")?;
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
        Condition::new(false, vec![pattern]).holds(Some(value))
    }

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
        assert!(matches("/v1/*", "/v1/users/7"));
        assert!(!matches("/v1/*", "/v2/users"));
        assert!(matches("*", ""));
        assert!(!matches("ab*ba", "aba"), "the parts may not overlap");
        assert!(!matches("a", "ab"));
    }

    #[test]
    fn a_network_takes_addresses_however_they_are_written() {
        assert!(matches("10.0.0.0/8", "10.255.0.1"));
        assert!(matches("10.0.0.0/8", "::ffff:10.1.2.3"));
        assert!(!matches("10.0.0.0/8", "11.0.0.0"));
        assert!(!matches("10.0.0.0/8", "10.0.0.0/8"));
        assert!(matches("2001:db8::1", "2001:0DB8:0::1"));
        assert!(!matches("2001:db8::/32", "2001:db9::"));
        assert!(matches("0.0.0.0/0", "1.2.3.4") && !matches("0.0.0.0/0", "::1"));
    }

    #[test]
    fn what_is_absent_is_not_anything() {
        let condition = |negated| Condition::new(negated, vec![("*", "*".parse().unwrap())]);
        assert!(!condition(false).holds(None) && condition(true).holds(None));
        assert!(condition(false).holds(Some("")) && !condition(true).holds(Some("a")));
    }

    #[test]
    fn a_network_that_cannot_be_says_why() {
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
        fn a_glob_agrees_with_the_book(pattern in "[ab*]{1,8}", value in "[ab]{0,10}") {
            prop_assert_eq!(
                matches(&pattern, &value),
                matches_by_the_book(pattern.as_bytes(), value.as_bytes())
            );
        }

        #[test]
        fn implied_condition_holds_for_every_value(
            (one, other) in (patterns(), patterns()),
            (one_negated, other_negated) in (any::<bool>(), any::<bool>()),
            value in proptest::option::of("[ab]{0,3}|10\\.[01]\\.[01]\\.7"),
        ) {
            let condition = |negated, texts: &[String]| {
                let parsed = texts.iter().map(|text| (text.as_str(), text.parse().unwrap()));
                Condition::new(negated, parsed.collect())
            };
            let (one, other) = (condition(one_negated, &one), condition(other_negated, &other));
            let holds = |condition: &Condition| condition.holds(value.as_deref());
            prop_assert!(!one.implies(&other) || !holds(&one) || holds(&other), "{one}, {other}");
            prop_assert!(one.implies(&one), "{one}");
        }

        /// A list is searched, not looked through.
        #[test]
        fn a_list_matches_if_one_of_it_does(
            patterns in proptest::collection::vec("[ab]{1,2}|[ab]?\\*[ab]?|10\\.[01]\\.0\\.0/16|10\\.0\\.0\\.0/(8|9)|::/[1-9]", 1..12),
            value in "[ab]{1,3}|10\\.[012]\\.[0-3]\\.7|[0-9a-f]{1,4}::",
        ) {
            let parsed: Vec<(&str, Pattern)> = (patterns.iter())
                .map(|pattern| (pattern.as_str(), pattern.parse().unwrap())).collect();
            prop_assert_eq!(
                Condition::new(false, parsed).holds(Some(&value)),
                patterns.iter().any(|pattern| matches(pattern, &value))
            );
        }
    }
}
