//! Compiles the field `limits` of rules and overrides.

use std::time::Duration;

use super::bounds::MAX_LIMITS_PER_RULE;
use super::compiler::Compiler;
use super::deserialize::Field;
use super::spec::{AlgorithmSpec, AlignSpec, LimitMap, LimitSpec, LimitsSpec};
use super::suggest::missing_field_message;
use crate::algorithm::{Algorithm, Align};
use crate::calendar::{Calendar, Period};
use crate::hit::Block;
use crate::limit::{Limit, LimitError};
use crate::policy::error::SourceSpan;
use crate::quota::{self, Quota};

/// A limit with its id, which is unique in the rule. The id is the name of the limit, or its window or period if it has
/// no name.
pub(super) struct CompiledLimit {
    pub(super) id: Box<str>,
    pub(super) limit: Limit,
    pub(super) at: SourceSpan,
    /// The condition on which the limit blocks a key; `None` if it is not a block.
    pub(super) block: Option<Block>,
}

impl CompiledLimit {
    /// Creates the limit for `limits: denied`, which denies every request.
    fn deny_all(at: SourceSpan) -> Self {
        Self { id: "denied".into(), limit: Limit::deny_all(), at, block: None }
    }

    /// Creates the limit for `limits: requested`: a placeholder that denies every request, until a descriptor provides
    /// the actual limit.
    fn placeholder_for_requested_limit(at: SourceSpan) -> Self {
        Self { id: "requested".into(), limit: Limit::deny_all(), at, block: None }
    }
}

