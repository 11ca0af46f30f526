//! The memory of request bodies, bounded for each connection and for the process.
//!
//! A body waits until there is space for all of it, and is not read any further, so that flow control stops its client.
//! A body that has space therefore never waits for others.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use http_body_util::BodyExt;
use thiserror::Error;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, timeout_at};

use crate::bounds::MAX_BODY_BYTES;

/// Bytes of bodies that each connection may hold outside of the shared budget. Nearly all requests fit, so that
/// connections rarely use a shared counter.
const UNSHARED_BYTES_PER_CONNECTION: usize = 64 * 1024;

/// The bodies of a connection may occupy at most the budget divided by this number.
const CONNECTION_SHARE_DIVISOR: usize = 2;

/// Minimum of the budget in bytes. The share of each connection then has space for several of the largest bodies.
pub const MIN_BODY_BUDGET: usize = 8 * MAX_BODY_BYTES;

/// Maximum time to receive a body after it has got a part of the budget. Otherwise clients that stop sending would keep
/// the space from others.
const MAX_BODY_RECEIVE_TIME: Duration = Duration::from_secs(10);

/// Maximum number of bytes that are read from a body larger than [`MAX_BODY_BYTES`]. Most clients read the response
/// only after they have sent the whole body, and can then reuse the connection.
const MAX_BYTES_READ_FROM_OVERSIZED_BODY: usize = 2 * MAX_BODY_BYTES;

/// The budget of bytes for the bodies of all connections. Clones share it.
#[derive(Clone, Debug)]
pub struct BodyBudget {
    space: Arc<Semaphore>,
    max_bytes: usize,
}

/// The space for the bodies of one connection. Clones share it.
#[derive(Clone, Debug)]
pub struct ConnectionBodyBudget {
    own: Arc<Semaphore>,
    share: Arc<Semaphore>,
    budget: Arc<Semaphore>,
}

/// A body in memory. Dropping it frees its space.
#[derive(Debug, Default)]
pub struct BufferedBody {
    pub bytes: Bytes,
    _space: BodySpace,
}

/// The reason why a body was not read.
#[derive(Debug, Error)]
pub enum BodyError {
    /// The body is larger than [`MAX_BODY_BYTES`].
    #[error("the body is over {MAX_BODY_BYTES} bytes; send fewer or shorter attributes")]
    TooLarge {
        /// Whether the body was read to its end, so that the connection can be used again.
        is_read: bool,
    },
    /// The body did not arrive in time.
    #[error(
        "the body did not arrive within {max_wait:?}; check that Content-Length is not larger than the body, and send \
         large bodies without a pause"
    )]
    Slow {
        /// The time that the client had.
        max_wait: Duration,
    },
    /// The body is longer than the length that its first bytes state.
    #[error("the body has more than the {0} bytes that its beginning states; send one message")]
    Overlong(usize),
    /// The body ends early, or its encoding is malformed.
    #[error(
        "the body cannot be read: {}; send as many bytes as Content-Length states, or well-formed chunks",
        root_cause(&**.0)
    )]
    Unreadable(Box<dyn Error + Send + Sync>),
}

/// A body that is being read.
#[derive(Debug, Default)]
struct PartialBody {
    received_bytes: usize,
    bytes: Vec<u8>,
    space: BodySpace,
    /// The number of bytes for which the body has space: zero before its first part, then its whole length.
    space_bytes: usize,
    /// The time at which the whole body must have arrived; `None` if the body occupies no part of the shared budget.
    deadline: Option<Instant>,
}

/// The space that a body occupies: one permit of its connection alone, or two permits, of the connection's share and of
/// the shared budget.
type BodySpace = [Option<OwnedSemaphorePermit>; 2];

impl BodyBudget {
    /// Creates a budget of `max_bytes`, at least [`MIN_BODY_BUDGET`].
    pub fn new(max_bytes: usize) -> Self {
        let max_bytes = max_bytes.clamp(MIN_BODY_BUDGET, Semaphore::MAX_PERMITS);
        Self { space: Arc::new(Semaphore::new(max_bytes)), max_bytes }
    }

    /// Returns the space for the bodies of a new connection.
    pub fn for_connection(&self) -> ConnectionBodyBudget {
        ConnectionBodyBudget {
            own: Arc::new(Semaphore::new(UNSHARED_BYTES_PER_CONNECTION)),
            share: Arc::new(Semaphore::new(self.max_bytes / CONNECTION_SHARE_DIVISOR)),
            budget: self.space.clone(),
        }
    }

