//! Converts decisions to response messages of Envoy's rate limit service.

use std::time::Duration;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use slidegate::headers::{CACHE_CONTROL_NO_STORE, Header, Problem};
use slidegate::wait::JitterSample;
use slidegate::{Decision, LimitStatus, Reason};

use super::ParsedMessage;
use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::service::ratelimit::v3::RateLimitResponse;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use super::unit;
use crate::decide::DecidedCall;
use crate::permits::token::PermitToken;
use crate::render::ResponseRenderer;

/// The field of the dynamic metadata that contains the permit of the request.
const PERMIT_METADATA_FIELD: &str = "permit";

/// Builds the response to a request.
pub fn build_response(
    request: &ParsedMessage,
    decided: &DecidedCall,
    renderer: &ResponseRenderer,
) -> RateLimitResponse {
    let DecidedCall { decision, permit, .. } = decided;
    // One draw, so that headers, statuses and body state the same wait.
    let jitter = renderer.draw_jitter(decision);
    let headers = renderer.rate_limit_headers(decision, jitter);
    // The body of a denial states 429, because Envoy chooses the status itself, 429 by default.
    let problem = Problem::from_decision(decision).map(|problem| {
        if decision.reason() == Some(Reason::StoreUnavailable) {
            problem
        } else {
            problem.with_status(429)
        }
    });
    let denial_headers = problem
        .as_ref()
        .map(|_| [("content-type", Problem::CONTENT_TYPE), CACHE_CONTROL_NO_STORE])
        .into_iter()
        .flatten()
        .map(|(name, value)| (name, value.to_owned()));
    // Strings and numbers always serialize. If they did not, Envoy would send its own body.
    let body = problem.and_then(|problem| serde_json::to_vec(&problem).ok());
    let mut statuses =
        build_descriptor_statuses(request.evaluated_descriptor_count(), decision, jitter);
    for release in request.permit_releases() {
        statuses.insert(release.index, ok_descriptor_status());
    }
    RateLimitResponse {
        overall_code: to_rls_response_code(!decision.is_allowed()),
        statuses,
        response_headers_to_add: headers
            .into_iter()
            .chain(denial_headers)
            .map(to_rls_header_value)
            .collect(),
        raw_body: body.unwrap_or_default(),
        dynamic_metadata: permit.as_ref().map(build_dynamic_metadata),
        ..RateLimitResponse::default()
    }
}

/// Returns the metadata with which Envoy releases a permit when its request has ended.
fn build_dynamic_metadata(permit: &PermitToken) -> Struct {
    let permit = Value { kind: Some(Kind::StringValue(permit.text.clone())) };
    Struct { fields: [(PERMIT_METADATA_FIELD.to_owned(), permit)].into() }
}

/// Returns the status of a descriptor that no limit denies.
fn ok_descriptor_status() -> DescriptorStatus {
    DescriptorStatus { code: to_rls_response_code(false), ..DescriptorStatus::default() }
}

fn to_rls_response_code(is_over_limit: bool) -> i32 {
    let code = if is_over_limit { Code::OverLimit } else { Code::Ok };
    code as i32
}

fn to_rls_header_value((key, value): Header) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() }
}

fn build_descriptor_statuses(
    descriptors: usize,
    decision: &Decision<'_>,
    jitter: JitterSample,
) -> Vec<DescriptorStatus> {
    // A denial for lack of a store applies to all descriptors.
    if decision.reason() == Some(Reason::StoreUnavailable) {
        let over_limit =
            DescriptorStatus { code: to_rls_response_code(true), ..DescriptorStatus::default() };
        return vec![over_limit; descriptors];
    }
    let mut binding: Vec<Option<LimitStatus<'_>>> = vec![None; descriptors];
    for limit_status in decision.limits() {
        let Some(current) = binding.get_mut(limit_status.descriptor()) else { continue };
        if current.as_ref().is_none_or(|current| takes_precedence_in_status(&limit_status, current))
        {
            *current = Some(limit_status);
        }
    }
    let descriptor_status = |(index, binding): (usize, &Option<LimitStatus<'_>>)| match binding {
        Some(limit_status) => build_descriptor_status(limit_status, jitter),
        None => DescriptorStatus {
            limit_remaining: if decision.is_unlimited(index) { u32::MAX } else { 0 },
            ..ok_descriptor_status()
        },
    };
    binding.iter().enumerate().map(descriptor_status).collect()
}

