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

use self::check_response::{CheckResponse, ReserveResponse};
use self::problem::{HttpProblem, PROBLEM_JSON};
use crate::decide::call::DecidedCall;
use crate::telemetry::results::{
    ClassifyResponse, Counted, RequestResult, request_result_of_decision,
};

/// Initial size of the response buffer in bytes, enough for several limits.
const INITIAL_JSON_BUFFER_BYTES: usize = 1024;

/// Header of a denial at `/v1/auth` because the store is unavailable. Its value is the reason.
const REASON_HEADER: HeaderName = HeaderName::from_static("slidegate-reason");

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
    pub fn check(&self, decided: &DecidedCall) -> Result<Counted<Response>, HttpProblem> {
        self.render_decision(decided, &CheckResponse::new(decided))
    }

    /// Renders the response to a request for a reservation, as [`check`](Self::check) does.
    pub fn reserve(&self, decided: &DecidedCall) -> Result<Counted<Response>, HttpProblem> {
        self.render_decision(decided, &ReserveResponse::new(decided))
    }

    fn render_decision(
        &self,
        decided: &DecidedCall,
        body: &impl Serialize,
    ) -> Result<Counted<Response>, HttpProblem> {
        let status = http_status(&decided.decision)?;
        let json = to_json(body)?;
        let content_type = Some("application/json");
        let response = self.build_http_response(&decided.decision, status, content_type, json)?;
        Ok(counted(decided, response))
    }

    /// Renders the response to a proxy. If the request is allowed, the response has only headers. Otherwise the
    /// response is a problem that the proxy may forward to its client, and `deny_status` replaces the status if it is
    /// set.
    pub fn auth(
        &self,
        decided: &DecidedCall,
        deny_status: Option<StatusCode>,
    ) -> Result<Counted<Response>, HttpProblem> {
        let decision = &decided.decision;
        let status = http_status(decision)?;
        let Some(denial) = Problem::from_decision(decision) else {
            let response = self.build_http_response(decision, status, None, Body::empty())?;
            return Ok(counted(decided, response));
        };
        let status = deny_status.unwrap_or(status);
        let json = to_json(&denial.with_status(status.as_u16()))?;
        let mut response = self.build_http_response(decision, status, Some(PROBLEM_JSON), json)?;
        // A proxy that chooses the status, and does not forward the body, would not know the reason.
        if decision.reason() == Some(Reason::StoreUnavailable) {
            let reason = HeaderValue::from_static("store_unavailable");
            response.headers_mut().insert(REASON_HEADER, reason);
        }
        Ok(counted(decided, response))
    }

    /// Renders the response to a call that succeeded and has no decision.
    pub fn success(&self, body: &impl Serialize) -> Result<Counted<Response>, HttpProblem> {
        let mut response = Response::new(to_json(body)?);
        let content_type = HeaderValue::from_static("application/json");
        response.headers_mut().insert(header::CONTENT_TYPE, content_type);
        Ok(Counted { response, result: RequestResult::Allowed, waited: Duration::ZERO })
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

fn http_status(decision: &Decision<'_>) -> Result<StatusCode, HttpProblem> {
    StatusCode::from_u16(decision.status()).map_err(HttpProblem::internal)
}

/// Returns a response to a call with the result and the wait that metrics record.
pub fn counted<R>(decided: &DecidedCall, response: R) -> Counted<R> {
    let result = request_result_of_decision(&decided.decision);
    Counted { response, result, waited: decided.waited }
}

impl ClassifyResponse for Result<Counted<Response>, HttpProblem> {
    fn request_result(&self) -> RequestResult {
        self.as_ref().map_or_else(HttpProblem::result, |counted| counted.result)
    }

    fn status_span_attribute(&self) -> KeyValue {
        let status =
            self.as_ref().map_or_else(HttpProblem::status, |counted| counted.response.status());
        KeyValue::new("http.response.status_code", i64::from(status.as_u16()))
    }

    fn waited(&self) -> Duration {
        self.as_ref().map_or(Duration::ZERO, |counted| counted.waited)
    }
}

#[cfg(test)]
mod tests {
    use slidegate::testkit::faulty::{Faults, FaultyStore};
    use slidegate::{Descriptor, Gate, ManualClock, MemoryStore, Policy, Request};

    use super::*;

    fn decided(decision: Decision<'static>) -> DecidedCall {
        DecidedCall { decision, waited: Duration::ZERO, permit: None, reservation: None }
    }

    /// Renders the decision about a request while the store is unavailable. The rule has the setting
    /// `on_store_error: {on_store_error}`.
    async fn render_without_store(
        on_store_error: &str,
        render: impl FnOnce(ResponseRenderer, &DecidedCall) -> Result<Counted<Response>, HttpProblem>,
    ) -> Response {
        let policy =
            format!("rules: [{{ name: a, limits: [1/s], on_store_error: {on_store_error} }}]");
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(Policy::from_yaml(&policy).unwrap(), store);
        let decision = gate.check_async(&Request::new("default", Descriptor::new([]))).await;
        let renderer = ResponseRenderer::new(Style::Ietf, Jitter::NONE);
        render(renderer, &decided(decision)).unwrap().response
    }

    /// Returns the status of the response to a check while the store is unavailable.
    async fn response_status_without_store(on_store_error: &str) -> StatusCode {
        let check = |renderer: ResponseRenderer, decided: &DecidedCall| renderer.check(decided);
        render_without_store(on_store_error, check).await.status()
    }

    #[tokio::test]
    async fn auth_denial_without_store_names_reason_in_header() {
        for (on_store_error, reason) in [("deny", Some("store_unavailable")), ("allow", None)] {
            let auth = |renderer: ResponseRenderer, decided: &DecidedCall| {
                renderer.auth(decided, Some(StatusCode::FORBIDDEN))
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
        let policy_header = |decision: Decision<'static>| {
            let response = renderer.check(&decided(decision)).unwrap().response;
            response.headers()["ratelimit-policy"].to_str().unwrap().to_owned()
        };
        let request = Request::new("default", Descriptor::new([]));
        let memory = Gate::new(policy.clone(), MemoryStore::with_clock(ManualClock::default(), 10));
        assert_eq!(policy_header(memory.check(&request)), r#""a";q=100;w=3600"#);
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(policy, store).with_instances(2.try_into().unwrap());
        assert_eq!(policy_header(gate.check_async(&request).await), r#""a";q=50;w=3600"#);
    }
}