    /// Returns the number of bytes that bodies occupy in the budget.
    pub fn used_bytes(&self) -> usize {
        self.max_bytes - self.space.available_permits()
    }
}

impl ConnectionBodyBudget {
    /// Reads a whole body. Waits while there is no space for it. `stated_length` returns the length of the body that
    /// its first part states. If no length is known, the body gets space for the maximum size.
    pub async fn read<B>(
        &self,
        mut body: B,
        stated_length: fn(&[u8]) -> Option<usize>,
    ) -> Result<BufferedBody, BodyError>
    where
        B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
    {
        let mut partial = PartialBody::default();
        let mut has_more = !body.is_end_stream();
        while has_more {
            let deadline = partial.deadline;
            let part = self.read_part(&mut body, &mut partial, stated_length);
            has_more = match deadline {
                None => part.await?,
                Some(deadline) => timeout_at(deadline, part)
                    .await
                    .unwrap_or(Err(BodyError::Slow { max_wait: MAX_BODY_RECEIVE_TIME }))?,
            };
        }
        if partial.received_bytes > MAX_BODY_BYTES {
            Err(BodyError::TooLarge { is_read: true })
        } else {
            Ok(BufferedBody { bytes: partial.bytes.into(), _space: partial.space })
        }
    }

    /// Reads the next part of a body. Returns whether there may be more.
    async fn read_part<B>(
        &self,
        body: &mut B,
        partial: &mut PartialBody,
        stated_length: fn(&[u8]) -> Option<usize>,
    ) -> Result<bool, BodyError>
    where
        B: HttpBody<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
    {
        let whole_length = body.size_hint().exact().and_then(|bytes| usize::try_from(bytes).ok());
        let Some(frame) = body.frame().await else { return Ok(false) };
        let frame = frame.map_err(|error| BodyError::Unreadable(error.into()))?;
        let Ok(part) = frame.into_data() else { return Ok(!body.is_end_stream()) };
        partial.received_bytes += part.len();
        if partial.received_bytes > MAX_BYTES_READ_FROM_OVERSIZED_BODY {
            return Err(BodyError::TooLarge { is_read: false });
        }
        if partial.received_bytes > MAX_BODY_BYTES {
            let received_bytes = partial.received_bytes;
            *partial = PartialBody { received_bytes, ..PartialBody::default() };
            return Ok(!body.is_end_stream());
        }
        if partial.space_bytes == 0 && !part.is_empty() {
            let length = whole_length.or_else(|| stated_length(&part)).unwrap_or(MAX_BODY_BYTES);
            self.acquire_space(length.clamp(part.len(), MAX_BODY_BYTES), partial).await;
        }
        if partial.received_bytes > partial.space_bytes {
            return Err(BodyError::Overlong(partial.space_bytes));
        }
        // Copied, because the part may keep a larger buffer of its connection in memory.
        partial.bytes.reserve_exact(part.len());
        partial.bytes.extend_from_slice(&part);
        Ok(!body.is_end_stream())
    }

    /// Waits until there is space for a whole body, and occupies it.
    async fn acquire_space(&self, bytes: usize, partial: &mut PartialBody) {
        partial.space_bytes = bytes;
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        if let Ok(own) = self.own.clone().try_acquire_many_owned(bytes) {
            partial.space = [Some(own), None];
            return;
        }
        // Acquiring cannot fail, because the semaphores are never closed.
        let share = self.share.clone().acquire_many_owned(bytes).await.ok();
        let budget = self.budget.clone().acquire_many_owned(bytes).await.ok();
        partial.space = [share, budget];
        partial.deadline = Some(Instant::now() + MAX_BODY_RECEIVE_TIME);
    }
}

/// Returns `None`, for protocols whose bodies do not begin with their length.
pub fn no_length_prefix(_: &[u8]) -> Option<usize> {
    None
}

