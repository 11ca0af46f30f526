//! `/v1/explain`: what becomes of a request, rule by rule, and why.

use std::sync::Arc;

use axum::Json;
use axum::body::Bytes;
use axum::extract::State;

use crate::explain::Explanation;
use crate::http::ask::ExplainAsk;
use crate::http::problem::Problem;
use crate::service::Service;

/// Explains, and charges nothing.
pub async fn explain(
    State(service): State<Arc<Service>>,
    body: Bytes,
) -> Result<Json<Explanation>, Problem> {
    let ask = ExplainAsk::read(&body)?;
    Ok(Json(service.explain(&ask.request()).await))
}
