//! `/json`: the gRPC rate limit service as JSON, at the same path as in Envoy's reference implementation.

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;

use crate::decide::DecidedCall;
use crate::render::problem::HttpProblem;
use crate::render::{ResponseRenderer, with_request_result};
use crate::telemetry::results::ResponseWithResult;
use crate::wire::rls::{self, JsonError, ParsedMessage};

/// Renders the response to a message.
pub fn render(
    renderer: &ResponseRenderer,
    message: &ParsedMessage,
    decided: &DecidedCall,
) -> Result<ResponseWithResult<Response>, HttpProblem> {
    let is_allowed = decided.decision.is_allowed();
    let status = if is_allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    let response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    let message = rls::build_response(message, decided, renderer);
    let response = response.body(Body::from(rls::json::serialize(&message)?));
    Ok(with_request_result(decided, response.map_err(HttpProblem::internal)?))
}

impl From<JsonError> for HttpProblem {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Invalid(problem) => Self::bad_request(problem),
            JsonError::Internal(_) => Self::internal(error),
        }
    }
}
