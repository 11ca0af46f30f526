//! A time limit for the HTTP/2 preface, the first bytes that a client sends on a connection.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::connections::ClientIo;

/// Length in bytes of the preface with which every HTTP/2 client begins a connection.
const HTTP2_PREFACE_BYTES: usize = 24;

/// A connection that fails if the client does not send the HTTP/2 preface in time. After the preface, HTTP/2 keep-alive
/// pings detect dead clients.
pub struct PrefaceTimeout {
    client: ClientIo,
    pending_preface: Option<PendingPreface>,
}

/// The part of the HTTP/2 preface that has not arrived, and its deadline.
struct PendingPreface {
    bytes_left: usize,
    deadline: Pin<Box<Sleep>>,
}

impl PrefaceTimeout {
    /// Wraps a client connection. The preface must arrive within `client_timeout`.
    pub fn new(client: ClientIo, client_timeout: Duration) -> Self {
        let deadline = Box::pin(sleep(client_timeout));
        Self {
            client,
            pending_preface: Some(PendingPreface { bytes_left: HTTP2_PREFACE_BYTES, deadline }),
        }
    }

    /// Counts received bytes toward the preface. Removes the deadline when the preface is complete.
    fn count_preface_bytes(&mut self, bytes: usize) {
        self.pending_preface =
            self.pending_preface.take().and_then(|PendingPreface { bytes_left, deadline }| {
                let bytes_left = bytes_left.checked_sub(bytes).filter(|left| *left > 0);
                bytes_left.map(|bytes_left| PendingPreface { bytes_left, deadline })
            });
    }
}

impl AsyncRead for PrefaceTimeout {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.client.as_mut().poll_read(cx, buffer);
        match (&read, &mut self.pending_preface) {
            (_, None) => {}
            (Poll::Ready(_), Some(_)) => self.count_preface_bytes(buffer.filled().len() - before),
            (Poll::Pending, Some(pending_preface)) => {
                if pending_preface.deadline.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        read
    }
}

impl AsyncWrite for PrefaceTimeout {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.client.as_mut().poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.client.as_mut().poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.client.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.client.as_mut().poll_shutdown(cx)
    }
}