/// Returns the innermost cause of an error, which the texts of the outer errors do not contain.
fn root_cause<'e>(error: &'e (dyn Error + 'static)) -> &'e (dyn Error + 'static) {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::pin::pin;

    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

    use super::*;

    const PART_BYTES: usize = 256 * 1024;

    /// A body whose parts a test sends.
    fn body() -> (UnboundedSender<Bytes>, impl HttpBody<Data = Bytes, Error = Infallible> + Unpin) {
        let (parts, received) = unbounded_channel();
        let next = |mut received: UnboundedReceiver<Bytes>| async move {
            let part: Bytes = received.recv().await?;
            Some((Ok(Frame::data(part)), received))
        };
        (parts, StreamBody::new(Box::pin(futures_util::stream::unfold(received, next))))
    }

    fn part() -> Bytes {
        vec![b'x'; PART_BYTES].into()
    }

    #[tokio::test(start_paused = true)]
    async fn bodies_wait_until_others_free_their_space() {
        let budget = BodyBudget::new(0);
        let connections = [(); CONNECTION_SHARE_DIVISOR].map(|()| budget.for_connection());
        let mut read = Vec::new();
        for connection in connections.iter().cycle().take(MIN_BODY_BUDGET / PART_BYTES) {
            let (parts, body) = body();
            parts.send(part()).unwrap();
            drop(parts);
            read.push(connection.read(body, length_of_part).await.unwrap());
        }
        assert_eq!(budget.used_bytes(), MIN_BODY_BUDGET);
        let (parts, body) = body();
        parts.send(part()).unwrap();
        drop(parts);
        let other = budget.for_connection();
        let mut waiting = pin!(other.read(body, length_of_part));
        let hour = Duration::from_secs(3600);
        assert!(tokio::time::timeout(hour, waiting.as_mut()).await.is_err(), "no space");
        read.pop();
        assert_eq!(waiting.await.unwrap().bytes, part());
        drop(read);
        assert_eq!(budget.used_bytes(), 0);
    }

    /// The length that each part of the tests states.
    fn length_of_part(part: &[u8]) -> Option<usize> {
        Some(part.len())
    }

    /// If each had some space, and waited for more, none would ever be whole.
    #[tokio::test(start_paused = true)]
    async fn body_waits_for_all_its_space_at_once() {
        let budget = BodyBudget::new(0);
        let connections: Vec<_> =
            (0..=MIN_BODY_BUDGET / MAX_BODY_BYTES).map(|_| budget.for_connection()).collect();
        let mut incomplete = Vec::new();
        for connection in &connections {
            let (parts, body) = body();
            parts.send(part()).unwrap();
            let mut read = Box::pin(connection.read(body, no_length_prefix));
            let started = tokio::time::timeout(Duration::from_millis(1), read.as_mut()).await;
            assert!(started.is_err());
            incomplete.push((parts, read));
        }
        let waiting = incomplete.pop();
        for (parts, read) in incomplete {
            (1..MAX_BODY_BYTES / PART_BYTES).for_each(|_| parts.send(part()).unwrap());
            drop(parts);
            assert_eq!(read.await.unwrap().bytes.len(), MAX_BODY_BYTES);
        }
        drop(waiting);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn body_longer_than_stated_is_rejected() {
        let connection = BodyBudget::new(0).for_connection();
        let (parts, body) = body();
        parts.send(part()).unwrap();
        parts.send("x".into()).unwrap();
        let error = connection.read(body, length_of_part).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "the body has more than the 262144 bytes that its beginning states; send one message"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn small_bodies_need_no_budget() {
        let budget = BodyBudget::new(0);
        let connection = budget.for_connection();
        let (parts, body) = body();
        parts.send("{".into()).unwrap();
        parts.send("}".into()).unwrap();
        drop(parts);
        let body = connection.read(body, |_| Some(2)).await.unwrap();
        assert_eq!((&body.bytes[..], budget.used_bytes()), (&b"{}"[..], 0));
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_stops_sending_loses_its_space() {
        let budget = BodyBudget::new(0);
        let connection = budget.for_connection();
        let (parts, body) = body();
        parts.send(part()).unwrap();
        let started = Instant::now();
        assert!(matches!(
            connection.read(body, no_length_prefix).await,
            Err(BodyError::Slow { .. })
        ));
        assert_eq!((started.elapsed(), budget.used_bytes()), (MAX_BODY_RECEIVE_TIME, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn oversized_body_occupies_no_space() {
        let budget = BodyBudget::new(0);
        let connection = budget.for_connection();
        for (count, is_read) in [(5, true), (9, false)] {
            let (parts, body) = body();
            (0..count).for_each(|_| parts.send(part()).unwrap());
            drop(parts);
            let error = connection.read(body, no_length_prefix).await.unwrap_err();
            assert!(
                matches!(error, BodyError::TooLarge { is_read: actual } if actual == is_read),
                "{error}"
            );
            assert_eq!(budget.used_bytes(), 0);
        }
    }
}
