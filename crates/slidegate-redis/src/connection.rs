//! A connection to one Redis server.
//!
//! The sockets are opened here, and not by the client of the `redis` crate, because that client keeps three facts to
//! itself: that a connection has been closed while no call is in flight (it reports this only with RESP3), whether the
//! command of a failed call was written, and whether anything was received while a call waited.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError, RedisResult,
};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::{TcpStream, lookup_host};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_rustls::TlsConnector;

use crate::tls::TlsRoots;

/// Interval of keepalive probes on a connection without traffic. It is short, because a probe costs little and keeps a
/// network address translation from forgetting the connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(1);

/// Time for which data may stay unacknowledged before the kernel closes the connection.
#[cfg(any(target_os = "android", target_os = "linux"))]
const UNACKNOWLEDGED_TIMEOUT: Duration = Duration::from_secs(3);

/// Time without a write after which a socket is examined before the next write. While calls follow each other closely,
/// a close is noticed as soon as it arrives.
const IDLE_TIME: Duration = Duration::from_micros(100);

/// The address of a server, and the settings of connections to it.
#[derive(Clone)]
pub struct Connector {
    info: ConnectionInfo,
    /// `None` for an address without TLS.
    tls: Option<Arc<ClientConfig>>,
}

impl Connector {
    /// Creates a connector. Fails if there is a file of CA certificates, and the address is not one of a TLS server.
    pub fn new(info: &ConnectionInfo, tls_roots: &TlsRoots) -> RedisResult<Self> {
        let is_tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        if tls_roots.is_from_file() && !is_tls {
            let text = "CA certificates need an address with TLS, which begins with rediss";
            return Err((ErrorKind::InvalidClientConfig, text).into());
        }
        let tls = is_tls.then(|| tls_roots.client_config()).transpose()?;
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
        let traffic = Arc::<Traffic>::default();
        match (self.info.addr(), &self.tls) {
            (ConnectionAddr::Tcp(host, port), _) => {
                let socket = open_tcp_socket(host, *port, &traffic).await?;
                self.log_in(socket, traffic).await
            }
            (ConnectionAddr::TcpTls { host, port, .. }, Some(config)) => {
                let socket = open_tcp_socket(host, *port, &traffic).await?;
                let name = ServerName::try_from(host.as_str())?.to_owned();
                let stream = TlsConnector::from(config.clone()).connect(name, socket).await?;
                self.log_in(stream, traffic).await
            }
            #[cfg(unix)]
            (ConnectionAddr::Unix(path), _) => {
                let stream = UnixStream::connect(path).await?;
                self.log_in(Socket::new(stream, &traffic), traffic).await
            }
            _ => {
                Err((ErrorKind::InvalidClientConfig, "this kind of address is not supported")
                    .into())
            }
        }
    }

    /// Logs in on an open stream, and starts the task that reads and writes it.
    async fn log_in(
        &self,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        traffic: Arc<Traffic>,
    ) -> RedisResult<Connection> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let login = self.info.redis_settings();
        let (commands, driver) =
            MultiplexedConnection::new_with_config(login, stream, config).await?;
        let (open_sender, open) = watch::channel(());
        let driver = tokio::spawn(async move {
            driver.await;
            drop(open_sender);
        });
        Ok(Connection { commands, traffic, open, _driver: Arc::new(Driver(driver)) })
    }
}

/// An open connection, shared by calls. It is closed when its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Connection {
    /// Sends commands.
    pub commands: MultiplexedConnection,
    traffic: Arc<Traffic>,
    /// The channel is closed when the connection has been closed.
    open: watch::Receiver<()>,
    _driver: Arc<Driver>,
}

impl Connection {
    /// Returns `true` if the connection has been closed, by the server or after an error.
    pub fn is_closed(&self) -> bool {
        self.open.has_changed().is_err()
    }

    /// Waits until the connection has been closed.
    pub async fn closed(&self) {
        let _ = self.open.clone().changed().await;
    }

    /// Returns the number of writes so far. A command that is sent after this number was read has not been written if the
    /// number is still the same when its call fails.
    pub fn writes(&self) -> u64 {
        self.traffic.writes.load(Ordering::Relaxed)
    }

    /// Returns the number of reads so far.
    pub fn reads(&self) -> u64 {
        self.traffic.reads.load(Ordering::Relaxed)
    }
}

/// The task that reads and writes a connection. It is aborted when the connection is dropped.
#[derive(Debug)]
struct Driver(JoinHandle<()>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Numbers of reads and writes of a socket that transferred data.
#[derive(Debug, Default)]
struct Traffic {
    writes: AtomicU64,
    reads: AtomicU64,
}

/// Opens a TCP socket to the first address of a host that accepts the connection.
async fn open_tcp_socket(
    host: &str,
    port: u16,
    traffic: &Arc<Traffic>,
) -> RedisResult<Socket<TcpStream>> {
    let connects: Vec<_> = lookup_host((host, port))
        .await?
        .map(|address| Box::pin(TcpStream::connect(address)))
        .collect();
    if connects.is_empty() {
        return Err(RedisError::from((ErrorKind::Io, "the host has no address")));
    }
    let (stream, _) = select_ok(connects).await?;
    // Without it, a call that follows another one waits until Redis has acknowledged the first.
    stream.set_nodelay(true)?;
    let options = SockRef::from(&stream);
    options.set_tcp_keepalive(
        &TcpKeepalive::new().with_time(KEEPALIVE_INTERVAL).with_interval(KEEPALIVE_INTERVAL),
    )?;
    #[cfg(any(target_os = "android", target_os = "linux"))]
    options.set_tcp_user_timeout(Some(UNACKNOWLEDGED_TIMEOUT))?;
    Ok(Socket::new(stream, traffic))
}

/// A socket that counts its traffic. It fails a write without writing if the server has closed the connection, also
/// before the runtime reports this.
struct Socket<S> {
    stream: S,
    traffic: Arc<Traffic>,
    last_write: Instant,
}

impl<S: Peek> Socket<S> {
    fn new(stream: S, traffic: &Arc<Traffic>) -> Self {
        Self { stream, traffic: traffic.clone(), last_write: Instant::now() }
    }

    /// Returns an error if the server has closed the connection.
    fn check_is_open(&self) -> io::Result<()> {
        match self.stream.peek_byte() {
            Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
            // With TLS, the end of the connection follows other data, which the driver reads first.
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            },
        }
    }
}

/// A stream whose next byte can be read without removing it.
trait Peek {
    /// Returns the number of bytes: 0 at the end of the stream. Does not wait.
    fn peek_byte(&self) -> io::Result<usize>;
}

impl Peek for TcpStream {
    fn peek_byte(&self) -> io::Result<usize> {
        SockRef::from(self).peek(&mut [MaybeUninit::uninit()])
    }
}

#[cfg(unix)]
impl Peek for UnixStream {
    fn peek_byte(&self) -> io::Result<usize> {
        SockRef::from(self).peek(&mut [MaybeUninit::uninit()])
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Socket<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled_before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        if buffer.filled().len() > filled_before {
            self.traffic.reads.fetch_add(1, Ordering::Relaxed);
        }
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Peek + Unpin> AsyncWrite for Socket<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let now = Instant::now();
        if now - self.last_write > IDLE_TIME {
            self.check_is_open()?;
        }
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        self.last_write = now;
        self.traffic.writes.fetch_add(1, Ordering::Relaxed);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
