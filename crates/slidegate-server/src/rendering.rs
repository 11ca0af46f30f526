//! Rendering of decisions: status, headers and JSON.
//!
//! The listeners use this module, and it uses none of them. The waits in the headers of all protocols have jitter.

pub mod check_response;
pub mod problem;

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use opentelemetry::KeyValue;
use serde::Serialize;
use slidegate::headers::{self, Header, Style};
use slidegate::{Clock, Decision, Jitter, JitterSample, Problem, Reason, WallClock};

use self::check_response::{
    CheckResponse, ReleaseResponse, RenewResponse, ReserveResponse, SettleResponse,
};
use self::problem::{HttpProblem, PROBLEM_JSON};
use crate::service::permits::PermitToken;
use crate::service::reservations::ReservationToken;
use crate::telemetry::request_result::{
    ClassifyResponse, RequestResult, request_result_of_decision,
};

/// Initial size of the response buffer in bytes, enough for several limits.
const INITIAL_JSON_BUFFER_BYTES: usize = 1024;

/// Header of a denial at `/v1/auth` because the store is unavailable. Its value is the reason.
const REASON_HEADER: HeaderName = HeaderName::from_static("slidegate-reason");

/// A response, and the result that metrics record for it. The status alone does not determine the result, since a proxy
/// may choose the status of a denial.
pub struct CountedResponse {
    pub response: Response,
    pub result: RequestResult,
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
    /// `permit` is the permit of the request, if it has one.
    pub fn render_check(
        &self,
        decision: &Decision<'_>,
        permit: Option<&PermitToken>,
    ) -> Result<CountedResponse, HttpProblem> {
        let (status, result) = http_status_and_result_of_decision(decision)?;
        let json = to_json(&CheckResponse::from_decision(decision).with_permit(permit))?;
        let response =
            self.build_http_response(decision, status, Some("application/json"), json)?;
        Ok(CountedResponse { response, result })
    }

    /// Renders the response to a request for a reservation, as [`render_check`](Self::render_check) does. `token` is
    /// `None` if the request is denied.
    pub fn render_reserve(
        &self,
        decision: &Decision<'_>,
        permit: Option<&PermitToken>,
        token: Option<ReservationToken>,
    ) -> Result<CountedResponse, HttpProblem> {
        let (status, result) = http_status_and_result_of_decision(decision)?;
        let check = CheckResponse::from_decision(decision).with_permit(permit);
        let json = to_json(&ReserveResponse::new(check, token.as_ref()))?;
        let response =
            self.build_http_response(decision, status, Some("application/json"), json)?;
        Ok(CountedResponse { response, result })
    }

    /// Renders the response to a settlement.
    pub fn render_settle(&self) -> Result<CountedResponse, HttpProblem> {
        render_json(&SettleResponse::SETTLED)
    }

    /// Renders the response to a release. `was_live` is whether the permit was live before.
    pub fn render_release(&self, was_live: bool) -> Result<CountedResponse, HttpProblem> {
        render_json(&ReleaseResponse::new(was_live))
    }

    /// Renders the response to a renewal. The permit expires after `ttl`.
    pub fn render_renew(&self, ttl: Duration) -> Result<CountedResponse, HttpProblem> {
        render_json(&RenewResponse::new(ttl))
    }

    /// Renders the response to a proxy. If the request is allowed, the response has only headers. Otherwise the
    /// response is a problem that the proxy may forward to its client, and `deny_status` replaces the status if it is
    /// set.
    pub fn render_auth(
        &self,
        decision: &Decision<'_>,
        deny_status: Option<StatusCode>,
    ) -> Result<CountedResponse, HttpProblem> {
        let (status, result) = http_status_and_result_of_decision(decision)?;
        let response = match Problem::from_decision(decision) {
            None => self.build_http_response(decision, status, None, Body::empty())?,
            Some(denial) => {
                let status = deny_status.unwrap_or(status);
                let json = to_json(&denial.with_status(status.as_u16()))?;
                let mut response =
                    self.build_http_response(decision, status, Some(PROBLEM_JSON), json)?;
                // A proxy that chooses the status, and does not forward the body, would not know the reason.
                if decision.reason() == Some(Reason::StoreUnavailable) {
                    let reason = HeaderValue::from_static("store_unavailable");
                    response.headers_mut().insert(REASON_HEADER, reason);
                }
                response
            }
        };
        Ok(CountedResponse { response, result })
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
        if let Some(policies) = headers::policy_header(self.style, decision) {
            headers.insert(&self.header_names[0], header_value(policies.as_str())?);
        }
        let mut result = Ok(());
        let jitter = self.draw_jitter();
        headers::for_each_status(self.style, decision, &WallClock, jitter, |index, value| {
            match header_value(value) {
                Ok(value) => drop(headers.insert(&self.header_names[index], value)),
                Err(problem) => result = Err(problem),
            }
        });
        result?;
        Ok(response)
    }

