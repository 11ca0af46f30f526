//! Counts how requests were answered.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use opentelemetry::KeyValue;

use super::problem::Problem;
use crate::decisions::{Decisions, Told};
use crate::watch::metrics::Answered;

/// A layer that counts every answer.
pub async fn count(State(face): State<Arc<Decisions>>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if let Some(metrics) = face.metrics() {
        metrics.answered(answered(response.status()));
    }
    response
}

impl Told for Result<Response, Problem> {
    fn answered(&self) -> Answered {
        answered(status(self))
    }

    fn code(&self) -> KeyValue {
        KeyValue::new("http.response.status_code", i64::from(status(self).as_u16()))
    }
}

fn status(answer: &Result<Response, Problem>) -> StatusCode {
    answer.as_ref().map_or_else(Problem::status, Response::status)
}

/// How a request with this status was answered.
fn answered(status: StatusCode) -> Answered {
    match status {
        StatusCode::OK => Answered::Allowed,
        StatusCode::TOO_MANY_REQUESTS => Answered::Denied,
        StatusCode::SERVICE_UNAVAILABLE => Answered::Refused,
        _ if status.is_client_error() => Answered::Invalid,
        _ => Answered::Error,
    }
}
