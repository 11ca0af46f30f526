//! A TCP client that sends any bytes, including requests that curl refuses to send.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tokio::net::TcpSocket;
use tokio::runtime::Builder;

/// Maximum wait for a response before the client shuts down the sending direction of the connection. The proxy may be
/// waiting for more bytes of the request, and stops waiting at the shutdown.
const WRITE_SHUTDOWN_DELAY: Duration = Duration::from_secs(3);

/// Maximum wait for a response after the client has shut down the sending direction of the connection.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(10);

/// Sends these bytes to a proxy from the address 127.0.0.`from`. Returns the status of the response. Returns `None` if
/// the proxy closes the connection without a response, or does not respond in time.
pub fn send_bytes(address: SocketAddr, from: u8, bytes: &[u8]) -> Option<u16> {
    let mut stream = connect_from_local_address(address, from).unwrap();
    stream.set_read_timeout(Some(WRITE_SHUTDOWN_DELAY)).unwrap();
    // A proxy may respond, and close the connection, before it has read everything.
    let _ = stream.write_all(bytes);
    let mut is_shut_down = false;
    let mut received = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => received.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock && !is_shut_down => {
                is_shut_down = true;
                let _ = stream.shutdown(Shutdown::Write);
                stream.set_read_timeout(Some(RESPONSE_TIMEOUT)).unwrap();
            }
            Err(_) => break,
        }
        if let Some(status) = parse_final_status(&received) {
            return Some(status);
        }
    }
    parse_final_status(&received)
}

/// Connects from the local address 127.0.0.`from`. The standard library cannot choose the local address.
fn connect_from_local_address(address: SocketAddr, from: u8) -> io::Result<TcpStream> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let stream = runtime.block_on(async {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, from], 0)))?;
        socket.connect(address).await?.into_std()
    })?;
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// Returns the status of the first complete response head whose status is not 1xx, or `None` if no such head has
/// arrived.
fn parse_final_status(received: &[u8]) -> Option<u16> {
    let text = String::from_utf8_lossy(received);
    let mut rest = &*text;
    while let Some((head, after_head)) = rest.split_once("\r\n\r\n") {
        let status = head.split(' ').nth(1)?.get(..3)?.parse().ok()?;
        if status >= 200 {
            return Some(status);
        }
        rest = after_head;
    }
    None
}
