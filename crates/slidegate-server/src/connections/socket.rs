//! The sockets of listeners and of their clients: TCP, or UNIX sockets.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::net::UnixStream as StdUnixStream;

use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio_util::either::Either;

/// The address that is used for every client of a UNIX socket, since such a client is on this machine.
const UNIX_CLIENT_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// A listening socket.
#[derive(Debug)]
pub enum ListenSocket {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// The byte stream of an accepted connection, without TLS.
pub type ClientSocket = Either<TcpStream, UnixStream>;

/// An accepted connection that belongs to no runtime, so that another runtime can take it: a socket wakes the runtime
/// in which it was created.
pub type DetachedSocket = Either<std::net::TcpStream, StdUnixStream>;

impl ListenSocket {
    /// Accepts a connection. Returns its stream, and the address of the client.
    pub async fn accept(&self) -> io::Result<(ClientSocket, SocketAddr)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept().await?;
                Ok((Either::Left(stream), peer))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                Ok((Either::Right(stream), UNIX_CLIENT_ADDRESS))
            }
        }
    }

    /// Returns whether clients have network addresses, which clients of a UNIX socket do not have.
    pub fn has_client_addresses(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Returns the address as text: `127.0.0.1:8081`, or `unix:/run/slidegate.sock`.
    pub fn local_address(&self) -> io::Result<String> {
        match self {
            Self::Tcp(listener) => Ok(listener.local_addr()?.to_string()),
            Self::Unix(listener) => {
                let address = listener.local_addr()?;
                let path = address.as_pathname().unwrap_or_else(|| "".as_ref());
                Ok(format!("unix:{}", path.display()))
            }
        }
    }
}

/// Takes a connection out of the current runtime.
pub fn detach_from_runtime(socket: ClientSocket) -> io::Result<DetachedSocket> {
    Ok(match socket {
        Either::Left(stream) => Either::Left(stream.into_std()?),
        Either::Right(stream) => Either::Right(stream.into_std()?),
    })
}

/// Adds a connection to the current runtime.
pub fn attach_to_runtime(socket: DetachedSocket) -> io::Result<ClientSocket> {
    Ok(match socket {
        Either::Left(stream) => Either::Left(TcpStream::from_std(stream)?),
        Either::Right(stream) => Either::Right(UnixStream::from_std(stream)?),
    })
}
