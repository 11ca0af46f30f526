//! Counts how requests were answered, and how long that took.

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use quanta::Instant;

use crate::watch::metrics::{Answered, FaceMetrics};

/// Where to count, if anywhere.
#[derive(Clone)]
pub struct Counts(pub Option<FaceMetrics>);

/// Counts the time until it is dropped.
pub struct Timer<'c>(Option<(&'c FaceMetrics, Instant)>);

impl Counts {
    /// Begins when the whole request is there: what a client takes to send it is not ours.
    pub fn timer(&self) -> Timer<'_> {
        Timer(self.0.as_ref().map(|metrics| (metrics, Instant::now())))
    }
}

impl Drop for Timer<'_> {
    fn drop(&mut self) {
        if let Some((metrics, begun)) = &self.0 {
            metrics.took(begun.elapsed());
        }
    }
}

/// A layer that counts every answer.
pub async fn count(State(counts): State<Counts>, request: Request, next: Next) -> Response {
    let response = next.run(request).await;
    if let Some(metrics) = &counts.0 {
        metrics.answered(answered(response.status()));
    }
    response
}

/// How a request with this status was answered.
pub fn answered(status: StatusCode) -> Answered {
    match status {
        StatusCode::OK => Answered::Allowed,
        StatusCode::TOO_MANY_REQUESTS => Answered::Denied,
        StatusCode::SERVICE_UNAVAILABLE => Answered::Refused,
        _ if status.is_client_error() => Answered::Invalid,
        _ => Answered::Error,
    }
}
