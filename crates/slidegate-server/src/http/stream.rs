//! A client connection that adds bodies to the error responses of hyper.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use super::hyper_errors;
use crate::connections::ClientIo;

/// Time to keep reading from the client after an error response. If the server closes a connection with unread bytes,
/// the connection is reset, and the client's system may then discard the response.
const LINGER_TIME_AFTER_ERROR_RESPONSE: Duration = Duration::from_secs(1);

/// A client connection that adds problem+json bodies to the empty error responses of hyper.
pub struct ClientStream {
    client: ClientIo,
    error_response: Option<PendingErrorResponse>,
}

/// An error response that replaces a response of hyper. After the error response has been sent, bytes from the client
/// are discarded until `linger` ends.
struct PendingErrorResponse {
    bytes: Vec<u8>,
    sent: usize,
    linger: Pin<Box<Sleep>>,
}

impl ClientStream {
    /// Wraps a client connection, so that the error responses of hyper on it get a body.
    pub fn new(client: ClientIo) -> Self {
        Self { client, error_response: None }
    }

    fn poll_send_error_response(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(PendingErrorResponse { bytes, sent, .. }) = &mut self.error_response else {
            return Poll::Ready(Ok(()));
        };
        while *sent < bytes.len() {
            match ready!(self.client.as_mut().poll_write(cx, &bytes[*sent..]))? {
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
            let read = ready!(self.client.as_mut().poll_read(cx, &mut unread));
            if read.is_err() || unread.filled().is_empty() {
                return Poll::Ready(());
            }
        }
    }
}

impl AsyncRead for ClientStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.client.as_mut().poll_read(cx, buffer)
    }
}

/// Supports no vectored writes. Without them, hyper writes the head and the body of a response in one piece, and an
/// error response can be recognized in this piece.
impl AsyncWrite for ClientStream {
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
        self.client.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_error_response(cx))?;
        self.client.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_error_response(cx))?;
        ready!(self.client.as_mut().poll_shutdown(cx))?;
        self.poll_discard_unread_bytes(cx).map(Ok)
    }
}
