//! Handshakes and authenticated frames on a connection.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::TcpTransportContext;
use crate::seal::{
    self, CONFIRMATION_BYTES, FrameOpener, HELLO_HEADER_BYTES, Nonce, RejectReason, Session,
    hello_length,
};
use crate::transport::link_counters::LinkCounters;

/// Capacity that is reserved for each read, in bytes.
const RESERVED_BYTES_PER_READ: usize = 16 * 1024;

/// The reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerStreamError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("rejected: {0}")]
    Rejected(#[from] RejectReason),
    #[error("idle timeout")]
    IdleTimeout,
}

/// Performs the handshake on a connection that this node has opened.
pub(super) async fn client_handshake<S>(
    stream: &mut S,
    context: &TcpTransportContext,
) -> Result<Session, PeerStreamError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let random_nonce = random_nonce()?;
    let client = seal::start_handshake(&context.key, &context.local, &random_nonce);
    let handshake = async {
        stream.write_all(client.hello()).await?;
        let response = read_hello(stream).await?;
        let (session, confirmation) = client.on_response(&response)?;
        stream.write_all(&confirmation).await?;
        Ok(session)
    };
    timeout(context.timing.handshake_timeout, handshake)
        .await
        .unwrap_or(Err(RejectReason::TooSlow.into()))
}

/// Performs the handshake on a connection that this node has accepted.
pub(super) async fn server_handshake<S>(
    stream: &mut S,
    context: &TcpTransportContext,
) -> Result<Session, PeerStreamError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let handshake = async {
        let hello = read_hello(stream).await?;
        let server =
            seal::accept_handshake(&context.key, &context.local, &random_nonce()?, &hello)?;
        stream.write_all(server.response()).await?;
        let mut confirmation = [0; CONFIRMATION_BYTES];
        read_exact(stream, &mut confirmation).await?;
        Ok(server.on_confirmation(&confirmation)?)
    };
    timeout(context.timing.handshake_timeout, handshake)
        .await
        .unwrap_or(Err(RejectReason::TooSlow.into()))
}

/// Reads one hello of a handshake, and no byte after it.
async fn read_hello(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, PeerStreamError> {
    let mut header = [0; HELLO_HEADER_BYTES];
    // A client of another protocol may send fewer bytes than a hello and wait. The first byte identifies it.
    read_exact(stream, &mut header[..1]).await?;
    hello_length(&header)?;
    read_exact(stream, &mut header[1..]).await?;
    let mut hello = vec![0; hello_length(&header)?];
    let (start, rest) = hello.split_at_mut(HELLO_HEADER_BYTES);
    start.copy_from_slice(&header);
    read_exact(stream, rest).await?;
    Ok(hello)
}

/// Reads `bytes.len()` bytes. Reports an early end of the stream as [`RejectReason::Truncated`].
async fn read_exact(
    stream: &mut (impl AsyncRead + Unpin),
    bytes: &mut [u8],
) -> Result<(), PeerStreamError> {
    match stream.read_exact(bytes).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(RejectReason::Truncated.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn random_nonce() -> io::Result<Nonce> {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    Ok(random.map_err(|_| io::Error::other("system random generator failed"))?.expose())
}

/// A reader that verifies the received frames of a connection.
#[derive(Debug)]
pub(super) struct FrameReader<R> {
    read: R,
    opener: FrameOpener,
    buffer: BytesMut,
}

impl<R: AsyncRead + Unpin> FrameReader<R> {
    pub(super) fn new(read: R, opener: FrameOpener) -> Self {
        Self { read, opener, buffer: BytesMut::new() }
    }

    /// Returns the next complete frame in the buffer that is not a keepalive. Returns `None` if more data is needed.
    pub(super) fn next_frame(
        &mut self,
        counters: &LinkCounters,
    ) -> Result<Option<Bytes>, RejectReason> {
        while let Some(frame) = self.opener.open(&mut self.buffer)? {
            if !frame.is_empty() {
                counters.received_frames.add(1);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Waits for more data. Cancel safe: no data is lost if the future is dropped.
    pub(super) async fn fill_buffer(
        &mut self,
        counters: &LinkCounters,
    ) -> Result<(), PeerStreamError> {
        self.buffer.reserve(RESERVED_BYTES_PER_READ);
        let read = self.read.read_buf(&mut self.buffer).await?;
        counters.received_bytes.add(read);
        if read > 0 {
            return Ok(());
        }
        self.opener.check_end(&self.buffer)?;
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

/// Writes all bytes within the idle timeout.
pub(super) async fn write_with_timeout(
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    context: &TcpTransportContext,
    counters: &LinkCounters,
) -> Result<(), PeerStreamError> {
    timeout(context.timing.idle_timeout, write.write_all(bytes))
        .await
        .map_err(|_| PeerStreamError::IdleTimeout)??;
    counters.sent_bytes.add(bytes.len());
    Ok(())
}
