//! `/v1/explain`: the decision about a request, rule by rule.
//!
//! An explanation compares each descriptor with each rule of the domain, which takes up to seconds of CPU. So it runs apart
//! from the threads that serve connections, one at a time, and ends when its client leaves.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::decide::Service;
use crate::json::{parse, repair_json};
use crate::render::problem::HttpProblem;
use crate::render::{JsonResponse, render_json};
use crate::wire::http::body::ExplainBody;

/// The permission to run an explanation. Further explanations wait for it.
static EXPLANATION_SEMAPHORE: Semaphore = Semaphore::const_new(1);

/// Explains the decision about a request, rule by rule. Charges nothing.
pub async fn explain(
    State(service): State<Arc<Service>>,
    body: Bytes,
) -> Result<JsonResponse, HttpProblem> {
    let running = EXPLANATION_SEMAPHORE.acquire().await.map_err(HttpProblem::internal)?;
    let cancelled = CancellationToken::new();
    // When the client disconnects, this future is dropped, and the guard cancels the explanation.
    let _cancel_on_drop = cancelled.clone().drop_guard();
    let explained = spawn_blocking(move || {
        let _running = running;
        Handle::current().block_on(explain_call(&service, &body, &cancelled))
    });
    explained.await.map_err(HttpProblem::internal)?
}

async fn explain_call(
    service: &Service,
    body: &[u8],
    cancelled: &CancellationToken,
) -> Result<JsonResponse, HttpProblem> {
    let text = repair_json(body);
    let body: ExplainBody<'_> = parse(&text)?;
    let request = body.to_gate_request();
    service.check_request(&service.active_policy().policy, &request)?;
    let explanation = service.explain(&request, cancelled).await?;
    render_json(&explanation)
}
