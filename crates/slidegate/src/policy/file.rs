//! The policy file: YAML, read with positions.
//!
//! Reading takes two steps. What the file *says* is read by serde into the types below, each value with
//! its place. What it *means* is then made of these, and every mistake is reported, not the first only.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::time::Duration;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{MapAccess, Visitor};
use serde_saphyr::{Location, Spanned};
use thiserror::Error;

use super::pattern::Pattern;
use super::{Policy, Rule, RuleLimit};
use crate::algorithm::Algorithm;
use crate::key::Scope;
use crate::limit::Limit;
use crate::quota::{self, Quota};
use crate::request::DEFAULT_DOMAIN;

/// Rules that a policy may have.
pub const MAX_RULES: usize = 10_000;

/// Limits that a rule may have.
pub const MAX_LIMITS: usize = 16;

/// Attributes that a rule may count per.
pub const MAX_PER: usize = 16;

/// The version of the language.
const VERSION: u64 = 1;

/// One mistake in a policy, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1; 0 if unknown.
    pub line: u64,
    /// The column, from 1; 0 if unknown.
    pub column: u64,
    /// What is wrong, and what would be right.
    pub message: String,
}

impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)
    }
}

/// Why a policy cannot be: every mistake that was found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyErrors(pub Vec<PolicyError>);

