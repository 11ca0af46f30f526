//! Rendering of decisions: status, headers and JSON.
//!
//! The listeners use this module, and it uses none of them. In the headers of all protocols, the waits have jitter,
//! which is a random increase.

pub mod problem;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde::Serialize;
use slidegate::clock::{Clock, WallClock};
use slidegate::headers::{self, CACHE_CONTROL_NO_STORE, Header, Problem, Style};
use slidegate::wait::JitterSample;
use slidegate::{Decision, Jitter, LimitStatus, Reason};

use self::problem::{HttpProblem, PROBLEM_JSON};
use crate::decide::DecidedCall;
use crate::durations::ceil_millis;
use crate::telemetry::results::{
    ClassifyResponse, RequestResult, ResponseWithResult, request_result_of_decision,
};

/// Initial size of the response buffer in bytes, enough for several limits.
const INITIAL_JSON_BUFFER_BYTES: usize = 1024;

/// Header of a denial at `/v1/auth` because the store is unavailable. Its value is the reason.
const UNAVAILABLE_REASON_HEADER: HeaderName = HeaderName::from_static("slidegate-reason");

/// A response with a body of JSON. A handler adds the status, if it is not 200.
pub type JsonResponse = ([(HeaderName, &'static str); 1], Vec<u8>);

/// Renders a value as JSON.
pub fn render_json(value: &impl Serialize) -> Result<JsonResponse, HttpProblem> {
    let json = serde_json::to_vec(value).map_err(HttpProblem::internal)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], json))
}

/// A renderer of decisions as HTTP responses.
#[derive(Clone)]
pub struct ResponseRenderer {
    style: Style,
    /// The names of the headers of the style.
    header_names: Arc<[HeaderName]>,
    retry_jitter: Jitter,
}

impl ResponseRenderer {
    pub fn new(style: Style, retry_jitter: Jitter) -> Self {
        let names = style.header_names().iter().map(|name| HeaderName::from_static(name));
        Self { style, header_names: names.collect(), retry_jitter }
    }

    /// Renders the response to a check. The status is 200 if the request is allowed. A denial has the `deny_status` of
    /// its rule, 429 by default, or 503 if the store is unavailable. The JSON of all responses has the same fields.
    /// Jitter, a random increase, lengthens only the waits in headers; the JSON contains the exact waits.
    pub fn render_check(
        &self,
        decided: &DecidedCall,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        self.render_decision(decided, &CheckResponse::new(decided))
    }

    /// Renders the response to a request for a reservation, as [`render_check`](Self::render_check) does.
    pub fn render_reservation(
        &self,
        decided: &DecidedCall,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        self.render_decision(decided, &ReserveResponse::new(decided))
    }

    fn render_decision(
        &self,
        decided: &DecidedCall,
        body: &impl Serialize,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        let status = http_status(&decided.decision)?;
        let json = to_json(body)?;
        let content_type = Some("application/json");
        let response = self.build_http_response(&decided.decision, status, content_type, json)?;
        Ok(with_request_result(decided, response))
    }

    /// Renders the response to a proxy. If the request is allowed, the response has only headers. Otherwise the
    /// response is a problem that the proxy may forward to its client, and `deny_status` replaces the status if it is
    /// set.
    pub fn render_forward_auth(
        &self,
        decided: &DecidedCall,
        deny_status: Option<StatusCode>,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        let decision = &decided.decision;
        let status = http_status(decision)?;
        let Some(denial) = Problem::from_decision(decision) else {
            let response = self.build_http_response(decision, status, None, Body::empty())?;
            return Ok(with_request_result(decided, response));
        };
        let status = deny_status.unwrap_or(status);
        let json = to_json(&denial.with_status(status.as_u16()))?;
        let mut response = self.build_http_response(decision, status, Some(PROBLEM_JSON), json)?;
        // A header repeats the reason, because a proxy that chooses the status, and does not forward the body, would
        // not know it.
        if decision.reason() == Some(Reason::StoreUnavailable) {
            let reason = HeaderValue::from_static("store_unavailable");
            response.headers_mut().insert(UNAVAILABLE_REASON_HEADER, reason);
        }
        Ok(with_request_result(decided, response))
    }

    /// Renders the response to a call that succeeded and has no decision, such as a settlement.
    pub fn render_success(
        &self,
        body: &impl Serialize,
    ) -> Result<ResponseWithResult<Response>, HttpProblem> {
        let mut response = Response::new(to_json(body)?);
        let content_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        Ok(ResponseWithResult { response, result: RequestResult::Allowed, waited: Duration::ZERO })
    }

