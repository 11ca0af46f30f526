//! `/json`: the gRPC rate limit service as JSON, at the same path as in Envoy's reference implementation.

use std::pin::pin;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;

use crate::rendering::CountedResponse;
use crate::rendering::problem::HttpProblem;
use crate::request_handler::{RequestHandler, TraceContext};
use crate::rls::{self, InvalidRequest, JsonError};
use crate::telemetry::request_result::RequestResult;

/// Decides about all descriptors of a message as one request, and charges their costs if the request is allowed.
pub async fn json(
    handler: &RequestHandler,
    trace: TraceContext,
    body: &[u8],
) -> Result<CountedResponse, HttpProblem> {
    let scope = handler.begin("slidegate.should_rate_limit", trace);
    let work = pin!(async {
        let message = rls::json::parse(body)?;
        render_rls_response(&rls::decide(handler, &scope, message).await?)
    });
    scope.run(work).await
}

fn render_rls_response(counted: &rls::CountedMessage) -> Result<CountedResponse, HttpProblem> {
    let status = match counted.result {
        RequestResult::Allowed => StatusCode::OK,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    let response = response.body(Body::from(rls::json::serialize(&counted.message)?));
    Ok(CountedResponse {
        response: response.map_err(HttpProblem::internal)?,
        result: counted.result,
    })
}

impl From<InvalidRequest> for HttpProblem {
    fn from(invalid: InvalidRequest) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

impl From<JsonError> for HttpProblem {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Invalid(error) => Self::bad_request(error.to_string()),
            JsonError::Internal(_) => Self::internal(error),
        }
    }
}
