//! The face of operators: how it goes, and why. Nobody else may reach it.

mod cluster;
mod explain;
mod metrics;
mod top;

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::Uri;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use super::problem::Problem;
use super::{body, health, problem};
use crate::service::Service;

/// Every path of the admin address. `patience` is how long a body may take.
pub fn router(service: Arc<Service>, patience: Duration) -> Router {
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/v1/top", get(top::top))
        .route("/v1/explain", post(explain::explain))
        .route("/v1/cluster", get(cluster::cluster))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(not_found)
        .method_not_allowed_fallback(problem::method_not_allowed)
        .layer(from_fn_with_state(patience, body::read_whole))
        .with_state(service)
}

/// For a path that leads nowhere.
async fn not_found(uri: Uri) -> Problem {
    problem::nothing_at(
        &uri,
        "operators ask /metrics, /v1/top, /v1/explain, /v1/cluster, /healthz and /readyz here; whether a \
         request may pass is asked at the address of --http",
    )
}
