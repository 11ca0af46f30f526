//! Compiles limits on requests in flight, which are written with `concurrent` and `permit_ttl`.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::compiler::Compiler;
use super::limits::CompiledLimit;
use super::spec::LimitMap;
use super::suggest::missing_field_message;
use crate::algorithm::Algorithm;
use crate::limit::Limit;
use crate::policy::error::SourceSpan;
use crate::quota::format_duration;

/// The times to live of permits that a policy can specify. A shorter time could pass while the response is on its way
/// to the holder, and a longer one would count the request of a dead holder for more than a day.
const PERMIT_TTL_RANGE: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(86_400);

impl Compiler<'_> {
    /// Compiles a limit with `concurrent`, which counts permits. The algorithm of the rule does not apply to it.
    pub(super) fn compile_concurrent_limit(
        &mut self,
        at: SourceSpan,
        map: &LimitMap,
    ) -> Option<CompiledLimit> {
        let excluded = [
            ("max", map.max.is_absent(), map.max.span()),
            ("window", map.window.is_absent(), map.window.span()),
            ("calendar", map.calendar.is_absent(), map.calendar.span()),
            ("timezone", map.timezone.is_absent(), map.timezone.span()),
            ("week_starts", map.week_starts.is_absent(), map.week_starts.span()),
            ("starts", map.starts.is_absent(), map.starts.span()),
            ("algorithm", map.algorithm.is_absent(), map.algorithm.span()),
            ("resolution", map.resolution.is_absent(), map.resolution.span()),
            ("precision", map.precision.is_absent(), map.precision.span()),
            ("burst", map.burst.is_absent(), map.burst.span()),
            ("max_debt", map.max_debt.is_absent(), map.max_debt.span()),
            ("align", map.align.is_absent(), map.align.span()),
        ];
        let is_valid = self.report_excluded_fields(excluded, |field| {
            format!(
                "a limit with `concurrent` has no `{field}`; remove `{field}`, or write it in another limit of the rule"
            )
        });
        if map.permit_ttl.is_absent() {
            self.report(at, missing_field_message("permit_ttl: 60s"));
        }
        let permit_ttl = self.duration_from_field(&map.permit_ttl)?;
        if !PERMIT_TTL_RANGE.contains(&permit_ttl) {
            let message = format_args!(
                "a permit_ttl of {} is not supported; write a duration from 1s to 24h",
                format_duration(permit_ttl)
            );
            self.report(map.permit_ttl.span(), message);
            return None;
        }
        let (max, max_at) = map.concurrent.value_and_span()?;
        let limit = self.ok_or_report(max_at, Limit::concurrent(*max, permit_ttl))?;
        let id = match map.name.get() {
            Some(name) => name.as_str().into(),
            None => Algorithm::Concurrent.name().into(),
        };
        is_valid.then_some(CompiledLimit { id, limit, at, block: None })
    }
}
