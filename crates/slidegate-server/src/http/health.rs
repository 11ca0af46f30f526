//! Whether the server is alive, and whether it should be asked.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::health::Readiness;
use crate::service::Service;

/// It is alive, if it can answer.
pub async fn healthz() -> &'static str {
    "ok"
}

/// Whether it should be asked, and why not.
pub async fn readyz(State(service): State<Arc<Service>>) -> (StatusCode, Json<Readiness>) {
    let readiness = Readiness::from_service(&service);
    let status = match readiness.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(readiness))
}
