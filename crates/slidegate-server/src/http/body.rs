//! Reads request bodies into memory before a handler runs, bounded in size and time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use tokio::time::timeout;

use crate::bounds::MAX_BODY_BYTES;
use crate::rendering::problem::HttpProblem;

/// Maximum number of bytes that are read from a body larger than [`MAX_BODY_BYTES`]. Most clients read the response only
/// after they have sent the whole body, and can then reuse the connection.
const MAX_BYTES_READ_FROM_OVERSIZED_BODY: usize = 2 * MAX_BODY_BYTES;

/// Reads the body of each request into memory before the handler runs. Used as axum middleware.
pub async fn buffer_body(
    State(client_timeout): State<Duration>,
    request: Request,
    next: Next,
) -> Result<Response, HttpProblem> {
    let (head, body) = request.into_parts();
    let bytes = read_body(&head.headers, body, client_timeout).await?;
    Ok(next.run(Request::from_parts(head, Body::from(bytes))).await)
}

/// Reads the whole body of a request with these headers. Fails if the body is larger than [`MAX_BODY_BYTES`], or does
/// not arrive within `client_timeout`.
pub async fn read_body<B>(
    headers: &HeaderMap,
    body: B,
    client_timeout: Duration,
) -> Result<Bytes, HttpProblem>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // A client that sends `Expect: 100-continue` learns that the body is too large before it sends the body.
    if expects_100_continue(headers) && body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(HttpProblem::body_too_large().closing_connection());
    }
    let body = Limited::new(body, MAX_BYTES_READ_FROM_OVERSIZED_BODY).collect();
    let body = timeout(client_timeout, body)
        .await
        .map_err(|_| HttpProblem::body_timeout(client_timeout))?
        .map_err(|error| match error.is::<LengthLimitError>() {
            true => HttpProblem::body_too_large().closing_connection(),
            false => HttpProblem::unreadable_body(&*error),
        })?
        .to_bytes();
    match body.len() > MAX_BODY_BYTES {
        true => Err(HttpProblem::body_too_large()),
        false => Ok(body),
    }
}

fn expects_100_continue(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
