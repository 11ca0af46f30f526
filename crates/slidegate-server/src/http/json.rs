//! `/json`: the gRPC rate limit service as JSON, at the same path as in Envoy's reference implementation.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;
use slidegate::Decision;

use crate::rendering::problem::HttpProblem;
use crate::rendering::{CountedResponse, ResponseRenderer};
use crate::rls::{self, InvalidRequest, JsonError, ParsedMessage};
use crate::service::permits::PermitToken;
use crate::telemetry::request_result::RequestResult;

/// Parses a message. All its descriptors are one request.
pub fn parse(text: &str) -> Result<ParsedMessage, HttpProblem> {
    Ok(ParsedMessage::parse(rls::json::parse(text)?)?)
}

/// Renders the response to a message. `permit` is the permit that its request got.
pub fn render(
    renderer: &ResponseRenderer,
    message: &ParsedMessage,
    decision: &Decision<'_>,
    permit: Option<&PermitToken>,
) -> Result<CountedResponse, HttpProblem> {
    let counted = rls::respond(renderer, message, decision, permit);
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
            JsonError::Invalid(problem) => Self::bad_request(problem),
            JsonError::Internal(_) => Self::internal(error),
        }
    }
}
