//! A client connection that adds bodies to the error responses of hyper, and reports when the client disconnects.
//!
//! hyper does not read from a connection while a request is handled, so it does not notice that the client disconnects.
//! A call that waits for capacity reads ahead instead; hyper gets these bytes later.

use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::fast_path::FastPath;
use super::{HttpHandler, hyper_errors};
use crate::connections::ClientIo;

/// Time to keep reading from the client after an error response. If the server closes a connection with unread bytes,
/// the connection is reset, and the client's system may then discard the response.
const LINGER_TIME_AFTER_ERROR_RESPONSE: Duration = Duration::from_secs(1);

/// Maximum number of bytes that are read ahead. If a client sends more during a request, its disconnect is not noticed.
const MAX_READ_AHEAD_BYTES: usize = 4096;

/// A client connection that adds problem+json bodies to the empty error responses of hyper.
pub struct ClientStream<H> {
    client: SharedClient,
    /// `None` after hyper has received bytes.
    fast_path: Option<FastPath<H>>,
    error_response: Option<PendingErrorResponse>,
}

/// The end of a client connection.
pub struct ClientDisconnect(SharedClient);

/// A client connection that the stream shares with the handler of its requests. Both are polled by the same task, so the
/// lock is always free.
type SharedClient = Arc<Mutex<ReadAheadClient>>;

/// A client connection, with bytes that were read ahead of hyper.
struct ReadAheadClient {
    io: ClientIo,
    read_ahead: Vec<u8>,
    /// Whether the client has closed its sending side after the bytes that were read ahead.
    has_ended: bool,
}

/// An error response that replaces a response of hyper. After the error response has been sent, bytes from the client
/// are discarded until `linger` ends.
struct PendingErrorResponse {
    bytes: Vec<u8>,
    sent: usize,
    linger: Pin<Box<Sleep>>,
}

impl<H: HttpHandler> ClientStream<H> {
    /// Wraps a client connection, so that the error responses of hyper on it get a body. The fast path responds to the
    /// first requests, until it returns one to hyper.
    pub fn new(client: ClientIo, fast_path: FastPath<H>) -> Self {
        let client = ReadAheadClient { io: client, read_ahead: Vec::new(), has_ended: false };
        let client = Arc::new(Mutex::new(client));
        Self { client, fast_path: Some(fast_path), error_response: None }
    }

    /// Returns the end of the connection, for the handler of its requests.
    pub fn disconnect(&self) -> ClientDisconnect {
        ClientDisconnect(self.client.clone())
    }

    fn poll_send_error_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(PendingErrorResponse { bytes, sent, .. }) = &mut self.error_response else {
            return Poll::Ready(Ok(()));
        };
        while *sent < bytes.len() {
            match ready!(self.client.lock().io.as_mut().poll_write(cx, &bytes[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => *sent += written,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_discard_unread_bytes(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(PendingErrorResponse { linger, .. }) = &mut self.error_response else {
            return Poll::Ready(());
        };
        loop {
            if linger.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut unread = [MaybeUninit::uninit(); 4096];
            let mut unread = ReadBuf::uninit(&mut unread);
            let read = ready!(self.client.lock().poll_read(cx, &mut unread));
            if read.is_err() || unread.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl ClientDisconnect {
    /// Completes when the client closes the connection, or its sending side. Must be polled by the task that serves the
    /// connection, while a request is handled.
    pub async fn disconnected(&self) {
        poll_fn(|cx| self.0.lock().poll_disconnected(cx)).await;
    }
}

impl ReadAheadClient {
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.read_ahead.is_empty() {
            let length = buffer.remaining().min(self.read_ahead.len());
            buffer.put_slice(&self.read_ahead[..length]);
            self.read_ahead.drain(..length);
            return Poll::Ready(Ok(()));
        }
        if self.has_ended {
            return Poll::Ready(Ok(()));
        }
        self.io.as_mut().poll_read(cx, buffer)
    }

    fn poll_disconnected(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        while !self.has_ended {
            let mut bytes = [MaybeUninit::uninit(); 512];
            let free = MAX_READ_AHEAD_BYTES.saturating_sub(self.read_ahead.len()).min(bytes.len());
            if free == 0 {
                return Poll::Pending;
            }
            let mut buffer = ReadBuf::uninit(&mut bytes[..free]);
            let result = ready!(self.io.as_mut().poll_read(cx, &mut buffer));
            self.has_ended = result.is_err() || buffer.filled().is_empty();
            self.read_ahead.extend_from_slice(buffer.filled());
        }
        Poll::Ready(())
    }
}

impl<H: HttpHandler> AsyncRead for ClientStream<H> {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let client = &mut *this.client.lock();
        let start = buffer.filled().len();
        while let Some(fast_path) = &mut this.fast_path {
            ready!(fast_path.poll_send(cx, &mut client.io))?;
            ready!(client.poll_read(cx, buffer))?;
            let received = &buffer.filled()[start..];
            let handled = fast_path.respond(received);
            if handled == 0 {
                this.fast_path = None;
                return Poll::Ready(Ok(()));
            }
            if handled < received.len() {
                // The rest is read again after the responses have been sent.
                client.read_ahead.splice(..0, received[handled..].iter().copied());
            }
            buffer.set_filled(start);
        }
        client.poll_read(cx, buffer)
    }
}

/// Supports no vectored writes. Without them, hyper writes the head and the body of a response in one piece, and an
/// error response can be recognized in this piece.
impl<H: HttpHandler> AsyncWrite for ClientStream<H> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(response) = hyper_errors::with_problem_body(bytes) {
            self.error_response = Some(PendingErrorResponse {
                bytes: response,
                sent: 0,
                linger: Box::pin(sleep(LINGER_TIME_AFTER_ERROR_RESPONSE)),
            });
            return Poll::Ready(Ok(bytes.len()));
        }
        self.client.lock().io.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_error_response(cx))?;
        self.client.lock().io.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        if let Some(fast_path) = &mut this.fast_path {
            ready!(fast_path.poll_send(cx, &mut this.client.lock().io))?;
        }
        ready!(self.poll_send_error_response(cx))?;
        ready!(self.client.lock().io.as_mut().poll_shutdown(cx))?;
        self.poll_discard_unread_bytes(cx).map(Ok)
    }
}
