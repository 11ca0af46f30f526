//! Decisions as HTTP responses: status, headers and JSON.

mod json_writer;

use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::Response;
use opentelemetry::KeyValue;
use schemars::JsonSchema;
use serde::Serialize;
use slidegate::headers::{self, Header, Style};
use slidegate::{Clock, Jitter, JitterSample, Problem, Reason, Ruling, WallClock};

use super::problem::{HttpProblem, PROBLEM_JSON};
use crate::durations::ceil_millis;
use crate::request_handler::ClassifyResponse;
use crate::telemetry::metrics::RequestResult;

/// Initial size of the response buffer in bytes, enough for several limits.
const INITIAL_JSON_BUFFER_BYTES: usize = 1024;

/// A response, and the result that metrics record for it. The status alone does not determine the result, since a proxy
/// may choose the status of a denial.
pub struct CountedResponse {
    pub response: Response,
    pub result: RequestResult,
}

/// A renderer of decisions as HTTP responses.
#[derive(Clone, Copy)]
pub struct ResponseRenderer {
    style: Style,
    retry_jitter: Jitter,
}

impl ResponseRenderer {
    pub fn new(style: Style, retry_jitter: Jitter) -> Self {
        Self { style, retry_jitter }
    }

    /// Renders the response to a check. The status is 200 if the request is allowed. A denial has the `deny_status` of
    /// its rule, 429 by default, or 503 if the store is unavailable. The JSON of all responses has the same fields.
    /// Jitter, a random increase, lengthens only the waits in headers; the JSON contains the exact waits.
    pub fn render_check(&self, ruling: &Ruling) -> Result<CountedResponse, HttpProblem> {
        let (status, result) = http_status_and_result_of_ruling(ruling)?;
        let mut json = Vec::with_capacity(INITIAL_JSON_BUFFER_BYTES);
        CheckResponse::from_ruling(ruling).write(&mut json).map_err(HttpProblem::internal)?;
        let response =
            self.build_http_response(ruling, status, Some("application/json"), json.into())?;
        Ok(CountedResponse { response, result })
    }

    /// Renders the response to a proxy. If the request is allowed, the response has only headers. Otherwise the
    /// response is a problem that the proxy may forward to its client, and `deny_status` replaces the status if it is
    /// set.
    pub fn render_auth(
        &self,
        ruling: &Ruling,
        deny_status: Option<StatusCode>,
    ) -> Result<CountedResponse, HttpProblem> {
        let (status, result) = http_status_and_result_of_ruling(ruling)?;
        let response = match Problem::from_ruling(ruling) {
            None => self.build_http_response(ruling, status, None, Body::empty())?,
            Some(denial) => {
                let status = deny_status.unwrap_or(status);
                let json = serde_json::to_vec(&denial.with_status(status.as_u16()));
                let json = json.map_err(HttpProblem::internal)?;
                self.build_http_response(ruling, status, Some(PROBLEM_JSON), json.into())?
            }
        };
        Ok(CountedResponse { response, result })
    }

    fn build_http_response(
        &self,
        ruling: &Ruling,
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
        let mut result = Ok(());
        headers::for_each(self.style, ruling, &WallClock, self.draw_jitter(), |name, value| {
            match HeaderValue::from_bytes(value.as_bytes()) {
                Ok(value) => drop(headers.insert(HeaderName::from_static(name), value)),
                Err(error) => result = Err(HttpProblem::internal(error)),
            }
        });
        result.map(|()| response)
    }

    /// Draws the jitter of one response: the random increase of all waits in it.
    pub fn draw_jitter(&self) -> JitterSample {
        self.retry_jitter.draw()
    }

    /// Returns the rate limit headers for a decision. `jitter` lengthens the waits in the headers.
    pub fn rate_limit_headers(&self, ruling: &Ruling, jitter: JitterSample) -> Vec<Header> {
        headers::write(self.style, ruling, WallClock.now(), jitter)
    }
}

