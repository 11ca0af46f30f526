//! Opens connections to one server: TCP, TLS or a Unix socket, and the login.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::select_ok;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::connection::{Connection, Socket, SocketTraffic};
use crate::tls::ClientTls;

/// Interval of keepalive probes on a connection without traffic. It is short, because a probe costs little and keeps a
/// network address translation from forgetting the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which data may stay unacknowledged before the kernel closes the connection.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(3);

/// The address of a server, and the settings of connections to it.
#[derive(Clone)]
pub struct Connector {
    info: ConnectionInfo,
    /// `None` for an address without TLS.
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// Creates a connector. Fails if the settings name certificate files although the server does not use TLS.
    pub fn new(info: &ConnectionInfo, tls: &ClientTls) -> RedisResult<Self> {
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if tls.uses_certificate_file() && !is_tls {
            let text = "certificates need an address with TLS, which begins with rediss";
            return Err((ErrorKind::InvalidClientConfig, text).into());
        }
        let tls = is_tls.then(|| tls.client_config()).transpose()?;
        Ok(Self { info: info.clone(), tls })
    }

    /// Returns the address of the server.
    pub fn address(&self) -> &ConnectionAddr {
        self.info.addr()
    }

    /// Connects to the server and logs in. Fails if this takes longer than `max_duration`.
    pub async fn connect(&self, max_duration: Duration) -> RedisResult<Connection> {
        let timed_out = |_| Err(io::Error::from(io::ErrorKind::TimedOut).into());
        timeout(max_duration, self.connect_and_log_in()).await.unwrap_or_else(timed_out)
    }

    async fn connect_and_log_in(&self) -> RedisResult<Connection> {
        let (traffic, login) = (Arc::<SocketTraffic>::default(), self.info.redis_settings());
        match (self.info.addr(), &self.tls) {
            (ConnectionAddr::Tcp(host, port), _) => {
                let socket = open_tcp_socket(host, *port, &traffic).await?;
                Connection::log_in(login, socket, traffic).await
            }
            (ConnectionAddr::TcpTls { host, port, .. }, Some(config)) => {
                let socket = open_tcp_socket(host, *port, &traffic).await?;
                let name = ServerName::try_from(host.as_str())?.to_owned();
                let stream = TlsConnector::from(config.clone()).connect(name, socket).await?;
                Connection::log_in(login, stream, traffic).await
            }
            #[cfg(unix)]
            (ConnectionAddr::Unix(path), _) => {
                let stream = UnixStream::connect(path).await?;
                Connection::log_in(login, Socket::new(stream, &traffic), traffic).await
            }
            _ => {
                Err((ErrorKind::InvalidClientConfig, "this kind of address is not supported")
                    .into())
            }
        }
    }
}

/// Opens a TCP socket to the first address of a host that accepts the connection.
async fn open_tcp_socket(
    host: &str,
    port: u16,
    traffic: &Arc<SocketTraffic>,
) -> RedisResult<Socket<TcpStream>> {
    let connects: Vec<_> = lookup_host((host, port))
        .await?
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if connects.is_empty() {
        return Err(RedisError::from((ErrorKind::Io, "the host has no address")));
    }
    let (stream, _) = select_ok(connects).await?;
    // Disables Nagle's algorithm, with which a call would wait until Redis has acknowledged the call before it.
    stream.set_nodelay(true)?;
    let options = SockRef::from(&stream);
    options.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL).with_interval(KEEPALIVE_INTERVAL),
    )?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    options.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
    Ok(Socket::new(stream, traffic))
}
