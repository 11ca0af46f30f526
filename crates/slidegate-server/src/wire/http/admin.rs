//! The admin listener: metrics, top keys, explanations, cluster state and health.
//!
//! The admin listener has no authentication, so only operators should be able to connect. To add a path, add a route to
//! [`router`].

mod cluster;
mod explain;
mod metrics;
mod origin;
mod top;

use std::sync::Arc;

use axum::Router;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, post};

use self::origin::{AdminHosts, reject_cross_site_requests};
use super::{AVAILABLE_PATHS_TEXT, healthcheck, healthz, readyz};
use crate::decide::Service;
use crate::render::problem::{method_not_allowed, path_not_found};

/// Returns the router of the admin listener. `hosts` are the host names that requests may have, in addition to IP
/// addresses and `localhost`.
pub fn router(service: Arc<Service>, hosts: &[String]) -> Router {
    // Only `/v1/…` rejects requests that a web page may have sent. Health and metrics contain no keys, and are
    // requested under many host names.
    let no_web_pages = from_fn_with_state(AdminHosts::new(hosts), reject_cross_site_requests);
    Router::new()
        .route("/metrics", get(metrics::metrics))
        .route("/v1/top", get(top::top_keys).route_layer(no_web_pages.clone()))
        .route("/v1/explain", post(explain::explain).route_layer(no_web_pages.clone()))
        .route("/v1/cluster", get(cluster::cluster_status).route_layer(no_web_pages))
        .route("/healthz", get(healthz))
        .route("/readyz", get(readyz))
        .route("/healthcheck", get(healthcheck))
        .fallback(async |uri| path_not_found(&uri, AVAILABLE_PATHS_TEXT))
        .method_not_allowed_fallback(method_not_allowed)
        .with_state(service)
}
