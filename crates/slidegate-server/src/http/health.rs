//! `/healthz` and `/readyz`: liveness and readiness of the server.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::health::Readiness;
use crate::service::Service;

/// Responds with status 200 while the server is alive.
pub async fn healthz() -> &'static str {
    "ok"
}

/// Responds with status 200 if the server is ready, else with 503. The body contains the reasons.
pub async fn readyz(State(service): State<Arc<Service>>) -> (StatusCode, Json<Readiness>) {
    let readiness = service.readiness();
    let status = match readiness.is_ready() {
        true => StatusCode::OK,
        false => StatusCode::SERVICE_UNAVAILABLE,
    };
    (status, Json(readiness))
}
