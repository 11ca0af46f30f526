//! `/json`: what gRPC asks, as JSON, at the path where Envoy's own rate limit service has it.

use std::pin::pin;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::Response;

use super::problem::Problem;
use crate::decisions::{Caller, Decisions};
use crate::rls::{self, Invalid, JsonError, Reply};
use crate::watch::metrics::Answered;

/// Charges what the descriptors cost, if the request may pass.
pub async fn json(
    State(face): State<Arc<Decisions>>,
    caller: Caller,
    body: Bytes,
) -> Result<Response, Problem> {
    let question = face.begin("slidegate.should_rate_limit", caller);
    let find = pin!(async {
        let message = rls::json::read(&body)?;
        respond(&rls::decide(&face, &question, message).await?)
    });
    question.answer(find).await
}

fn respond(reply: &Reply) -> Result<Response, Problem> {
    let status = match reply.answered {
        Answered::Allowed => StatusCode::OK,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    response.body(Body::from(rls::json::write(&reply.message)?)).map_err(Problem::internal)
}

impl From<Invalid> for Problem {
    fn from(invalid: Invalid) -> Self {
        Self::bad_request(invalid.to_string())
    }
}

impl From<JsonError> for Problem {
    fn from(error: JsonError) -> Self {
        match error {
            JsonError::Wrong(wrong) => Self::bad_request(wrong.to_string()),
            JsonError::Ours(_) => Self::internal(error),
        }
    }
}
