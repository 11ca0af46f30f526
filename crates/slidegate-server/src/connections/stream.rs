//! The bytes of a client: one that does not shake hands, or does not take its answers, is let go.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::tls::FaceTls;

/// The bytes of a client, in both directions.
pub type ClientIo = Pin<Box<TimeoutStream<Either<TcpStream, Box<TlsStream<TcpStream>>>>>>;

/// How long shaking hands may take at most: a client that is there does it within a few round trips.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Opens a connection, by TLS if there is any. `patience` bounds how long a write may make no progress.
pub async fn open(
    stream: TcpStream,
    tls: Option<&FaceTls>,
    patience: Duration,
) -> io::Result<ClientIo> {
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => {
            let shaken = timeout(HANDSHAKE.min(patience), tls.accept(stream)).await??;
            Either::Right(Box::new(shaken))
        }
    };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(patience));
    Ok(Box::pin(stream))
}
