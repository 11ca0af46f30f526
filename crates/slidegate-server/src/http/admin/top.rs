//! `/v1/top`: who is limited most.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};

use crate::http::problem::Problem;
use crate::service::Service;
use crate::watch::top::Report;

/// Keys of each rule that are told unless asked otherwise, and at most.
const DEFAULT_KEYS: usize = 10;
const MAX_KEYS: usize = 64;

/// Who is limited most, `?keys=N` of each rule.
pub async fn top(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Option<Report>>, Problem> {
    let keys = parse_keys(query.as_deref().unwrap_or_default())?;
    // Many rules take milliseconds, in which others may need this thread.
    let report = tokio::task::spawn_blocking(move || service.watch().top(keys));
    report.await.map(Json).map_err(Problem::internal)
}

fn parse_keys(query: &str) -> Result<usize, Problem> {
    if query.is_empty() {
        return Ok(DEFAULT_KEYS);
    }
    let keys = query.strip_prefix("keys=").and_then(|keys| keys.parse().ok());
    keys.filter(|keys| (1..=MAX_KEYS).contains(keys)).ok_or_else(|| {
        Problem::bad_request(format!("the only query is keys=N, from 1 to {MAX_KEYS}"))
    })
}
