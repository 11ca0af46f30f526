//! The normalization of attribute values, so that all spellings of a value match the same rules and share a counter.

use std::borrow::Cow;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Deserialize;
use unicode_normalization::UnicodeNormalization;

use super::name_map::NameMap;
use crate::host::{is_host_attribute, normalize_host};
use crate::request::{AttributePairs, Descriptor};

/// A step of the normalization of attribute values.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum NormalizeStep {
    /// Removes white space at the start and the end.
    Trim,
    /// Converts characters to the Unicode form NFKC: `ﬁ` to `fi`, and wide letters to plain ones.
    Nfkc,
    /// Converts letters to lower case, also outside of ASCII.
    Lowercase,
    /// Removes slashes at the end, except from `/`.
    TrailingSlash,
    /// Replaces several slashes in a row by one.
    DoubleSlash,
    /// Replaces encoded slashes (`%2F`) by slashes.
    EncodedSlash,
}

impl NormalizeStep {
    /// Returns the name of the step, as written in policies, for example `trim`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Trim => "trim",
            Self::Nfkc => "nfkc",
            Self::Lowercase => "lowercase",
            Self::TrailingSlash => "trailing_slash",
            Self::DoubleSlash => "double_slash",
            Self::EncodedSlash => "encoded_slash",
        }
    }

    fn apply(self, text: Cow<'_, str>) -> Cow<'_, str> {
        match text {
            Cow::Borrowed(text) => self.apply_to_str(text),
            Cow::Owned(text) => Cow::Owned(self.apply_to_str(&text).into_owned()),
        }
    }

    /// Applies the step to a text. The result is borrowed if it is a part of the text.
    fn apply_to_str(self, text: &str) -> Cow<'_, str> {
        match self {
            Self::Trim => text.trim().into(),
            Self::Nfkc if text.is_ascii() => text.into(),
            Self::Nfkc => borrow_if_equal(text.nfkc().collect(), text),
            Self::Lowercase if is_lower_case_ascii(text) => text.into(),
            Self::Lowercase => borrow_if_equal(text.to_lowercase(), text),
            Self::TrailingSlash => match split_path_and_query(text) {
                ("/", _) => text.into(),
                (path, query) if path.ends_with('/') => match path.trim_end_matches('/') {
                    "" => format!("/{query}").into(),
                    start if query.is_empty() => start.into(),
                    start => format!("{start}{query}").into(),
                },
                _ => text.into(),
            },
            Self::DoubleSlash => match split_path_and_query(text) {
                (path, query) if path.contains("//") => {
                    let mut single = String::with_capacity(text.len());
                    for char in path.chars() {
                        if char != '/' || !single.ends_with('/') {
                            single.push(char);
                        }
                    }
                    (single + query).into()
                }
                _ => text.into(),
            },
            Self::EncodedSlash => {
                let (path, query) = split_path_and_query(text);
                let decoded = path.replace("%2F", "/").replace("%2f", "/");
                borrow_if_equal(decoded + query, text)
            }
        }
    }
}

fn borrow_if_equal(result: String, text: &str) -> Cow<'_, str> {
    if result == text { text.into() } else { result.into() }
}

fn is_lower_case_ascii(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii() && !byte.is_ascii_uppercase())
}

/// Splits a path before its first `?` or `#`.
fn split_path_and_query(path: &str) -> (&str, &str) {
    path.split_at(path.find(['?', '#']).unwrap_or(path.len()))
}

/// Applies steps to a value, one after the other.
pub(super) fn normalize<'v>(steps: &[NormalizeStep], value: &'v str) -> Cow<'v, str> {
    steps.iter().fold(Cow::Borrowed(value), |value, step| step.apply(value))
}

/// Attribute names with the steps by which their values are normalized.
pub(super) type StepsByAttribute = NameMap<Box<[NormalizeStep]>>;

/// The field `normalize` of a policy: the normalization steps of attributes, in all domains or in one.
#[derive(Clone, Debug, Default)]
pub(super) struct Normalizations {
    pub(super) for_all_domains: StepsByAttribute,
    pub(super) by_domain: NameMap<StepsByAttribute>,
}

impl Normalizations {
    /// Returns the steps of an attribute in a domain. Steps for the domain replace steps for all domains.
    pub(super) fn steps(&self, domain: &str, attribute: &str) -> &[NormalizeStep] {
        let of_domain = self.by_domain.get(domain).and_then(|steps| steps.get(attribute));
        of_domain.or_else(|| self.for_all_domains.get(attribute)).map_or(&[], |steps| steps)
    }

