//! The admin listener: metrics, top keys, explanations, cluster state and health.
//!
//! The admin listener has no authentication, so only operators should be able to connect. To add a path, add a route to
//! [`router`].

mod cluster;
mod metrics;
mod top;

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::routing::{get, post};
use axum::{Json, Router};

use super::request_body::{self, ExplainRequest};
use super::{PATHS, health};
use crate::client_text::repair_json;
use crate::explain::Explanation;
use crate::rendering::problem::{HttpProblem, method_not_allowed, path_not_found};
use crate::service::Service;

/// Returns the router of the admin listener.
pub fn router(service: Arc<Service>) -> Router {
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/v1/top", get(top::top_keys))
        .route("/v1/explain", post(explain))
        .route("/v1/cluster", get(cluster::cluster_status))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .fallback(async |uri| path_not_found(&uri, PATHS))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(service)
}

/// Explains the decision about a request, rule by rule. Charges nothing.
async fn explain(
    State(service): State<Arc<Service>>,
    body: Bytes,
) -> Result<Json<Explanation>, HttpProblem> {
    let text = repair_json(&body);
    let request: ExplainRequest<'_> = request_body::parse(&text)?;
    let request = request.to_gate_request();
    service.check_request(&request)?;
    Ok(Json(service.explain(&request).await))
}
