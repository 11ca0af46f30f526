//! The byte stream of a client connection. The stream fails if the TLS handshake or a write takes too long.

use std::io;
use std::pin::Pin;
use std::time::Duration;

use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;

use super::socket::ClientSocket;
use crate::tls::ListenerTls;

/// The byte stream of a client connection, with or without TLS.
pub type ClientStream = Pin<Box<TimeoutStream<Either<ClientSocket, Box<TlsStream<ClientSocket>>>>>>;

/// Maximum time for a TLS handshake. A responsive client completes it within a few round trips.
const MAX_TLS_HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Opens the byte stream of a client connection, and performs the TLS handshake if `tls` is set. Writes fail after
/// `client_timeout` without progress.
pub async fn open_client_stream(
    stream: ClientSocket,
    tls: Option<&ListenerTls>,
    client_timeout: Duration,
) -> io::Result<ClientStream> {
    let stream = match tls {
        None => Either::Left(stream),
        Some(tls) => {
            let encrypted =
                timeout(MAX_TLS_HANDSHAKE_TIME.min(client_timeout), tls.accept(stream)).await??;
            Either::Right(Box::new(encrypted))
        }
    };
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(client_timeout));
    Ok(Box::pin(stream))
}