impl Policy {
    /// Reads a policy.
    ///
    /// ```
    /// use slidegate::Policy;
    ///
    /// let errors = Policy::from_yaml("rules:\n  - { name: a, limits: [10/fortnight] }\n").unwrap_err();
    /// assert_eq!((errors.0[0].line, errors.0[0].column), (2, 25));
    /// assert!(errors.to_string().contains("`fortnight` is not a window"));
    /// ```
    ///
    /// # Errors
    /// If it is not YAML, or not of the policy's form, or has mistakes.
    pub fn from_yaml(text: &str) -> Result<Self, PolicyErrors> {
        let file: File = serde_saphyr::from_str(text).map_err(|error| {
            let error = error.without_snippet();
            let (line, column) = error.location().map_or((0, 0), |at| (at.line(), at.column()));
            let message = error.to_string();
            // The position is told in front.
            let behind = format!(" at line {line}, column {column}");
            let message = message.strip_suffix(&behind).unwrap_or(&message).to_owned();
            PolicyErrors(vec![PolicyError { line, column, message }])
        })?;
        let mut reader = Reader::default();
        let rules = reader.rules(&file);
        if reader.errors.is_empty() {
            Ok(Self::of_rules(rules))
        } else {
            Err(PolicyErrors(reader.errors))
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    version: Option<Spanned<u64>>,
    rules: Spanned<Vec<RuleEntry>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleEntry {
    name: Spanned<String>,
    domain: Option<Spanned<String>>,
    #[serde(default)]
    when: BTreeMap<String, String>,
    #[serde(default)]
    per: Vec<Spanned<String>>,
    limits: Spanned<Vec<Spanned<LimitEntry>>>,
    algorithm: Option<Spanned<String>>,
}

/// `100/min`, or a map.
enum LimitEntry {
    Text(String),
    Map(Box<LimitMap>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitMap {
    name: Option<Spanned<String>>,
    max: Spanned<u64>,
    window: Spanned<String>,
    algorithm: Option<Spanned<String>>,
    precision: Option<Spanned<String>>,
    burst: Option<Spanned<u64>>,
}

/// By hand, because an untagged enum would lose the positions.
impl<'de> Deserialize<'de> for LimitEntry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = LimitEntry;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a limit such as `100/min`, or a map with `max` and `window`")
            }

            fn visit_str<E>(self, text: &str) -> Result<LimitEntry, E> {
                Ok(LimitEntry::Text(text.to_owned()))
            }

            /// A bare number is text that lacks its window: told with the other mistakes.
            fn visit_u64<E>(self, number: u64) -> Result<LimitEntry, E> {
                Ok(LimitEntry::Text(number.to_string()))
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LimitEntry, A::Error> {
                LimitMap::deserialize(MapAccessDeserializer::new(map))
                    .map(|map| LimitEntry::Map(Box::new(map)))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

/// Makes rules of entries, and collects what is wrong with them.
#[derive(Default)]
struct Reader {
    errors: Vec<PolicyError>,
}

impl Reader {
    fn wrong(&mut self, at: Location, message: impl fmt::Display) {
        self.errors.push(PolicyError {
            line: at.line(),
            column: at.column(),
            message: message.to_string(),
        });
    }

    /// The value, if there is one; else its error is noted.
    fn or_wrong<T>(&mut self, at: Location, result: Result<T, impl fmt::Display>) -> Option<T> {
        result.map_err(|error| self.wrong(at, error)).ok()
    }

    fn rules(&mut self, file: &File) -> Vec<Rule> {
        if let Some(version) = file.version.as_ref().filter(|version| version.value != VERSION) {
            self.wrong(
                version.referenced,
                format_args!("version {} is not known: write `version: {VERSION}`", version.value),
            );
        }
        let rules = &file.rules;
        if rules.value.len() > MAX_RULES {
            self.wrong(
                rules.referenced,
                format_args!("{} rules are too many: at most {MAX_RULES}", rules.value.len()),
            );
        }
        let mut names = HashSet::new();
        let rules = rules.value.iter().take(MAX_RULES);
        rules.filter_map(|entry| self.rule(entry, &mut names)).collect()
    }

    fn rule<'f>(
        &mut self,
        entry: &'f RuleEntry,
        names: &mut HashSet<(&'f str, &'f str)>,
    ) -> Option<Rule> {
        self.name("rule", &entry.name);
        if let Some(domain) = entry.domain.as_ref().filter(|domain| domain.value.is_empty()) {
            self.wrong(domain.referenced, "a domain needs a name");
        }
        let name = entry.name.value.as_str();
        let domain = entry.domain.as_ref().map_or(DEFAULT_DOMAIN, |domain| domain.value.as_str());
        if !names.insert((domain, name)) {
            self.wrong(
                entry.name.referenced,
                format_args!(
                    "a rule `{name}` stands in domain `{domain}` already: give it another name"
                ),
            );
        }
        let per = self.per(&entry.per);
        let algorithm = entry.algorithm.as_ref().and_then(|name| self.algorithm(name));
        let algorithm = algorithm.unwrap_or_default();
        let limits = self.limits(&entry.limits, algorithm);
        let limits = limits.into_iter().map(|(id, limit)| RuleLimit {
            scope: Scope::new(domain, name, &id, &per),
            id,
            limit,
        });
        Some(Rule {
            name: name.into(),
            domain: domain.into(),
            when: (entry.when.iter())
                .map(|(name, pattern)| (name.as_str().into(), Pattern::new(pattern)))
                .collect(),
            limits: limits.collect(),
            per,
        })
    }

    /// Names stand in headers, metrics and keys.
    fn name(&mut self, what: &str, name: &Spanned<String>) {
        let plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        if name.value.is_empty() || name.value.len() > 128 || !name.value.bytes().all(plain) {
            self.wrong(
                name.referenced,
                format_args!(
                    "`{}` cannot name a {what}: use 1 to 128 of a-z, 0-9, `.`, `_` and `-`",
                    name.value
                ),
            );
        }
    }

    fn per(&mut self, per: &[Spanned<String>]) -> Box<[Box<str>]> {
        let mut seen = HashSet::new();
        for (nth, name) in per.iter().enumerate() {
            if name.value.is_empty() {
                self.wrong(name.referenced, "an attribute needs a name");
            } else if !seen.insert(&name.value) {
                let message = format_args!("`{}` stands in `per` twice: take one away", name.value);
                self.wrong(name.referenced, message);
            } else if nth == MAX_PER {
                self.wrong(name.referenced, format_args!("at most {MAX_PER} attributes in `per`"));
            }
        }
        per.iter().map(|name| name.value.as_str().into()).collect()
    }

    fn algorithm(&mut self, name: &Spanned<String>) -> Option<Algorithm> {
        let algorithm = Algorithm::by_name(&name.value);
        if algorithm.is_none() {
            let known = Algorithm::ALL.map(|algorithm| algorithm.name()).join(", ");
            let message = format_args!("`{}` is no algorithm: one of {known}", name.value);
            self.wrong(name.referenced, message);
        }
        algorithm
    }

    /// The limits of a rule with their ids.
    fn limits(
        &mut self,
        entries: &Spanned<Vec<Spanned<LimitEntry>>>,
        algorithm: Algorithm,
    ) -> Vec<(Box<str>, Limit)> {
        if entries.value.is_empty() {
            self.wrong(
                entries.referenced,
                "a rule needs at least one limit, for example [100/min]",
            );
        }
        if entries.value.len() > MAX_LIMITS {
            self.wrong(entries.referenced, format_args!("at most {MAX_LIMITS} limits in a rule"));
        }
        let mut limits: Vec<(Box<str>, Limit)> = Vec::new();
        for entry in &entries.value {
            let read = match &entry.value {
                LimitEntry::Text(text) => self.text(entry.referenced, text, algorithm),
                LimitEntry::Map(map) => self.map(entry.referenced, map, algorithm),
            };
            let Some((id, limit)) = read else { continue };
            if limits.iter().any(|(other, _)| *other == id) {
                let message = format_args!(
                    "two limits of this rule are known as `{id}`: give one a `name`, or keep the smaller"
                );
                self.wrong(entry.referenced, message);
            }
            limits.push((id, limit));
        }
        limits
    }

    fn text(
        &mut self,
        at: Location,
        text: &str,
        algorithm: Algorithm,
    ) -> Option<(Box<str>, Limit)> {
        let quota: Quota = self.or_wrong(at, text.parse())?;
        let limit = self.or_wrong(at, Limit::new(quota, algorithm))?;
        Some((quota.window_text().into(), limit))
    }

    fn map(
        &mut self,
        at: Location,
        map: &LimitMap,
        algorithm: Algorithm,
    ) -> Option<(Box<str>, Limit)> {
        if let Some(name) = &map.name {
            self.name("limit", name);
        }
        let algorithm = match &map.algorithm {
            Some(name) => self.algorithm(name),
            None => Some(algorithm),
        };
        let window = &map.window;
        let window = self.or_wrong(window.referenced, quota::parse_window(&window.value));
        let precision = match &map.precision {
            Some(text) => Some(self.or_wrong(text.referenced, quota::parse_window(&text.value))?),
            None => None,
        };
        let algorithm = self.parameters(map, algorithm?, precision)?;
        let quota = self.or_wrong(at, Quota::new(map.max.value, window?))?;
        let limit = self.or_wrong(at, Limit::new(quota, algorithm))?;
        let id = match &map.name {
            Some(name) => name.value.as_str().into(),
            None => quota.window_text().into(),
        };
        Some((id, limit))
    }

    /// The algorithm with the limit's own `precision` or `burst`.
    fn parameters(
        &mut self,
        map: &LimitMap,
        algorithm: Algorithm,
        precision: Option<Duration>,
    ) -> Option<Algorithm> {
        let burst = map.burst.as_ref();
        let algorithm = match algorithm {
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision },
            Algorithm::TokenBucket { .. } => {
                Algorithm::TokenBucket { burst: burst.map(|burst| burst.value) }
            }
            other => other,
        };
        let mut goes_with = |what: &str, at: Option<Location>, owner: &str| {
            let stray = at.filter(|_| algorithm.name() != owner);
            if let Some(at) = stray {
                self.wrong(
                    at,
                    format_args!("`{what}` goes with {owner}, but this limit is a {algorithm}"),
                );
            }
            stray.is_none()
        };
        let precision_at = map.precision.as_ref().map(|precision| precision.referenced);
        let fine = goes_with("precision", precision_at, "sliding_buckets")
            & goes_with("burst", burst.map(|burst| burst.referenced), "token_bucket");
        fine.then_some(algorithm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errors(yaml: &str) -> Vec<String> {
        let errors = Policy::from_yaml(yaml).expect_err("a mistake");
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn reads_every_field() {
        let policy = Policy::from_yaml(
            "
version: 1
rules:
  - name: per-client
    domain: api
    when: { method: POST, path: /v1/* }
    per: [api_key, ip]
    limits: [10/s, 600/min]
    algorithm: sliding_log
  - name: login
    limits:
      - { name: burst, max: 5, window: 1m, algorithm: token_bucket, burst: 8 }
      - { max: 100, window: 1d, algorithm: sliding_buckets, precision: 1h }
",
        )
        .unwrap();
        let [client, login] = policy.rules() else { panic!("two rules") };
        assert_eq!((client.domain(), login.domain()), ("api", "default"));
        assert_eq!(client.per().collect::<Vec<_>>(), ["api_key", "ip"]);
        let limits = |rule: &Rule| -> Vec<String> {
            rule.limits().iter().map(|limit| format!("{} {}", limit.id(), limit.limit())).collect()
        };
        assert_eq!(limits(client), ["1s 10/1s sliding_log", "1m 600/1m sliding_log"]);
        assert_eq!(limits(login), ["burst 5/1m token_bucket", "1d 100/1d sliding_buckets"]);
        assert_eq!(
            login.limits()[1].limit().algorithm(),
            Algorithm::SlidingBuckets { precision: Some(Duration::from_secs(3_600)) }
        );
        assert_eq!(login.limits()[0].limit().capacity(), 8);
    }

    #[test]
    fn names_every_mistake_with_its_place() {
        let found = errors(
            "
version: 2
rules:
  - name: Per Client
    per: [ip, ip]
    limits: [10, 5/min]
  - name: a
    limits: []
    algorithm: leaky
  - name: a
    limits:
      - { max: 5, window: 1m, precision: 10s }
      - { max: 5, window: 7s, algorithm: sliding_buckets, precision: 2s }
      - 1/m
      - { max: 2, window: 60s }
",
        );
        let places: Vec<&str> = found.iter().map(|e| e.rsplit_once(": ").unwrap().0).collect();
        assert_eq!(found.len(), 10, "{found:#?}");
        assert!(found[0].starts_with("2:10: version 2 is not known"), "{places:?}");
        assert!(found[1].starts_with("4:11: `Per Client` cannot name a rule"));
        assert!(found[2].starts_with("5:15: `ip` stands in `per` twice"));
        assert!(found[3].starts_with("6:14: `10` is not a quota"));
        assert!(found[4].starts_with("9:16: `leaky` is no algorithm: one of sliding_log,"));
        assert!(found[5].starts_with("8:13: a rule needs at least one limit"));
        assert!(found[6].starts_with("10:11: a rule `a` stands in domain `default` already"));
        assert!(found[7].starts_with("12:42: `precision` goes with sliding_buckets"));
        assert!(found[8].starts_with("13:9: a precision of 2s does not divide the window of 7s"));
        assert!(found[9].starts_with("15:9: two limits of this rule are known as `1m`"));
    }

    #[test]
    fn a_wrong_form_has_a_place() {
        for (yaml, place) in [
            ("rules:\n  - name: a\n    limit: [1/s]\n", "3:5: "),
            ("rules: 5\n", "1:8: "),
            ("rules:\n  - name: a\n    limits: [{ max: many, window: 1s }]\n", "3:21: "),
            ("rules:\n  - name: [\n", "2:11: "),
        ] {
            let found = errors(yaml);
            assert!(found[0].starts_with(place), "{yaml} gives {found:?}");
        }
    }

    #[test]
    fn an_empty_file_is_no_policy() {
        assert_eq!(errors("").len(), 1);
    }
}
