//! Reads request bodies into memory before a handler runs, bounded in size and time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::time::timeout;

use crate::bounds::MAX_BODY_BYTES;
use crate::rendering::problem::HttpProblem;

/// Maximum number of bytes that are read from a body larger than [`MAX_BODY_BYTES`]. The excess bytes are discarded.
/// Most clients read the response only after they have sent the whole body, and can then reuse the connection.
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
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // A client that sends `Expect: 100-continue` learns that the body is too large before it sends the body.
    if expects_100_continue(headers) && body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(HttpProblem::body_too_large().closing_connection());
    }
    timeout(client_timeout, read_body_frames(body))
        .await
        .unwrap_or_else(|_| Err(HttpProblem::body_timeout(client_timeout)))
}

fn expects_100_continue(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

async fn read_body_frames<B>(mut body: B) -> Result<Bytes, HttpProblem>
where
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    let mut buffer = BodyBuffer::default();
    while let Some(frame) = body.frame().await {
        // Trailers are ignored.
        let Ok(data) = frame.map_err(HttpProblem::unreadable_body)?.into_data() else { continue };
        buffer.push_piece(data);
        if buffer.length > MAX_BYTES_READ_FROM_OVERSIZED_BODY {
            return Err(HttpProblem::body_too_large().closing_connection());
        }
    }
    if buffer.length > MAX_BODY_BYTES {
        Err(HttpProblem::body_too_large())
    } else {
        Ok(buffer.into_bytes())
    }
}

/// The part of a body that has been received. Most bodies arrive in one piece, which is not copied.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    /// All pieces that have been received. Empty until a second piece arrives.
    all: Vec<u8>,
    /// Number of bytes received, including discarded bytes.
    length: usize,
}

impl BodyBuffer {
    fn push_piece(&mut self, data: Bytes) {
        let is_first = self.length == 0;
        self.length = self.length.saturating_add(data.len());
        if self.length > MAX_BODY_BYTES {
            return;
        }
        if is_first {
            self.first = data;
            return;
        }
        if self.all.is_empty() {
            self.all.extend_from_slice(&self.first);
        }
        self.all.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.all.is_empty() { self.first } else { self.all.into() }
    }
}
