//! `/v1/top`: the keys that are limited most.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};

use crate::http::problem::Problem;
use crate::service::Service;
use crate::telemetry::top::TopReport;

/// Default and maximum number of keys reported for each rule.
const DEFAULT_KEYS: usize = 10;
const MAX_KEYS: usize = 64;

/// Returns the most limited keys of each rule. The query `keys=N` sets their number.
pub async fn top(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Option<TopReport>>, Problem> {
    let keys = parse_keys(query.as_deref().unwrap_or_default())?;
    // A report on many rules takes milliseconds and would block other tasks of this thread.
    let report = tokio::task::spawn_blocking(move || service.telemetry().top_keys(keys));
    report.await.map(Json).map_err(Problem::internal)
}

fn parse_keys(query: &str) -> Result<usize, Problem> {
    if query.is_empty() {
        return Ok(DEFAULT_KEYS);
    }
    let keys = query.strip_prefix("keys=").and_then(|keys| keys.parse().ok());
    keys.filter(|keys| (1..=MAX_KEYS).contains(keys)).ok_or_else(|| {
        Problem::bad_request(format!(
            "query: only keys=N is supported, with N from 1 to {MAX_KEYS}"
        ))
    })
}
