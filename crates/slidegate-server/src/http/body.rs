//! Reads a request's body whole, before anything else: bounded in bytes and in time.

use std::error::Error;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, header};
use axum::middleware::Next;
use axum::response::Response;
use http_body_util::BodyExt;
use tokio::time::timeout;

use super::MAX_BODY_BYTES;
use super::problem::Problem;

/// Bytes of a body that is too large which are read all the same, and forgotten. Most clients read
/// the answer only when they have sent everything, and may then go on with the same connection.
const MAX_DISCARDED_BYTES: usize = 2 * MAX_BODY_BYTES;

/// A layer after which every body is there.
pub async fn buffer_body(
    State(client_timeout): State<Duration>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let bytes = read_body(&head.headers, body, client_timeout).await?;
    Ok(next.run(Request::from_parts(head, Body::from(bytes))).await)
}

/// The body of a request with these headers. `client_timeout` is how long it may take.
pub async fn read_body<B>(
    headers: &HeaderMap,
    body: B,
    client_timeout: Duration,
) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // Who asks first is told before sending anything.
    if expects_continue(headers) && body.size_hint().lower() > MAX_BODY_BYTES as u64 {
        return Err(Problem::too_large().closing_connection());
    }
    timeout(client_timeout, read_frames(body))
        .await
        .map_err(|_| Problem::body_timeout(client_timeout))?
}

fn expects_continue(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

async fn read_frames<B>(mut body: B) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    let mut buffer = BodyBuffer::default();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing to us.
        let Ok(data) = frame.map_err(Problem::unreadable)?.into_data() else { continue };
        buffer.push(data);
        if buffer.length > MAX_DISCARDED_BYTES {
            return Err(Problem::too_large().closing_connection());
        }
    }
    if buffer.length > MAX_BODY_BYTES { Err(Problem::too_large()) } else { Ok(buffer.into_bytes()) }
}

/// What has come of a body. Most come in one piece, which stays where it is.
#[derive(Default)]
struct BodyBuffer {
    first: Bytes,
    /// All, once there is more than the first.
    all: Vec<u8>,
    /// With what is forgotten.
    length: usize,
}

impl BodyBuffer {
    fn push(&mut self, data: Bytes) {
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
