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

use super::MAX_BODY;
use super::problem::Problem;

/// Bytes of a body that is too large which are read all the same, and forgotten. Most clients read
/// the answer only when they have sent everything, and may then go on with the same connection.
const MAX_FORGOTTEN: usize = 2 * MAX_BODY;

/// A layer after which every body is there.
pub async fn read_whole(
    State(patience): State<Duration>,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let (head, body) = request.into_parts();
    let whole = whole(&head.headers, body, patience).await?;
    Ok(next.run(Request::from_parts(head, Body::from(whole))).await)
}

/// The body of a request with these headers. `patience` is how long it may take.
pub async fn whole<B>(headers: &HeaderMap, body: B, patience: Duration) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    if body.is_end_stream() {
        return Ok(Bytes::new());
    }
    // Who asks first is told before sending anything.
    if waits_to_send(headers) && body.size_hint().lower() > MAX_BODY as u64 {
        return Err(Problem::too_large().ending_connection());
    }
    timeout(patience, read(body)).await.map_err(|_| Problem::too_slow(patience))?
}

fn waits_to_send(headers: &HeaderMap) -> bool {
    headers
        .get(header::EXPECT)
        .is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

async fn read<B>(mut body: B) -> Result<Bytes, Problem>
where
    B: HttpBody<Data = Bytes, Error: Error> + Unpin,
{
    let mut whole = Whole::default();
    while let Some(frame) = body.frame().await {
        // Trailers say nothing to us.
        let Ok(data) = frame.map_err(Problem::unreadable)?.into_data() else { continue };
        whole.push(data);
        if whole.length > MAX_FORGOTTEN {
            return Err(Problem::too_large().ending_connection());
        }
    }
    if whole.length > MAX_BODY { Err(Problem::too_large()) } else { Ok(whole.into_bytes()) }
}

/// What has come of a body. Most come in one piece, which stays where it is.
#[derive(Default)]
struct Whole {
    first: Bytes,
    /// All, once there is more than the first.
    all: Vec<u8>,
    /// With what is forgotten.
    length: usize,
}

impl Whole {
    fn push(&mut self, data: Bytes) {
        let is_first = self.length == 0;
        self.length = self.length.saturating_add(data.len());
        if self.length > MAX_BODY {
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
