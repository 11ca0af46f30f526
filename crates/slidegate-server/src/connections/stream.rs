//! The bytes of a client: a client that does not take its answers is let go.

use std::pin::Pin;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio_io_timeout::TimeoutStream;

/// The bytes of a client, in both directions.
pub type ClientIo = Pin<Box<TimeoutStream<TcpStream>>>;

/// `patience` bounds how long a write may make no progress.
pub fn patient(stream: TcpStream, patience: Duration) -> ClientIo {
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(patience));
    Box::pin(stream)
}