impl Compiler<'_> {
    /// Compiles the limits of a rule or an override. Limits without an algorithm get `default_algorithm`.
    pub(super) fn compile_limits(
        &mut self,
        limits: &Field<LimitsSpec>,
        default_algorithm: Algorithm,
    ) -> Vec<CompiledLimit> {
        let (specs, at) = match limits.value_and_span() {
            None | Some((LimitsSpec::Unlimited, _)) => return Vec::new(),
            Some((LimitsSpec::Denied, at)) => return vec![CompiledLimit::deny_all(at)],
            Some((LimitsSpec::Requested, at)) => {
                return vec![CompiledLimit::placeholder_for_requested_limit(at)];
            }
            Some((LimitsSpec::List(specs), at)) => (specs, at),
        };
        if specs.is_empty() {
            let message =
                "the list of limits is empty; add a limit such as 100/min, or write `unlimited`";
            self.report(at, message);
        }
        if specs.len() > MAX_LIMITS_PER_RULE {
            let message = format_args!(
                "too many limits: {}; the maximum is {MAX_LIMITS_PER_RULE}",
                specs.len()
            );
            self.report(at, message);
        }
        let mut named_limits: Vec<CompiledLimit> = Vec::new();
        for spec in specs.iter().take(MAX_LIMITS_PER_RULE) {
            let Some((spec, at)) = spec.value_and_span() else { continue };
            let compiled = match spec {
                LimitSpec::Text(text) => self.parse_limit_text(at, text, default_algorithm),
                LimitSpec::Map(map) => self.compile_limit_map(at, map, default_algorithm),
            };
            let Some(limit) = compiled else { continue };
            if named_limits.iter().any(|other| other.id == limit.id) {
                let message = format_args!(
                    "two limits of this rule have the name `{}`; give one of them another `name`, or remove it",
                    limit.id
                );
                self.report(at, message);
            }
            named_limits.push(limit);
        }
        named_limits
    }

    /// Reports each limit that the store does not support, at the position of the limit. If an override sets an
    /// algorithm and inherits the limits of its rule, `override_algorithm` is this algorithm with its position. An
    /// inherited limit with this algorithm is reported at the position of the algorithm.
    pub(super) fn report_unsupported_limits(
        &mut self,
        limits: &[CompiledLimit],
        override_algorithm: Option<(Algorithm, SourceSpan)>,
    ) {
        for CompiledLimit { limit, at, .. } in limits {
            let name = limit.algorithm().name();
            let override_algorithm =
                override_algorithm.filter(|(algorithm, _)| algorithm.name() == name);
            self.report_unsupported_limit(limit, override_algorithm.map_or(*at, |(_, at)| at));
        }
    }

    /// Parses a limit that is written as text, such as `100/min`.
    fn parse_limit_text(
        &mut self,
        at: SourceSpan,
        text: &str,
        algorithm: Algorithm,
    ) -> Option<CompiledLimit> {
        let quota: Quota = self.ok_or_report(at, text.parse())?;
        let limit = self.ok_or_report(at, Limit::new(quota, algorithm))?;
        Some(CompiledLimit { id: quota.window_text().into(), limit, at, block: None })
    }

    fn compile_limit_map(
        &mut self,
        at: SourceSpan,
        map: &LimitMap,
        default_algorithm: Algorithm,
    ) -> Option<CompiledLimit> {
        if let Some((name, at)) = map.name.value_and_span() {
            self.report_invalid_name("limit", name, at);
        }
        if !map.concurrent.is_absent() {
            return self.compile_concurrent_limit(at, map);
        }
        if let Some((_, at)) = map.permit_ttl.value_and_span() {
            let message = "`permit_ttl` is only for a limit with `concurrent`; remove it, or replace `max` and `window` by `concurrent`";
            self.report(at, message);
        }
        if !map.calendar.is_absent() {
            return self.compile_calendar_limit(at, map);
        }
        for (field, is_absent, at) in [
            ("timezone", map.timezone.is_absent(), map.timezone.span()),
            ("week_starts", map.week_starts.is_absent(), map.week_starts.span()),
            ("starts", map.starts.is_absent(), map.starts.span()),
        ] {
            if !is_absent {
                let message = format_args!(
                    "`{field}` is only for a limit with `calendar`; remove it, or replace `window` by a period, for example `calendar: day`"
                );
                self.report(at, message);
            }
        }
        for (is_absent, field) in
            [(map.max.is_absent(), "max: 100"), (map.window.is_absent(), "window: 1m")]
        {
            if is_absent {
                self.report(at, missing_field_message(field));
            }
        }
        let algorithm = match map.algorithm.get() {
            Some(AlgorithmSpec(algorithm)) => *algorithm,
            None => default_algorithm,
        };
        let window = self.duration_from_field(&map.window);
        let algorithm = self.add_algorithm_parameters(map, algorithm);
        let (max, max_at) = map.max.value_and_span()?;
        let quota = self.ok_or_report(max_at, Quota::new(*max, window?))?;
        let limit = self.ok_or_report(at, Limit::new(quota, algorithm?))?;
        let id = match map.name.get() {
            Some(name) => name.as_str().into(),
            None => quota.window_text().into(),
        };
        Some(CompiledLimit { id, limit, at, block: None })
    }

    /// Reports each present field in `fields`, with the message that `message` returns for it. An entry has the name of
    /// a field, whether it is absent, and its position. Returns `true` if all fields are absent.
    pub(super) fn report_excluded_fields<const N: usize>(
        &mut self,
        fields: [(&str, bool, SourceSpan); N],
        message: impl Fn(&str) -> String,
    ) -> bool {
        let mut is_valid = true;
        for (field, is_absent, at) in fields {
            if !is_absent {
                self.report(at, message(field));
                is_valid = false;
            }
        }
        is_valid
    }

    /// Compiles a limit with `calendar`, which is counted by `fixed_window`, whatever the algorithm of the rule is.
    fn compile_calendar_limit(&mut self, at: SourceSpan, map: &LimitMap) -> Option<CompiledLimit> {
        if map.max.is_absent() {
            self.report(at, missing_field_message("max: 100"));
        }
        let excluded = [
            ("window", map.window.is_absent(), map.window.span()),
            ("resolution", map.resolution.is_absent(), map.resolution.span()),
            ("precision", map.precision.is_absent(), map.precision.span()),
            ("burst", map.burst.is_absent(), map.burst.span()),
            ("max_debt", map.max_debt.is_absent(), map.max_debt.span()),
            ("align", map.align.is_absent(), map.align.span()),
        ];
        let mut is_valid = self.report_excluded_fields(excluded, |field| {
            format!("a limit with `calendar` has no `{field}`; remove one of the two")
        });
        if let Some((AlgorithmSpec(algorithm), at)) = map.algorithm.value_and_span()
            && !matches!(algorithm, Algorithm::FixedWindow { .. })
        {
            let message = format_args!(
                "a limit with `calendar` is counted by fixed_window, not by {algorithm}; remove `algorithm`, or replace `calendar` by a `window`"
            );
            self.report(at, message);
            is_valid = false;
        }
        let mut calendar = map.calendar.get().map(|period| Calendar::new((*period).into()));
        if let Some((name, at)) = map.timezone.value_and_span() {
            // The time zone is checked even if the period is invalid, so that both errors are reported.
            let periods = calendar.unwrap_or(Period::Day.into());
            let with_time_zone = self.ok_or_report(at, periods.with_time_zone(name));
            calendar = calendar.and(with_time_zone);
        }
        if let Some((day, at)) = map.week_starts.value_and_span() {
            if calendar.is_some_and(|calendar| calendar.period() != Period::Week) {
                self.report(at, "`week_starts` is only for `calendar: week`; remove it");
                is_valid = false;
            }
            calendar = calendar.map(|calendar| calendar.with_week_start((*day).into()));
        }
        if let Some((start, at)) = map.starts.value_and_span() {
            calendar = self.ok_or_report(at, calendar?.with_start(start));
        }
        let (calendar, (max, max_at)) = (calendar?, map.max.value_and_span()?);
        let limit = self.ok_or_report(max_at, Limit::calendar(*max, calendar))?;
        let id = match map.name.get() {
            Some(name) => name.as_str().into(),
            None => calendar.period().name().into(),
        };
        is_valid.then_some(CompiledLimit { id, limit, at, block: None })
    }

    /// Parses the duration in a field, such as `15m`. Reports an invalid duration.
    pub(super) fn duration_from_field(&mut self, window: &Field<String>) -> Option<Duration> {
        let (text, at) = window.value_and_span()?;
        self.ok_or_report(at, quota::parse_window(text))
    }

    /// Returns `algorithm` with the parameters that the limit specifies: `resolution`, `precision`, `burst`, `max_debt`
    /// or `align`. Reports parameters of other algorithms, and then returns `None`.
    fn add_algorithm_parameters(
        &mut self,
        map: &LimitMap,
        algorithm: Algorithm,
    ) -> Option<Algorithm> {
        let precision = self.duration_from_field(&map.precision);
        if !map.precision.is_absent() && precision.is_none() {
            return None;
        }
        let compiled = match algorithm {
            Algorithm::SlidingWindow { .. } => {
                let resolution = match map.resolution.value_and_span() {
                    Some((&resolution, at)) => {
                        Some(self.ok_or_report(at, resolution_from_number(resolution))?)
                    }
                    None => None,
                };
                Algorithm::SlidingWindow { resolution }
            }
            Algorithm::SlidingBuckets { .. } => Algorithm::SlidingBuckets { precision },
            Algorithm::TokenBucket { .. } => {
                let (burst, max_debt) = (map.burst.get().copied(), map.max_debt.get().copied());
                Algorithm::TokenBucket { burst, max_debt }
            }
            Algorithm::FixedWindow { .. } => {
                Algorithm::FixedWindow { align: align_from_field(&map.align) }
            }
            other => other,
        };
        let parameters = [
            ("resolution", map.resolution.is_absent(), map.resolution.span(), "sliding_window"),
            ("precision", map.precision.is_absent(), map.precision.span(), "sliding_buckets"),
            ("burst", map.burst.is_absent(), map.burst.span(), "token_bucket"),
            ("max_debt", map.max_debt.is_absent(), map.max_debt.span(), "token_bucket"),
            ("align", map.align.is_absent(), map.align.span(), "fixed_window"),
        ];
        let mut is_valid = true;
        for (field, is_absent, at, algorithm_name) in parameters {
            if !is_absent && compiled.name() != algorithm_name {
                let message = format_args!(
                    "`{field}` is only for {algorithm_name}, but this limit uses {compiled}; remove `{field}`, or write `algorithm: {algorithm_name}`"
                );
                self.report(at, message);
                is_valid = false;
            }
        }
        is_valid.then_some(compiled)
    }
}

/// Converts a number of a policy into a resolution, whose range [`Limit::new`] checks.
fn resolution_from_number(number: u64) -> Result<u16, LimitError> {
    u16::try_from(number).map_err(|_| LimitError::Resolution(number))
}

fn align_from_field(align: &Field<AlignSpec>) -> Align {
    match align.get() {
        Some(AlignSpec::Clock) => Align::Clock,
        Some(AlignSpec::Key) | None => Align::Key,
    }
}
