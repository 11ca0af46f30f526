//! `/json`: what gRPC asks, as JSON, at the path where Envoy's own rate limit service has it.

use std::pin::pin;

use axum::body::Body;
use axum::http::{StatusCode, header};
use axum::response::Response;

use super::answer::Reply;
use super::problem::Problem;
use crate::decisions::{Caller, Decisions};
use crate::rls::{self, Invalid, JsonError};
use crate::watch::metrics::Answered;

/// Charges what the descriptors cost, if the request may pass.
pub async fn json(face: &Decisions, caller: Caller, body: &[u8]) -> Result<Reply, Problem> {
    let question = face.begin("slidegate.should_rate_limit", caller);
    let find = pin!(async {
        let message = rls::json::read(body)?;
        respond(&rls::decide(face, &question, message).await?)
    });
    question.answer(find).await
}

fn respond(decided: &rls::Reply) -> Result<Reply, Problem> {
    let status = match decided.answered {
        Answered::Allowed => StatusCode::OK,
        _ => StatusCode::TOO_MANY_REQUESTS,
    };
    let response =
        Response::builder().status(status).header(header::CONTENT_TYPE, "application/json");
    let response = response.body(Body::from(rls::json::write(&decided.message)?));
    Ok(Reply { response: response.map_err(Problem::internal)?, answered: decided.answered })
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
