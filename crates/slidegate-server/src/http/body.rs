//! Reads request bodies into memory before a handler runs, bounded in size and time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use axum::http::{HeaderMap, header};
use tokio::time::timeout;

use crate::body_budget::{BodyError, BufferedBody, ConnectionBodies, no_stated_length};
use crate::bounds::MAX_BODY_BYTES;
use crate::rendering::problem::HttpProblem;

/// Reads the whole body of a request with these headers. Fails if the body is larger than [`MAX_BODY_BYTES`], or does
/// not arrive within `client_timeout`.
pub async fn read_body<B>(
    headers: &HeaderMap,
    body: B,
    bodies: &ConnectionBodies,
    client_timeout: Duration,
) -> Result<BufferedBody, HttpProblem>
where
    B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    // A client that sends `Expect: 100-continue` learns that the body is too large before it sends the body.
    if expects_100_continue(headers) && body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(BodyError::TooLarge { is_read: false }.into());
    }
    let body = timeout(client_timeout, bodies.read(body, no_stated_length)).await;
    body.unwrap_or(Err(BodyError::Slow { max_wait: client_timeout })).map_err(HttpProblem::from)
}

fn expects_100_continue(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}
