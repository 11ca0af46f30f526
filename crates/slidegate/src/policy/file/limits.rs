//! Makes limits of what a policy file says of them.

use std::time::Duration;

use super::compile::Compiler;
use super::deserialize::Field;
use super::spec::{AlgorithmName, AlignName, LimitMap, LimitSpec, LimitsSpec};
use super::{MAX_LIMITS, SourceSpan};
use crate::algorithm::{Algorithm, Align};
use crate::limit::Limit;
use crate::quota::{self, Quota};

/// A limit, and what it is known by in its rule.
pub(super) struct Counted {
    pub(super) id: Box<str>,
    pub(super) limit: Limit,
    pub(super) at: SourceSpan,
}

impl Counted {
    /// A limit that nothing fits.
    fn denied(at: SourceSpan) -> Self {
        Self { id: "denied".into(), limit: Limit::denied(), at }
    }
}

impl Compiler<'_> {
    /// The limits of a rule or an override.
    pub(super) fn limits(
        &mut self,
        limits: &Field<LimitsSpec>,
        by_default: Algorithm,
    ) -> Vec<Counted> {
        let (entries, at) = match limits.given() {
            None | Some((LimitsSpec::Unlimited, _)) => return Vec::new(),
            Some((LimitsSpec::Denied, at)) => return vec![Counted::denied(at)],
            Some((LimitsSpec::Requested, at)) => return vec![Counted::requested(at)],
            Some((LimitsSpec::List(entries), at)) => (entries, at),
        };
        if entries.is_empty() {
            let message =
                "an empty list limits nothing: write a limit such as [100/min], or `unlimited`";
            self.wrong(at, message);
        }
        if entries.len() > MAX_LIMITS {
            self.wrong(at, format_args!("at most {MAX_LIMITS} limits in a rule"));
        }
        let mut counted: Vec<Counted> = Vec::new();
        for entry in entries.iter().take(MAX_LIMITS) {
            let Some((entry, at)) = entry.given() else { continue };
            let read = match entry {
                LimitSpec::Text(text) => self.text(at, text, by_default),
                LimitSpec::Map(map) => self.map(at, map, by_default),
            };
            let Some(limit) = read else { continue };
            if counted.iter().any(|other| other.id == limit.id) {
                let message = format_args!(
                    "two limits of this rule are known as `{}`: give one a `name`, or keep the smaller",
                    limit.id
                );
                self.wrong(at, message);
            }
            counted.push(limit);
        }
        counted
    }

    /// Sees that the store can count by all of them. Those that count by an algorithm which was said elsewhere are
    /// wrong there.
    pub(super) fn supported(&mut self, limits: &[Counted], said: Option<(Algorithm, SourceSpan)>) {
        for Counted { limit, at, .. } in limits {
            let own = limit.algorithm().name();
            let said = said.filter(|(algorithm, _)| algorithm.name() == own);
            self.supports(limit, said.map_or(*at, |(_, at)| at));
        }
    }

    fn text(&mut self, at: SourceSpan, text: &str, algorithm: Algorithm) -> Option<Counted> {
        let quota: Quota = self.or_wrong(at, text.parse())?;
        let limit = self.or_wrong(at, Limit::new(quota, algorithm))?;
        Some(Counted { id: quota.window_text().into(), limit, at })
    }

    fn map(&mut self, at: SourceSpan, map: &LimitMap, by_default: Algorithm) -> Option<Counted> {
        if let Some((name, at)) = map.name.given() {
            self.name("limit", name, at);
        }
        for (absent, what) in
            [(map.max.is_absent(), "max: 100"), (map.window.is_absent(), "window: 1m")]
        {
            if absent {
                self.wrong(at, format_args!("a limit needs `max` and `window`: add `{what}`"));
            }
        }
        let algorithm = match map.algorithm.get() {
            Some(AlgorithmName(algorithm)) => *algorithm,
            None => by_default,
        };
        let window = self.window(&map.window);
        let algorithm = self.parameters(map, algorithm);
        let (max, max_at) = map.max.given()?;
        let quota = self.or_wrong(max_at, Quota::new(*max, window?))?;
        let limit = self.or_wrong(at, Limit::new(quota, algorithm?))?;
        let id = match map.name.get() {
            Some(name) => name.as_str().into(),
            None => quota.window_text().into(),
        };
        Some(Counted { id, limit, at })
    }

    fn window(&mut self, window: &Field<String>) -> Option<Duration> {
        let (text, at) = window.given()?;
        self.or_wrong(at, quota::parse_window(text))
    }

    /// The algorithm with the limit's own `precision`, `burst`, `max_debt` or `align`.
    fn parameters(&mut self, map: &LimitMap, algorithm: Algorithm) -> Option<Algorithm> {
        let precision = self.window(&map.precision);
        if !map.precision.is_absent() && precision.is_none() {
            return None;
        }
        let own = match algorithm {
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision },
            Algorithm::TokenBucket { .. } => {
                let (burst, max_debt) = (map.burst.get().copied(), map.max_debt.get().copied());
                Algorithm::TokenBucket { burst, max_debt }
            }
            Algorithm::FixedWindow { .. } => Algorithm::FixedWindow { align: align(&map.align) },
            other => other,
        };
        let given = [
            ("precision", map.precision.is_absent(), map.precision.place(), "sliding_buckets"),
            ("burst", map.burst.is_absent(), map.burst.place(), "token_bucket"),
            ("max_debt", map.max_debt.is_absent(), map.max_debt.place(), "token_bucket"),
            ("align", map.align.is_absent(), map.align.place(), "fixed_window"),
        ];
        let mut fine = true;
        for (what, absent, at, owner) in given {
            if !absent && own.name() != owner {
                let message = format_args!(
                    "`{what}` goes with {owner}, but this limit is a {own}: take `{what}` away, or write `algorithm: {owner}`"
                );
                self.wrong(at, message);
                fine = false;
            }
        }
        fine.then_some(own)
    }
}

fn align(align: &Field<AlignName>) -> Align {
    match align.get() {
        Some(AlignName::Clock) => Align::Clock,
        Some(AlignName::Key) | None => Align::Key,
    }
}