    /// Draws the jitter of one response: the random increase of all waits in it.
    pub fn draw_jitter(&self) -> JitterSample {
        self.retry_jitter.draw()
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

/// Renders the response to a call that succeeded and has no decision.
fn render_json(body: &impl Serialize) -> Result<CountedResponse, HttpProblem> {
    let mut response = Response::new(to_json(body)?);
    let content_type = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    Ok(CountedResponse { response, result: RequestResult::Allowed })
}

/// Returns the HTTP status of the response to a decision, and the result that metrics record for the response.
fn http_status_and_result_of_decision(
    decision: &Decision<'_>,
) -> Result<(StatusCode, RequestResult), HttpProblem> {
    let result = request_result_of_decision(decision);
    let status = StatusCode::from_u16(decision.status()).map_err(HttpProblem::internal)?;
    Ok((status, result))
}

impl ClassifyResponse for Result<CountedResponse, HttpProblem> {
    fn request_result(&self) -> RequestResult {
        self.as_ref().map_or_else(HttpProblem::result, |counted| counted.result)
    }

    fn status_span_attribute(&self) -> KeyValue {
        let status =
            self.as_ref().map_or_else(HttpProblem::status, |counted| counted.response.status());
        KeyValue::new("http.response.status_code", i64::from(status.as_u16()))
    }
}

#[cfg(test)]
mod tests {
    use slidegate::testkit::faulty::{Faults, FaultyStore};
    use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

    use super::*;

    /// Renders the decision about a request while the store is unavailable. The rule has the setting
    /// `on_store_error: {on_store_error}`.
    async fn render_without_store(
        on_store_error: &str,
        render: impl FnOnce(ResponseRenderer, &Decision<'_>) -> Result<CountedResponse, HttpProblem>,
    ) -> Response {
        let policy =
            format!("rules: [{{ name: a, limits: [1/s], on_store_error: {on_store_error} }}]");
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(Policy::from_yaml(&policy).unwrap(), store);
        let decision = gate.check_async(&Request::new("default", Descriptor::new([]))).await;
        let renderer = ResponseRenderer::new(Style::Ietf, Jitter::NONE);
        render(renderer, &decision).unwrap().response
    }

    /// Returns the status of the response to a check while the store is unavailable.
    async fn response_status_without_store(on_store_error: &str) -> StatusCode {
        let check = |renderer: ResponseRenderer, decision: &Decision<'_>| {
            renderer.render_check(decision, None)
        };
        render_without_store(on_store_error, check).await.status()
    }

    #[tokio::test]
    async fn auth_denial_without_store_names_reason_in_header() {
        for (on_store_error, reason) in [("deny", Some("store_unavailable")), ("allow", None)] {
            let auth = |renderer: ResponseRenderer, decision: &Decision<'_>| {
                renderer.render_auth(decision, Some(StatusCode::FORBIDDEN))
            };
            let response = render_without_store(on_store_error, auth).await;
            let header = response.headers().get(REASON_HEADER);
            assert_eq!(header.map(|value| value.to_str().unwrap()), reason);
        }
    }

    #[tokio::test]
    async fn denial_without_store_has_status_503() {
        assert_eq!(response_status_without_store("deny").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response_status_without_store("allow").await, StatusCode::OK);
    }

    /// The header and the JSON of a limit are formatted once.
    #[tokio::test]
    async fn instance_share_of_limit_has_own_text() {
        let policy = Policy::from_yaml("rules: [{ name: a, limits: [100/h] }]").unwrap();
        let renderer = ResponseRenderer::new(Style::Ietf, Jitter::NONE);
        let policy_header = |decision: &Decision<'_>| {
            let response = renderer.render_check(decision, None).unwrap().response;
            response.headers()["ratelimit-policy"].to_str().unwrap().to_owned()
        };
        let request = Request::new("default", Descriptor::new([]));
        let memory = Gate::new(policy.clone(), MemoryStore::with_clock(ManualClock::default(), 10));
        assert_eq!(policy_header(&memory.check(&request)), r#""a";q=100;w=3600"#);
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(policy, store).with_instances(2.try_into().unwrap());
        assert_eq!(policy_header(&gate.check_async(&request).await), r#""a";q=50;w=3600"#);
    }
}
