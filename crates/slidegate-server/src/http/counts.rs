//! Counts how requests were answered.

use std::sync::Arc;

use axum::extract::{Request, State};
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
        metrics.answered(answered(&response));
    }
    response
}

impl Told for Result<Response, Problem> {
    fn answered(&self) -> Answered {
        self.as_ref().map_or_else(Problem::answered, answered)
    }

    fn code(&self) -> KeyValue {
        let status = self.as_ref().map_or_else(Problem::status, Response::status);
        KeyValue::new("http.response.status_code", i64::from(status.as_u16()))
    }
}

/// How a request with this response was answered: it says so itself. A status would not say it, since a proxy
/// chooses that of a denial.
fn answered(response: &Response) -> Answered {
    response.extensions().get().copied().unwrap_or(Answered::Error)
}