/// Returns the HTTP status of the response to a ruling, and the result that metrics record for the response.
fn http_status_and_result_of_ruling(
    ruling: &Ruling,
) -> Result<(StatusCode, RequestResult), HttpProblem> {
    let decision = ruling.decision();
    let result = match decision.is_allowed() {
        true => RequestResult::Allowed,
        false if decision.is_store_unavailable() => RequestResult::StoreUnavailable,
        false => RequestResult::Denied,
    };
    let status = StatusCode::from_u16(ruling.status()).map_err(HttpProblem::internal)?;
    Ok((status, result))
}

/// The decision. The fields outside `limits` describe the limit that determined it. They are null if no rule applies,
/// or if no limit was evaluated, because the rules that apply evaluate only a sample of the requests.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Answer")]
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
    /// Milliseconds until the request fits the limit. Null if the request fits now, or if it can never fit.
    retry_after_ms: Option<u64>,
    /// Whether the store was unavailable, so that the decision is an estimate.
    degraded: bool,
    /// The status of every limit of every rule that applies. Omits limits that were not evaluated, because a cached
    /// denial already decided, or because their rule evaluates only a sample of the requests.
    limits: Vec<LimitStatusBody<'r>>,
}

/// The status of one limit.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Standing")]
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
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Limit")]
struct LimitBody<'r> {
    /// The name of the limit, unique in its rule.
    name: &'r str,
    /// Maximum number of units per window.
    max: u64,
    /// The length of the window in milliseconds.
    window_ms: u64,
}

impl<'r> CheckResponse<'r> {
    fn from_ruling(ruling: &'r Ruling) -> Self {
        let binding = ruling.binding().map(LimitStatusBody::from_status);
        let decision = ruling.decision();
        Self {
            allowed: decision.is_allowed(),
            reason: ruling.reason(),
            rule: binding.as_ref().map(|limit_status| limit_status.rule),
            remaining: binding.as_ref().map(|limit_status| limit_status.remaining),
            reset_after_ms: binding.as_ref().map(|limit_status| limit_status.reset_after_ms),
            retry_after_ms: binding.as_ref().and_then(|limit_status| limit_status.retry_after_ms),
            limit: binding.map(|limit_status| limit_status.limit),
            degraded: decision.is_degraded(),
            limits: ruling.limits().map(LimitStatusBody::from_status).collect(),
        }
    }
}

impl<'r> LimitStatusBody<'r> {
    fn from_status(limit_status: slidegate::LimitStatus<'r>) -> Self {
        let slidegate::LimitStatus { rule, limit: rule_limit, outcome, .. } = limit_status;
        let limit = rule_limit.limit();
        let quota = limit.quota();
        let wait = outcome.retry_after().filter(|_| !outcome.fits());
        Self {
            rule: rule.name(),
            limit: LimitBody {
                name: rule_limit.id(),
                max: quota.max(),
                window_ms: ceil_millis(quota.window()),
            },
            algorithm: limit.algorithm().name(),
            allowed: outcome.fits(),
            observed: limit_status.is_observed(),
            remaining: outcome.remaining(),
            reset_after_ms: ceil_millis(outcome.reset_after()),
            retry_after_ms: wait.map(ceil_millis),
        }
    }
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
    use slidegate::{Descriptor, Gate, ManualClock, Policy, Request};

    use super::*;

    /// Returns the status of the response to a check while the store is unavailable. The rule has the setting
    /// `on_store_error: {on_store_error}`.
    async fn response_status_without_store(on_store_error: &str) -> StatusCode {
        let policy =
            format!("rules: [{{ name: a, limits: [1/s], on_store_error: {on_store_error} }}]");
        let lost = Faults { unavailable: 100, ..Faults::default() };
        let store = FaultyStore::new(&ManualClock::default(), 1, lost, 1);
        let gate = Gate::new(Policy::from_yaml(&policy).unwrap(), store);
        let ruling = gate.check(&Request::new("default", Descriptor::new([]))).await;
        ResponseRenderer::new(Style::Ietf, Jitter::NONE)
            .render_check(&ruling)
            .unwrap()
            .response
            .status()
    }

    #[tokio::test]
    async fn denial_without_store_has_status_503() {
        assert_eq!(response_status_without_store("deny").await, StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(response_status_without_store("allow").await, StatusCode::OK);
    }
}
