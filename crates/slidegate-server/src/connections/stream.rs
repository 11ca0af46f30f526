//! The bytes of a client: one that does not shake hands, or does not take its answers, is let go.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use crate::tls::ListenerTls;

/// The bytes of a client, in both directions.
pub type ClientIo = Pin<Box<TimeoutStream<Either<TcpStream, Box<TlsStream<TcpStream>>>>>>;

/// How long shaking hands may take at most: a client that is there does it within a few round trips.
const MAX_HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Opens a connection, by TLS if there is any. `client_timeout` bounds how long a write may make no progress.
pub async fn open(
    stream: TcpStream,
    tls: Option<&ListenerTls>,
    client_timeout: Duration,
) -> io::Result<ClientIo> {
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => {
            let encrypted =
                timeout(MAX_HANDSHAKE_TIME.min(client_timeout), tls.accept(stream)).await??;
            Either::Right(Box::new(encrypted))
        }
    };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(client_timeout));
    Ok(Box::pin(stream))
}
