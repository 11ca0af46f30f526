//! `/v1/top`: for each rule, the keys with the most denied and almost denied requests.

use std::sync::Arc;

use axum::Json;
use axum::extract::{RawQuery, State};

use crate::client_text::excerpt;
use crate::decide::Service;
use crate::render::problem::HttpProblem;
use crate::telemetry::top::TopReport;

/// Default number of keys in each list of a rule's report.
const DEFAULT_TOP_KEY_COUNT: usize = 10;

/// Maximum number of keys that the query can set for each list.
const MAX_TOP_KEY_COUNT: usize = 64;

/// Returns the keys of each rule with the most denied and almost denied requests, and the rules that never apply. The query `keys=N` sets the number of
/// keys in each list.
pub async fn top_keys(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
) -> Result<Json<Option<TopReport>>, HttpProblem> {
    let keys = parse_top_key_count(query.as_deref().unwrap_or_default())?;
    // A report on many rules takes milliseconds and would block other tasks of this thread.
    let report = tokio::task::spawn_blocking(move || {
        let rules_never_applied = service.active_policy().rule_use().unused_rules();
        let report = service.telemetry().top_keys(keys)?;
        Some(TopReport { rules_never_applied, ..report })
    });
    report.await.map(Json).map_err(HttpProblem::internal)
}

fn parse_top_key_count(query: &str) -> Result<usize, HttpProblem> {
    if query.is_empty() {
        return Ok(DEFAULT_TOP_KEY_COUNT);
    }
    let keys = query.strip_prefix("keys=").and_then(|keys| keys.parse().ok());
    keys.filter(|keys| (1..=MAX_TOP_KEY_COUNT).contains(keys)).ok_or_else(|| {
        HttpProblem::bad_request(format!(
            "invalid query `{}`; send keys=N, with N from 1 to {MAX_TOP_KEY_COUNT}",
            excerpt(query)
        ))
    })
}
