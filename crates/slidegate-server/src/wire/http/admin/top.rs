//! `/v1/top`: for each rule, the keys with the most denied and almost denied requests. `/v1/top?rule=NAME`: the keys that
//! an observing rule would have denied since its roll-out began.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use serde::{Deserialize, Serialize};

use crate::client_text::excerpt;
use crate::decide::Service;
use crate::render::problem::HttpProblem;
use crate::render::{JsonResponse, render_json};
use crate::telemetry::top::{MAX_ROLLOUT_KEYS_PER_RULE, RolloutReport, TopReport};

/// Default number of keys in each list of a rule's report.
const DEFAULT_TOP_KEY_COUNT: usize = 10;

/// Maximum number of keys that the query can set for each list.
const MAX_TOP_KEY_COUNT: usize = 64;

/// The query of a request for `/v1/top`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TopQuery {
    keys: Option<usize>,
    rule: Option<String>,
}

/// The response to a query: about all rules, or about one observing rule.
#[derive(Serialize)]
#[serde(untagged)]
enum TopResponse {
    Report(Option<TopReport>),
    Rollout(Option<RolloutReport>),
}

/// Returns the keys of each rule with the most denied and almost denied requests, and the rules that never apply. The
/// query `keys=N` sets the number of keys in each list. With `rule=NAME`, returns the keys that this rule would have
/// denied.
pub async fn top_keys(
    State(service): State<Arc<Service>>,
    RawQuery(query): RawQuery,
) -> Result<JsonResponse, HttpProblem> {
    let query = parse_query(query.as_deref().unwrap_or_default())?;
    // A report on many rules takes milliseconds and would block other tasks of this thread.
    let report = tokio::task::spawn_blocking(move || {
        if let Some(rule) = query.rule {
            let keys = query.keys.unwrap_or(MAX_ROLLOUT_KEYS_PER_RULE);
            return TopResponse::Rollout(service.telemetry().rollout_keys(&rule, keys));
        }
        let rules_never_applied = service.active_policy().rule_use().unused_rules();
        let keys = query.keys.unwrap_or(DEFAULT_TOP_KEY_COUNT);
        let report = service.telemetry().top_keys(keys);
        TopResponse::Report(report.map(|report| TopReport { rules_never_applied, ..report }))
    });
    render_json(&report.await.map_err(HttpProblem::internal)?)
}

fn parse_query(query: &str) -> Result<TopQuery, HttpProblem> {
    let parsed = serde_urlencoded::from_str::<TopQuery>(query).ok();
    let max_keys = |query: &TopQuery| match query.rule {
        Some(_) => MAX_ROLLOUT_KEYS_PER_RULE,
        None => MAX_TOP_KEY_COUNT,
    };
    let is_valid =
        |query: &TopQuery| query.keys.is_none_or(|keys| (1..=max_keys(query)).contains(&keys));
    parsed.filter(is_valid).ok_or_else(|| {
        HttpProblem::bad_request(format!(
            "invalid query `{}`; send keys=N, with N from 1 to {MAX_TOP_KEY_COUNT}, or rule=NAME, then N can be {MAX_ROLLOUT_KEYS_PER_RULE}",
            excerpt(query)
        ))
    })
}
