//! A client that sends bytes as they are, also those that curl refuses to send.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::runtime::Builder;

/// Time after which the client ends its side of the connection: a proxy that waits for more of a request then gives up.
const PATIENCE: Duration = Duration::from_secs(3);

/// Maximum further wait for a response.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Sends these bytes from 127.0.0.`from`. Returns the status of the response, or none if the proxy closes the
/// connection without one, or waits for more.
pub fn send(at: SocketAddr, from: u8, bytes: &[u8]) -> Option<u16> {
    let mut stream = connect(at, from).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A proxy may respond, and close the connection, before it has read everything.
    let _ = stream.write_all(bytes);
    let mut has_ended = false;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && !has_ended => {
                has_ended = true;
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(TIMEOUT)).unwrap();
            }
            Err(_) => break,
        }
        if let Some(status) = status(&received) {
            return Some(status);
        }
    }
    status(&received)
}

/// std connects from any address only.
fn connect(at: SocketAddr, from: u8) -> io::Result<TcpStream> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0)))?;
        socket.connect(at).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The status of the first complete head that is not 1xx.
fn status(received: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(received);
    let mut rest = &*text;
    while let Some((head, behind)) = rest.split_once("\r\n\r\n") {
        let status = head.split(' ').nth(1)?.get(..3)?.parse().ok()?;
        if status >= 200 {
            return Some(status);
        }
        rest = behind;
    }
    None
}
