//! A client's connection as hyper sees it. A client that does not take its answers is let go, and
//! what hyper refuses by itself is told why.

use std::future::Future;
use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::{Sleep, sleep};
use tokio_io_timeout::TimeoutStream;

use super::refusal;

/// How long to go on reading what a refused client sends. A connection that is closed with bytes
/// unread is reset, and the client's system may then throw away the answer.
const LINGER: Duration = Duration::from_secs(1);

/// A connection that bounds its writes and explains refusals.
pub struct ClientStream {
    tcp: Pin<Box<TimeoutStream<TcpStream>>>,
    refused: Option<Refused>,
}

struct Refused {
    answer: Vec<u8>,
    sent: usize,
    linger: Pin<Box<Sleep>>,
}

impl ClientStream {
    /// `patience` bounds how long a write may make no progress.
    pub fn new(tcp: TcpStream, patience: Duration) -> Self {
        let mut tcp = TimeoutStream::new(tcp);
        tcp.set_write_timeout(Some(patience));
        Self { tcp: Box::pin(tcp), refused: None }
    }

    fn poll_send_refusal(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(Refused { answer, sent, .. }) = &mut self.refused else {
            return Poll::Ready(Ok(()));
        };
        while *sent < answer.len() {
            match ready!(self.tcp.as_mut().poll_write(cx, &answer[*sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                written => *sent += written,
            }
        }
        Poll::Ready(Ok(()))
    }

    fn poll_linger(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(Refused { linger, .. }) = &mut self.refused else { return Poll::Ready(()) };
        loop {
            if linger.as_mut().poll(cx).is_ready() {
                return Poll::Ready(());
            }
            let mut unread = [MaybeUninit::uninit(); 4096];
            let mut unread = ReadBuf::uninit(&mut unread);
            let read = ready!(self.tcp.as_mut().poll_read(cx, &mut unread));
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
        self.tcp.as_mut().poll_read(cx, buffer)
    }
}

/// Not vectored: hyper then hands over head and body in one piece, in which a refusal shows.
impl AsyncWrite for ClientStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if let Some(answer) = refusal::explained(bytes) {
            self.refused = Some(Refused { answer, sent: 0, linger: Box::pin(sleep(LINGER)) });
            return Poll::Ready(Ok(bytes.len()));
        }
        self.tcp.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_refusal(cx))?;
        self.tcp.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_send_refusal(cx))?;
        ready!(self.tcp.as_mut().poll_shutdown(cx))?;
        self.poll_linger(cx).map(Ok)
    }
}
