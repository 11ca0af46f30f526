//! Handshakes and frames on a connection.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Shared;
use crate::seal::{
    self, CONFIRMATION, FrameOpener, GREETING_HEAD, Nonce, Refusal, Session, greeting_length,
};
use crate::transport::counters::Counters;

/// Room for what arrives at once.
const READ: usize = 16 * 1024;

/// Why a connection is over.
#[derive(Debug, thiserror::Error)]
pub(super) enum Broken {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("refused: {0}")]
    Refused(#[from] Refusal),
    #[error("no sign of life")]
    Silent,
}

/// Shakes hands, as the side that dials.
pub(super) async fn dial<S>(stream: &mut S, shared: &Shared) -> Result<Session, Broken>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let nonce = nonce()?;
    let dialling = seal::dial(&shared.key, &shared.me, &nonce);
    let shaken = async {
        stream.write_all(dialling.greeting()).await?;
        let answer = read_greeting(stream).await?;
        let (session, confirmation) = dialling.answered(&answer)?;
        stream.write_all(&confirmation).await?;
        Ok(session)
    };
    timeout(shared.timing.handshake, shaken).await.unwrap_or(Err(Refusal::TooSlow.into()))
}

/// Shakes hands, as the side that answers.
pub(super) async fn answer<S>(stream: &mut S, shared: &Shared) -> Result<Session, Broken>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let shaken = async {
        let greeting = read_greeting(stream).await?;
        let answering = seal::answer(&shared.key, &shared.me, &nonce()?, &greeting)?;
        stream.write_all(answering.answer()).await?;
        let mut confirmation = [0; CONFIRMATION];
        read_exact(stream, &mut confirmation).await?;
        Ok(answering.confirmed(&confirmation)?)
    };
    timeout(shared.timing.handshake, shaken).await.unwrap_or(Err(Refusal::TooSlow.into()))
}

/// Reads a greeting, and no further.
async fn read_greeting(stream: &mut (impl AsyncRead + Unpin)) -> Result<Vec<u8>, Broken> {
    let mut head = [0; GREETING_HEAD];
    // What speaks another language may say less than a greeting, and wait: its first byte tells.
    read_exact(stream, &mut head[..1]).await?;
    greeting_length(&head)?;
    read_exact(stream, &mut head[1..]).await?;
    let mut greeting = vec![0; greeting_length(&head)?];
    let (begun, rest) = greeting.split_at_mut(GREETING_HEAD);
    begun.copy_from_slice(&head);
    read_exact(stream, rest).await?;
    Ok(greeting)
}

/// A stream that ends within is a truncated one.
async fn read_exact(stream: &mut (impl AsyncRead + Unpin), bytes: &mut [u8]) -> Result<(), Broken> {
    match stream.read_exact(bytes).await {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Refusal::Truncated.into())
        }
        Err(error) => Err(error.into()),
    }
}

fn nonce() -> io::Result<Nonce> {
    let random = ring::rand::generate(&ring::rand::SystemRandom::new());
    Ok(random.map_err(|_| io::Error::other("the system has no random numbers"))?.expose())
}

/// Reads frames.
#[derive(Debug)]
pub(super) struct Frames<R> {
    read: R,
    opener: FrameOpener,
    arrived: BytesMut,
}

impl<R: AsyncRead + Unpin> Frames<R> {
    pub(super) fn new(read: R, opener: FrameOpener) -> Self {
        Self { read, opener, arrived: BytesMut::new() }
    }

    /// The next frame that is more than a sign of life, of those that have arrived.
    pub(super) fn arrived(&mut self, counters: &Counters) -> Result<Option<Bytes>, Refusal> {
        while let Some(frame) = self.opener.open(&mut self.arrived)? {
            if !frame.is_empty() {
                counters.received_frames.add(1);
                return Ok(Some(frame));
            }
        }
        Ok(None)
    }

    /// Waits for more to arrive. Nothing is lost if the future is dropped.
    pub(super) async fn wait(&mut self, counters: &Counters) -> Result<(), Broken> {
        self.arrived.reserve(READ);
        let read = self.read.read_buf(&mut self.arrived).await?;
        counters.received_bytes.add(read);
        if read > 0 {
            return Ok(());
        }
        self.opener.end(&self.arrived)?;
        Err(io::Error::from(io::ErrorKind::UnexpectedEof).into())
    }
}

/// Writes all of it within the time that a stream may be silent.
pub(super) async fn write(
    write: &mut (impl AsyncWrite + Unpin),
    bytes: &[u8],
    shared: &Shared,
    counters: &Counters,
) -> Result<(), Broken> {
    timeout(shared.timing.silence, write.write_all(bytes)).await.map_err(|_| Broken::Silent)??;
    counters.sent_bytes.add(bytes.len());
    Ok(())
}