    fn build_http_response(
        &self,
        decision: &Decision<'_>,
        status: StatusCode,
        content_type: Option<&'static str>,
        body: Body,
    ) -> Result<Response, HttpProblem> {
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        if let Some(content_type) = content_type {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        }
        if !decision.is_allowed() {
            headers
                .insert(header::CACHE_CONTROL, HeaderValue::from_static(CACHE_CONTROL_NO_STORE.1));
        }
        if let Some(policies) = headers::policy_header(self.style, decision) {
            headers.insert(&self.header_names[0], header_value(policies.as_str())?);
        }
        let mut result = Ok(());
        let jitter = self.draw_jitter(decision);
        headers::for_each_header_except_policy(
            self.style,
            decision,
            &WallClock,
            jitter,
            |index, value| match header_value(value) {
                Ok(value) => drop(headers.insert(&self.header_names[index], value)),
                Err(problem) => result = Err(problem),
            },
        );
        result?;
        Ok(response)
    }

    /// Draws the jitter of one response: the random increase of all waits in it. It spreads retries, so an allowed
    /// request gets exact durations.
    pub fn draw_jitter(&self, decision: &Decision<'_>) -> JitterSample {
        if decision.is_allowed() { JitterSample::NONE } else { self.retry_jitter.draw() }
    }

    /// Returns the rate limit headers for a decision. `jitter` lengthens the waits in the headers.
    pub fn rate_limit_headers(&self, decision: &Decision<'_>, jitter: JitterSample) -> Vec<Header> {
        headers::write(self.style, decision, WallClock.now(), jitter)
    }
}

fn to_json(body: &impl Serialize) -> Result<Body, HttpProblem> {
    let mut json = Vec::with_capacity(INITIAL_JSON_BUFFER_BYTES);
    serde_json::to_writer(&mut json, body).map_err(HttpProblem::internal)?;
    Ok(json.into())
}

fn header_value(text: &str) -> Result<HeaderValue, HttpProblem> {
    HeaderValue::from_str(text).map_err(HttpProblem::internal)
}

fn http_status(decision: &Decision<'_>) -> Result<StatusCode, HttpProblem> {
    StatusCode::from_u16(decision.status()).map_err(HttpProblem::internal)
}

/// Returns a response to a call with the result and the wait that metrics record.
pub fn with_request_result<R>(decided: &DecidedCall, response: R) -> ResponseWithResult<R> {
    let result = request_result_of_decision(&decided.decision);
    ResponseWithResult { response, result, waited: decided.decision.waited() }
}

impl ClassifyResponse for Result<ResponseWithResult<Response>, HttpProblem> {
    fn request_result(&self) -> RequestResult {
        self.as_ref()
            .map_or_else(HttpProblem::result, |with_request_result| with_request_result.result)
    }

    fn span_status_attribute(&self) -> (&'static str, i64) {
        let status = self.as_ref().map_or_else(HttpProblem::status, |with_request_result| {
            with_request_result.response.status()
        });
        ("http.response.status_code", i64::from(status.as_u16()))
    }

    fn wait_time(&self) -> Duration {
        self.as_ref().map_or(Duration::ZERO, |with_request_result| with_request_result.waited)
    }
}

/// The decision in the body of a response. The fields outside `limits` describe the limit that determined it. They are
/// null if no rule applies, or if no limit was evaluated, because the rules that apply evaluate only a sample of the
/// requests.
#[derive(Serialize)]
pub struct CheckResponse<'r> {
    /// Whether the request is allowed: true with status 200. A denial has the `deny_status` of its rule, 429 by
    /// default, or 503 if the store is unavailable.
    allowed: bool,
    /// The reason why the request is denied. Null if it is allowed.
    reason: Option<Reason>,
    /// The rule that determined the decision.
    rule: Option<&'r str>,
    /// The limit that determined the decision. On a denial, the denying limit with the longest wait.
    limit: Option<LimitBody<'r>>,
    /// Number of units that are left in the limit.
    remaining: Option<u64>,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: Option<u64>,
    /// Milliseconds until the request fits the limit. Null if the request fits now, if it can never fit, or if the
    /// limit bounds the requests in flight, whose end is not known.
    retry_after_ms: Option<u64>,
    /// Whether the store was unavailable, so that the decision is an estimate.
    degraded: bool,
    /// The status of every limit of every rule that applies. Omits limits that were not evaluated, because a cached
    /// denial already decided, or because their rule evaluates only a sample of the requests.
    limits: Vec<LimitStatusBody<'r>>,
    /// The permit of the request, which `/v1/release` and `/v1/renew` accept. Only in the response to an allowed
    /// request to which a limit with `concurrent` applies.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit: Option<&'r str>,
    /// Milliseconds after which the permit expires, unless it is renewed. Only with `permit`.
    #[serde(skip_serializing_if = "Option::is_none")]
    permit_ttl_ms: Option<u64>,
}

