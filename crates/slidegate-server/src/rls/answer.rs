//! A ruling as a message.

use std::time::Duration;

use slidegate::headers::Header;
use slidegate::{JitterSample, LimitStatus, Problem, Ruling};

use super::messages::envoy::config::core::v3::HeaderValue;
use super::messages::envoy::service::ratelimit::v3::RateLimitResponse;
use super::messages::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit,
};
use super::unit;
use crate::http::Answers;

/// What the ruling on so many descriptors says.
pub fn message(descriptors: usize, ruling: &Ruling, answers: &Answers) -> RateLimitResponse {
    // One draw: all that is told of a wait speaks of one moment.
    let lengthening = answers.draw();
    let headers = answers.headers(ruling, lengthening);
    // Envoy chooses the status of a denial itself, 429 by default.
    let problem = Problem::of(ruling).map(|problem| match ruling.decision().is_refused() {
        true => problem,
        false => problem.with_status(429),
    });
    let content_type = problem.as_ref().map(|_| ("content-type", Problem::CONTENT_TYPE.to_owned()));
    // Text and a number always serialize. Were it not so, Envoy has a body of its own.
    let body = problem.and_then(|problem| serde_json::to_vec(&problem).ok());
    RateLimitResponse {
        overall_code: code(!ruling.decision().is_allowed()),
        statuses: statuses(descriptors, ruling, lengthening),
        response_headers_to_add: headers.into_iter().chain(content_type).map(header).collect(),
        raw_body: body.unwrap_or_default(),
        ..RateLimitResponse::default()
    }
}

fn code(over: bool) -> i32 {
    let code = if over { Code::OverLimit } else { Code::Ok };
    code as i32
}

fn header((key, value): Header) -> HeaderValue {
    HeaderValue { key: key.to_owned(), value, raw_value: Vec::new() }
}

fn statuses(
    descriptors: usize,
    ruling: &Ruling,
    lengthening: JitterSample,
) -> Vec<DescriptorStatus> {
    let decision = ruling.decision();
    // What only the lack of a store denies may pass by none of them.
    if decision.is_refused() {
        let over = DescriptorStatus { code: code(true), ..DescriptorStatus::default() };
        return vec![over; descriptors];
    }
    let mut binding: Vec<Option<LimitStatus<'_>>> = vec![None; descriptors];
    for standing in ruling.limits() {
        let Some(bound) = binding.get_mut(standing.descriptor()) else { continue };
        if bound.as_ref().is_none_or(|bound| binds_more(&standing, bound)) {
            *bound = Some(standing);
        }
    }
    // An answer that allows is told as it is: those who may pass need not be spread.
    let lengthening = if decision.is_allowed() { JitterSample::NONE } else { lengthening };
    let status = |(nth, bound): (usize, &Option<LimitStatus<'_>>)| match bound {
        Some(standing) => status(standing, lengthening),
        None => DescriptorStatus {
            code: code(false),
            limit_remaining: if ruling.is_unlimited(nth) { u32::MAX } else { 0 },
            ..DescriptorStatus::default()
        },
    };
    binding.iter().enumerate().map(status).collect()
}

/// Whether a descriptor hangs on one limit rather than on another: on one in which it does not fit, before all
/// on the one with the longest wait; else on the one with the least remaining share.
fn binds_more(one: &LimitStatus<'_>, other: &LimitStatus<'_>) -> bool {
    let (fits, other_fits) = (one.outcome.fits(), other.outcome.fits());
    if fits != other_fits {
        return other_fits;
    }
    if fits {
        return left(one, other) < left(other, one);
    }
    // "Never" is the longest.
    let wait = |standing: &LimitStatus<'_>| standing.outcome.retry_after().unwrap_or(Duration::MAX);
    wait(one) > wait(other)
}

/// What is left of one limit, to be compared with what is left of another.
fn left(one: &LimitStatus<'_>, other: &LimitStatus<'_>) -> u64 {
    let capacity = |standing: &LimitStatus<'_>| standing.limit.limit().capacity();
    one.outcome.remaining().min(capacity(one)).saturating_mul(capacity(other))
}

fn status(standing: &LimitStatus<'_>, lengthening: JitterSample) -> DescriptorStatus {
    let LimitStatus { limit, outcome, .. } = standing;
    let quota = limit.limit().quota();
    let (unit, units) = unit::of_window(quota.window());
    let wait = match outcome.fits() {
        true => Some(outcome.reset_after()),
        false => outcome.retry_after().map(|wait| lengthening.extend(wait)),
    };
    DescriptorStatus {
        code: code(!outcome.fits()),
        current_limit: Some(RateLimit {
            requests_per_unit: saturated(quota.max()),
            unit,
            name: standing.policy_name().to_owned(),
            unit_multiplier: (units > 1).then_some(units),
        }),
        limit_remaining: saturated(outcome.remaining()),
        duration_until_reset: wait.map(seconds_up),
    }
}

fn saturated(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// Envoy tells whole seconds, and leaves out the rest.
fn seconds_up(span: Duration) -> prost_types::Duration {
    let seconds = span.as_secs().saturating_add(u64::from(span.subsec_nanos() > 0));
    prost_types::Duration { seconds: i64::try_from(seconds).unwrap_or(i64::MAX), nanos: 0 }
}
