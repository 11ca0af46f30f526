//! A client that has to say soon that it speaks HTTP/2.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

use crate::connections::ClientIo;

/// Bytes of what every client begins with.
const PREFACE: usize = 24;

/// A connection that ends if the client does not say in time that it speaks HTTP/2. From then on it is asked
/// now and then whether it is there.
pub struct Greeting {
    client: ClientIo,
    awaited: Option<Awaited>,
}

struct Awaited {
    bytes: usize,
    patience: Pin<Box<Sleep>>,
}

impl Greeting {
    /// Waits no longer than this.
    pub fn new(client: ClientIo, patience: Duration) -> Self {
        let patience = Box::pin(sleep(patience));
        Self { client, awaited: Some(Awaited { bytes: PREFACE, patience }) }
    }

    fn came(&mut self, bytes: usize) {
        self.awaited = self.awaited.take().and_then(|Awaited { bytes: awaited, patience }| {
            let left = awaited.checked_sub(bytes).filter(|left| *left > 0);
            left.map(|bytes| Awaited { bytes, patience })
        });
    }
}

impl AsyncRead for Greeting {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = self.client.as_mut().poll_read(cx, buffer);
        match (&read, &mut self.awaited) {
            (_, None) => {}
            (Poll::Ready(_), Some(_)) => self.came(buffer.filled().len() - before),
            (Poll::Pending, Some(awaited)) => {
                if awaited.patience.as_mut().poll(cx).is_ready() {
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
            }
        }
        read
    }
}

impl AsyncWrite for Greeting {
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