/// The decision on a request for a reservation.
#[derive(Serialize)]
pub struct ReserveResponse<'r> {
    #[serde(flatten)]
    decision: CheckResponse<'r>,
    /// The token with which `/v1/settle` corrects the charge. Null if the request is denied.
    reservation: Option<&'r str>,
    /// Milliseconds until the token expires. Null if the request is denied.
    expires_in_ms: Option<u64>,
    /// Units of `limit` that unsettled reservations hold, including this one if it is allowed. Null if no limit
    /// determined the decision, or if other instances may settle reservations.
    reserved: Option<u64>,
}

/// The status of one limit.
#[derive(Serialize)]
struct LimitStatusBody<'r> {
    /// The rule's name.
    rule: &'r str,
    /// The name and the quota of the limit.
    limit: LimitBody<'r>,
    /// The algorithm that enforces the limit.
    algorithm: &'static str,
    /// Whether the request fits this limit.
    allowed: bool,
    /// Whether the rule only observes, and never denies.
    observed: bool,
    /// Number of units that are left in the limit.
    remaining: u64,
    /// Milliseconds until the limit is completely unused.
    reset_after_ms: u64,
    /// Milliseconds until the request fits the limit. Null if the request fits now, or if it can never fit.
    retry_after_ms: Option<u64>,
}

/// The name and the quota of a limit: a maximum number of units per window.
#[derive(Serialize)]
struct LimitBody<'r> {
    /// The name of the limit, unique in its rule.
    name: &'r str,
    /// Maximum number of units per window.
    max: u64,
    /// The length of the window in milliseconds.
    window_ms: u64,
}

impl<'r> CheckResponse<'r> {
    /// Creates the response to a call.
    pub fn new(decided: &'r DecidedCall) -> Self {
        let DecidedCall { decision, permit, .. } = decided;
        let binding = decision.binding().map(LimitStatusBody::from_status);
        Self {
            allowed: decision.is_allowed(),
            reason: decision.reason(),
            rule: binding.as_ref().map(|limit_status| limit_status.rule),
            remaining: binding.as_ref().map(|limit_status| limit_status.remaining),
            reset_after_ms: binding.as_ref().map(|limit_status| limit_status.reset_after_ms),
            retry_after_ms: binding.as_ref().and_then(|limit_status| limit_status.retry_after_ms),
            limit: binding.map(|limit_status| limit_status.limit),
            degraded: decision.is_degraded(),
            limits: decision.limits().map(LimitStatusBody::from_status).collect(),
            permit: permit.as_ref().map(|permit| &*permit.text),
            permit_ttl_ms: permit.as_ref().map(|permit| ceil_millis(permit.ttl)),
        }
    }
}

impl<'r> LimitStatusBody<'r> {
    fn from_status(limit_status: LimitStatus<'r>) -> Self {
        let (limit, outcome) = (limit_status.limit(), limit_status.outcome());
        let quota = limit.quota();
        let wait = limit_status.retry_after().filter(|_| !outcome.fits());
        let rule = limit_status.rule_name();
        let limit_body = LimitBody {
            name: limit_status.id(),
            max: quota.max(),
            window_ms: ceil_millis(limit.window()),
        };
        Self {
            rule,
            limit: limit_body,
            algorithm: limit.algorithm().name(),
            allowed: outcome.fits(),
            observed: limit_status.is_observed(),
            remaining: outcome.remaining(),
            reset_after_ms: ceil_millis(limit_status.reset_after()),
            retry_after_ms: wait.map(ceil_millis),
        }
    }
}

impl<'r> ReserveResponse<'r> {
    /// Creates the response to a call.
    pub fn new(decided: &'r DecidedCall) -> Self {
        let token = decided.reservation.as_ref();
        Self {
            decision: CheckResponse::new(decided),
            reservation: token.map(|token| &*token.text),
            expires_in_ms: token.map(|token| ceil_millis(token.ttl)),
            reserved: decided.reserved,
        }
    }
}

#[cfg(test)]
mod tests;