    /// Returns the attributes of a rule that are normalized, with their steps. If the rule uses `route`, this includes
    /// `path`, from which the route results.
    pub(super) fn steps_by_attribute(&self, domain: &str, names: &[Box<str>]) -> StepsByAttribute {
        let has_route = names.iter().any(|name| &**name == "route");
        let path = has_route.then_some("path");
        let names = names.iter().map(|name| &**name).chain(path);
        let steps = names.map(|name| (name.into(), self.steps(domain, name).into()));
        steps.filter(|(_, steps): &(_, Box<[_]>)| !steps.is_empty()).collect()
    }

    /// Returns the names of the attributes that are normalized in a domain. A name can occur twice.
    fn attributes(&self, domain: &str) -> impl Iterator<Item = &str> {
        let of_domain = self.by_domain.get(domain).into_iter().flat_map(|steps| steps.keys());
        self.for_all_domains.keys().chain(of_domain).map(|name| &**name)
    }
}

/// The normalization of the attributes of one domain: the steps in the policy, and the canonical form of hosts.
#[derive(Clone, Debug)]
pub(super) struct DomainNormalization {
    /// A number that identifies the normalization and its copies in this process. A descriptor caches its normalized
    /// values under this number.
    id: u64,
    steps: StepsByAttribute,
    /// Whether a rule uses an attribute that contains a host name, in a condition or in `per`.
    uses_hosts: bool,
}

impl DomainNormalization {
    /// Returns the normalization of a domain; `None` if it changes no value.
    pub(super) fn new(
        normalizations: &Normalizations,
        domain: &str,
        uses_hosts: bool,
    ) -> Option<Self> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        let steps = normalizations.attributes(domain);
        let steps = steps.map(|name| (name.into(), normalizations.steps(domain, name).into()));
        let steps: StepsByAttribute = steps.collect();
        if steps.is_empty() && !uses_hosts {
            return None;
        }
        let id = NEXT_ID.fetch_add(1, Ordering::Relaxed);
        Some(Self { id, steps, uses_hosts })
    }

    /// Returns the attributes of a descriptor with normalized values; `None` if all values are normalized already.
    pub(super) fn normalize<'r>(
        &self,
        descriptor: &'r Descriptor<'_>,
    ) -> Option<AttributePairs<'r>> {
        descriptor.normalized_attributes(self.id, |name, value| self.normalize_value(name, value))
    }

    /// Returns whether the values of an attribute are normalized.
    pub(super) fn applies_to(&self, attribute: &str) -> bool {
        is_host_attribute(attribute) || self.steps.contains_key(attribute)
    }

    pub(super) fn normalize_value<'v>(&self, name: &str, value: &'v str) -> Cow<'v, str> {
        let steps = self.steps.get(name).map_or(&[][..], |steps| steps);
        match normalize(steps, value) {
            value if !self.uses_hosts || !is_host_attribute(name) => value,
            Cow::Borrowed(value) => normalize_host(value),
            Cow::Owned(value) => Cow::Owned(normalize_host(&value).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use NormalizeStep::{DoubleSlash, Lowercase, Nfkc, TrailingSlash, Trim};
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn steps_have_documented_effect() {
        for (steps, text, expected) in [
            (&[Trim][..], " \u{a0}Ann\t", "Ann"),
            (&[Lowercase], "ÄNN@Example.com", "änn@example.com"),
            (&[Trim, Lowercase], " Ann", "ann"),
            (&[Nfkc], "e\u{301} ﬁn", "\u{e9} fin"),
            (&[Nfkc, Lowercase], "Ａｎｎ", "ann"),
            (&[TrailingSlash], "/login/", "/login"),
            (&[TrailingSlash], "/login//?next=/", "/login?next=/"),
            (&[TrailingSlash], "/", "/"),
            (&[TrailingSlash], "//", "/"),
            (&[TrailingSlash], "/#/", "/#/"),
            (&[DoubleSlash], "//a///b?c=//", "/a/b?c=//"),
            (&[TrailingSlash, DoubleSlash], "//a//", "/a"),
            (&[DoubleSlash, TrailingSlash], "//", "/"),
            (&[], "Ann ", "Ann "),
        ] {
            assert_eq!(normalize(steps, text), expected, "{steps:?} {text}");
        }
    }

    proptest! {
        #[test]
        fn normalizing_twice_changes_nothing(
            text in "[aA/?# ]{0,9}|\\PC{0,9}",
            steps in proptest::sample::subsequence(vec![Trim, Lowercase, TrailingSlash, DoubleSlash], 0..=4).prop_shuffle(),
        ) {
            // Slashes at the end can hide white space from an earlier step.
            prop_assume!(!steps.contains(&Trim) || !text.contains('/'));
            let once = normalize(&steps, &text).into_owned();
            prop_assert_eq!(&*normalize(&steps, &once), &*once);
            prop_assert!(matches!(normalize(&steps, &once), Cow::Borrowed(text) if text == once));
        }
    }
}
