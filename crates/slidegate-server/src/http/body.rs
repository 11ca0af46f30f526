//! Reads a request's body whole, before anything else: bounded in bytes and in time.

use std::time::Duration;

use axum::body::{Body, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::MAX_BODY;
use super::problem::Problem;

/// Bytes of a body that is too large which are read all the same, and forgotten. Most clients read
/// the answer only when they have sent everything, and may then go on with the same connection.
const MAX_FORGOTTEN: usize = 16 * MAX_BODY;

/// A layer after which every body is there.
pub async fn read_whole(
    State(patience): State<Duration>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    if body.is_end_stream() {
        return Ok(next.run(Request::from_parts(head, body)).await);
    }
    // Who asks first is told before sending anything.
    if waits_to_send(&head.headers) && body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Problem::too_large().ending_connection());
    }
    let whole = timeout(patience, read(body)).await.map_err(|_| Problem::too_slow(patience))??;
    Ok(next.run(Request::from_parts(head, Body::from(whole))).await)
}

fn waits_to_send(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

async fn read(mut body: Body) -> Result<Vec<u8>, Problem> {
    let mut whole = Vec::new();
    let mut length = 0_usize;
    while let Some(frame) = body.frame().await {
        // Trailers say nothing to us.
        let Ok(data) = frame.map_err(Problem::unreadable)?.into_data() else { continue };
        length = length.saturating_add(data.len());
        if length > MAX_FORGOTTEN {
            return Err(Problem::too_large().ending_connection());
        }
        if length <= MAX_BODY {
            whole.extend_from_slice(&data);
        }
    }
    if length > MAX_BODY { Err(Problem::too_large()) } else { Ok(whole) }
}
