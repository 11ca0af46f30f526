//! Connections between nodes: mutual TLS, then frames with a length. The first frame of each side introduces it.

use std::io;

use bytes::Bytes;
use futures_util::{SinkExt, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::codec::{Framed, LengthDelimitedCodec, LengthDelimitedCodecError};

use super::TcpTransportContext;
use crate::message::{decode_hello, hello_frame};
use crate::node_info::NodeInfo;
use crate::transport::link_counters::LinkCounters;
use crate::transport::{MAX_FRAME_BYTES, RejectReason};

/// Size of the length before each frame, in bytes.
const FRAME_LENGTH_PREFIX_BYTES: usize = 4;

/// Number of buffered bytes from which frames are written without waiting for further ones.
const MAX_BYTES_PER_WRITE: usize = 64 * 1024;

/// The reason for the end of a connection.
#[derive(Debug, thiserror::Error)]
pub(super) enum PeerStreamError {
    #[error("{0}")]
    Io(io::Error),
    #[error("{0}: {1}")]
    Rejected(RejectReason, String),
    #[error("no data has arrived for too long")]
    IdleTimeout,
    #[error("the connection was closed")]
    Closed,
}

impl From<RejectReason> for PeerStreamError {
    fn from(reason: RejectReason) -> Self {
        Self::Rejected(reason, reason.name().to_owned())
    }
}

/// Converts an I/O error. Errors of TLS and of the frame codec arrive as I/O errors, and become rejections.
impl From<io::Error> for PeerStreamError {
    fn from(error: io::Error) -> Self {
        let reason = match error.get_ref() {
            Some(inner) if inner.is::<LengthDelimitedCodecError>() => Some(RejectReason::TooLong),
            _ => RejectReason::from_io_error(&error),
        };
        match reason {
            Some(reason) => Self::Rejected(reason, error.to_string()),
            None => Self::Io(error),
        }
    }
}

/// An authenticated connection to another node.
pub(super) struct PeerStream {
    frames: Framed<TlsStream<TcpStream>, LengthDelimitedCodec>,
    /// The node at the other end.
    pub(super) peer: NodeInfo,
}

impl PeerStream {
    /// Performs the handshake on a connection that this node has opened.
    pub(super) async fn connect(
        tcp: TcpStream,
        context: &TcpTransportContext,
    ) -> Result<Self, PeerStreamError> {
        let tls = context.tls.load_full();
        let handshake = async {
            let connector = TlsConnector::from(tls.client.clone());
            let stream = connector.connect(tls.name.clone(), tcp).await?;
            let mut frames = into_framed_stream(stream.into());
            frames.send(hello_frame(&context.local)).await?;
            let peer = receive_hello(&mut frames).await?;
            Self::new(frames, peer, context)
        };
        within_handshake_timeout(handshake, context).await
    }

    /// Performs the handshake on a connection that this node has accepted.
    pub(super) async fn accept(
        tcp: TcpStream,
        context: &TcpTransportContext,
    ) -> Result<Self, PeerStreamError> {
        let tls = context.tls.load_full();
        let handshake = async {
            let stream = TlsAcceptor::from(tls.server.clone()).accept(tcp).await?;
            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
            tls.check_client_name(chain).map_err(|error| {
                PeerStreamError::Rejected(RejectReason::from_tls_error(&error), error.to_string())
            })?;
            let mut frames = into_framed_stream(stream.into());
            let peer = receive_hello(&mut frames).await?;
            frames.send(hello_frame(&context.local)).await?;
            Self::new(frames, peer, context)
        };
        within_handshake_timeout(handshake, context).await
    }

    fn new(
        frames: Framed<TlsStream<TcpStream>, LengthDelimitedCodec>,
        peer: NodeInfo,
        context: &TcpTransportContext,
    ) -> Result<Self, PeerStreamError> {
        if peer.incarnation == context.local.incarnation {
            return Err(RejectReason::Reflected.into());
        }
        Ok(Self { frames, peer })
    }

    /// Waits for the first frame, which must be a keepalive.
    pub(super) async fn receive_first_keepalive(
        &mut self,
        context: &TcpTransportContext,
    ) -> Result<(), PeerStreamError> {
        let counters = context.counters.get_or_create(self.peer.incarnation);
        let first = timeout(context.timing.handshake_timeout, self.next_frame(&counters)).await;
        let first = first.map_err(|_| RejectReason::TooSlow)??;
        if first.is_empty() { Ok(()) } else { Err(RejectReason::Malformed.into()) }
    }

    /// Waits for the next frame. An empty frame is a keepalive. Cancel safe.
    pub(super) async fn next_frame(
        &mut self,
        counters: &LinkCounters,
    ) -> Result<Bytes, PeerStreamError> {
        let frame = self.frames.next().await.ok_or(PeerStreamError::Closed)??.freeze();
        counters.received_bytes.add(frame.len() + FRAME_LENGTH_PREFIX_BYTES);
        counters.received_frames.add(usize::from(!frame.is_empty()));
        Ok(frame)
    }

    /// Writes frames. Fails if this takes longer than the idle timeout.
    pub(super) async fn send_frames(
        &mut self,
        frames: impl IntoIterator<Item = Bytes>,
        context: &TcpTransportContext,
        counters: &LinkCounters,
    ) -> Result<(), PeerStreamError> {
        let send = async {
            for frame in frames {
                counters.sent_bytes.add(frame.len() + FRAME_LENGTH_PREFIX_BYTES);
                counters.sent_frames.add(usize::from(!frame.is_empty()));
                self.frames.feed(frame).await?;
            }
            SinkExt::<Bytes>::flush(&mut self.frames).await
        };
        let sent = timeout(context.timing.idle_timeout, send).await;
        Ok(sent.map_err(|_| PeerStreamError::IdleTimeout)??)
    }
}

fn into_framed_stream<S: AsyncRead + AsyncWrite>(stream: S) -> Framed<S, LengthDelimitedCodec> {
    let codec = LengthDelimitedCodec::builder()
        .length_field_length(FRAME_LENGTH_PREFIX_BYTES)
        .max_frame_length(MAX_FRAME_BYTES)
        .new_codec();
    let mut frames = Framed::new(stream, codec);
    frames.set_backpressure_boundary(MAX_BYTES_PER_WRITE);
    frames
}

async fn receive_hello(
    frames: &mut Framed<TlsStream<TcpStream>, LengthDelimitedCodec>,
) -> Result<NodeInfo, PeerStreamError> {
    let hello = frames.next().await.ok_or(PeerStreamError::Closed)??.freeze();
    decode_hello(hello)
        .map_err(|error| PeerStreamError::Rejected(RejectReason::Malformed, error.to_string()))
}

async fn within_handshake_timeout(
    handshake: impl Future<Output = Result<PeerStream, PeerStreamError>>,
    context: &TcpTransportContext,
) -> Result<PeerStream, PeerStreamError> {
    timeout(context.timing.handshake_timeout, handshake)
        .await
        .unwrap_or_else(|_| Err(RejectReason::TooSlow.into()))
}