/// Returns `true` if `one`, not `other`, determines the status of a descriptor. A limit that the request exceeds takes
/// precedence over a limit that the request fits. If the request exceeds both limits, the limit with the longer wait
/// takes precedence. If it fits both, the limit with the smaller share of remaining units takes precedence.
fn takes_precedence_in_status(one: &LimitStatus<'_>, other: &LimitStatus<'_>) -> bool {
    let (fits, other_fits) = (one.fits(), other.fits());
    if fits != other_fits {
        return other_fits;
    }
    if fits {
        return multiply_remaining_by_other_capacity(one, other)
            < multiply_remaining_by_other_capacity(other, one);
    }
    // A limit in which the request never fits has the longest wait.
    let wait = |limit_status: &LimitStatus<'_>| limit_status.retry_after().unwrap_or(Duration::MAX);
    wait(one) > wait(other)
}

/// Returns the remaining units of `one`, multiplied by the capacity of `other`. The caller compares the remaining
/// shares of two limits by these products, without division.
fn multiply_remaining_by_other_capacity(one: &LimitStatus<'_>, other: &LimitStatus<'_>) -> u128 {
    let capacity = |limit_status: &LimitStatus<'_>| limit_status.limit().capacity();
    u128::from(one.remaining().min(capacity(one))) * u128::from(capacity(other))
}

fn build_descriptor_status(
    limit_status: &LimitStatus<'_>,
    jitter: JitterSample,
) -> DescriptorStatus {
    let outcome = limit_status.outcome();
    let (limit, quota) = (limit_status.limit(), limit_status.limit().quota());
    let (unit, units) = match limit.calendar_periods() {
        Some(calendar) => unit::period_as_time_units(calendar.period()),
        None => unit::window_as_time_units(quota.window()),
    };
    let (remaining, until_reset) = if outcome.fits() {
        (outcome.remaining(), Some(limit_status.reset_after()))
    } else {
        // The reference server states 0, too: nothing is left for a request that does not fit.
        (0, time_until_request_fits(limit_status, jitter))
    };
    DescriptorStatus {
        code: to_rls_response_code(!outcome.fits()),
        // `None` for a limit that is not shown in headers, because Envoy writes headers from this field.
        current_limit: limit_status.is_in_headers().then(|| RateLimit {
            requests_per_unit: saturate_to_u32(quota.max()),
            unit,
            name: limit_status.policy_name().to_owned(),
            unit_multiplier: (units > 1).then_some(units),
        }),
        limit_remaining: saturate_to_u32(remaining),
        duration_until_reset: until_reset.map(round_up_to_seconds),
    }
}

/// Returns the duration until a request that does not fit now fits the limit. If it never fits, returns the duration
/// until no unit of the limit is in use, or the window if no unit is in use now. Returns `None` if requests in flight
/// must end first, because their duration is not known.
fn time_until_request_fits(
    limit_status: &LimitStatus<'_>,
    jitter: JitterSample,
) -> Option<Duration> {
    let limit = limit_status.limit();
    match limit_status.retry_after() {
        Some(wait) => Some(jitter.extend(wait)),
        None if limit.is_concurrent() => None,
        None if limit_status.reset_after().is_zero() => Some(limit.window()),
        None => Some(limit_status.reset_after()),
    }
}

fn saturate_to_u32(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Rounds a duration up to whole seconds, because Envoy discards fractions of a second.
fn round_up_to_seconds(duration: Duration) -> prost_types::Duration {
    let seconds = duration.as_secs().saturating_add(u64::from(duration.subsec_nanos() > 0));
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}
