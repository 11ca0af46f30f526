//! The current connection to a Redis server, which is replaced when it is lost. `connect.rs` replaces it.
//!
//! The sockets are wrapped by this crate, because the client of the `redis` crate does not report three facts: that a
//! connection has been closed while no call is in flight (it reports this only with RESP3), whether the command of a
//! failed call was written, and whether anything was received while a call waited.

use std::io;
use std::mem::MaybeUninit;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::poll_immediate;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::SockRef;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisResult, Value};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::failure::{self, Failure};

/// Backoff between two connection attempts while a call waits for a connection. It is shorter than usual timeouts, so
/// that a call succeeds if Redis has been started again.
const BACKOFF_FOR_WAITING_CALL: Duration = Duration::from_millis(3);

/// Time without a write after which the next write first checks whether the server has closed the connection. While
/// calls follow each other closely, a close is noticed without this check.
const IDLE_TIME_BEFORE_CLOSE_CHECK: Duration = Duration::from_micros(100);

/// A shared connection that is replaced when it is lost.
#[derive(Debug)]
pub struct ReconnectingConnection {
    current: watch::Receiver<CurrentConnection>,
    reports: Arc<ConnectionReports>,
    task: JoinHandle<()>,
}

/// The current connection, or the reason why there is none.
pub type CurrentConnection = Result<ConnectionHandle, String>;

/// A connection and its number. Each connection has a higher number than the one that it replaces.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    pub connection: Arc<Connection>,
    pub number: u64,
}

impl ConnectionHandle {
    /// Returns `true` if the connection is open and its number is higher than `lost`.
    fn is_usable(&self, lost: u64) -> bool {
        self.number > lost && !self.connection.is_closed()
    }
}

/// ConnectionReports of calls to the background task that replaces the connection.
#[derive(Debug, Default)]
pub struct ConnectionReports {
    /// Whether a connection has ever been established.
    pub was_connected: AtomicBool,
    /// The highest number of a lost connection. The current connection is closed and replaced if its number is not
    /// higher.
    lost: AtomicU64,
    /// The highest number of a connection that the server has closed during a call. Such a connection is also reported
    /// as lost.
    pub closed: AtomicU64,
    /// The highest number of a doubtful connection, on which Redis did not respond in time. If the number of the
    /// current connection is not higher, it is replaced, but stays usable until another one is open.
    doubtful: AtomicU64,
    /// Notified after a report of a lost or doubtful connection.
    reported: Notify,
    /// Notified while a call waits for a connection, so that the next attempt to connect begins sooner.
    wanted: Notify,
}

impl ConnectionReports {
    /// Returns the highest number of a connection that is to be replaced.
    pub fn highest_connection_to_replace(&self) -> u64 {
        self.lost.load(Ordering::Acquire).max(self.doubtful.load(Ordering::Acquire))
    }

    /// Waits until the connection with this number is reported as lost or doubtful. Returns `true` if it is lost.
    pub async fn wait_for_report(&self, number: u64) -> bool {
        loop {
            if self.lost.load(Ordering::Acquire) >= number {
                return true;
            }
            if self.doubtful.load(Ordering::Acquire) >= number {
                return false;
            }
            self.reported.notified().await;
        }
    }

    /// Waits for the backoff after a failed attempt, or for a shorter time while a call waits for a connection.
    pub async fn wait_for_backoff(&self, backoff: Duration) {
        let wanted = async {
            sleep(BACKOFF_FOR_WAITING_CALL).await;
            self.wanted.notified().await;
        };
        let _ = timeout(backoff, wanted).await;
    }
}

impl ReconnectingConnection {
    /// Creates a connection that `task` opens, and that it replaces as the reports request.
    pub fn new(
        current: watch::Receiver<CurrentConnection>,
        reports: Arc<ConnectionReports>,
        task: JoinHandle<()>,
    ) -> Self {
        Self { current, reports, task }
    }

    /// Returns `true` if a connection has ever been established.
    pub fn was_connected(&self) -> bool {
        self.reports.was_connected.load(Ordering::Acquire)
    }

    /// Waits until there is a connection with a higher number than `lost`, and returns it. Fails if the background task
    /// has ended.
    pub async fn connection(&self, lost: u64) -> Result<ConnectionHandle, Failure> {
        let lost = lost.max(self.reports.highest_connection_to_replace());
        if let Ok(handle) = &*self.current.borrow()
            && handle.is_usable(lost)
        {
            return Ok(handle.clone());
        }
        let mut current = self.current.clone();
        let is_usable =
            |state: &CurrentConnection| state.as_ref().is_ok_and(|handle| handle.is_usable(lost));
        loop {
            self.reports.wanted.notify_one();
            match timeout(BACKOFF_FOR_WAITING_CALL, current.wait_for(is_usable)).await {
                Ok(Ok(state)) => {
                    if let Ok(handle) = &*state {
                        return Ok(handle.clone());
                    }
                }
                Ok(Err(_)) => {
                    let reason = "the task that connects to Redis has ended";
                    return Err(Failure::Server(failure::no_connection_error(reason)));
                }
                Err(_) => {}
            }
        }
    }

    /// Returns the reason why there is no connection, or `None` if there is one.
    pub fn last_error(&self) -> Option<String> {
        match &*self.current.borrow() {
            Ok(handle) if handle.number <= self.reports.doubtful.load(Ordering::Acquire) => {
                Some("Redis does not respond on the connection; connecting again".to_owned())
            }
            Ok(_) => None,
            Err(reason) => Some(reason.clone()),
        }
    }

    /// Requests that the background task closes and replaces this connection, unless it has been replaced already.
    pub fn replace(&self, handle: &ConnectionHandle) {
        self.reports.lost.fetch_max(handle.number, Ordering::AcqRel);
        self.reports.reported.notify_one();
    }

    /// Requests that the background task replaces this connection, which the server has closed.
    pub fn replace_closed(&self, handle: &ConnectionHandle) {
        self.reports.closed.fetch_max(handle.number, Ordering::AcqRel);
        self.replace(handle);
    }

    /// Requests that the background task opens another connection and then replaces the current one.
    pub fn replace_current(&self) {
        if let Ok(handle) = &*self.current.borrow() {
            self.report_doubtful_connection(handle.number);
        }
    }

    /// Requests that the background task opens another connection and then replaces the one with this number, because a
    /// call on it has timed out. Does nothing if the connection has received data since it had made `reads_before`
    /// reads: then the server is slow, and a new connection would not be faster.
    pub fn replace_if_silent(&self, number: u64, reads_before: u64) {
        if let Ok(handle) = &*self.current.borrow()
            && handle.number == number
            && handle.connection.reads() == reads_before
        {
            self.report_doubtful_connection(number);
        }
    }

    fn report_doubtful_connection(&self, number: u64) {
        self.reports.doubtful.fetch_max(number, Ordering::AcqRel);
        self.reports.reported.notify_one();
    }
}

impl Drop for ReconnectingConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// An open connection, shared by calls. It is closed when it is dropped.
#[derive(Debug)]
pub struct Connection {
    /// Sends commands.
    pub commands: MultiplexedConnection,
    traffic: Arc<SocketTraffic>,
    /// A channel without values. It is closed when the connection has been closed.
    open: watch::Receiver<()>,
    _driver: ConnectionTask,
}

impl Connection {
    /// Logs in on an open stream, and starts the task that reads and writes it.
    pub async fn log_in(
        login: &RedisConnectionInfo,
        stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
        traffic: Arc<SocketTraffic>,
    ) -> RedisResult<Self> {
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let (commands, driver) =
            MultiplexedConnection::new_with_config(login, stream, config).await?;
        let (open_sender, open) = watch::channel(());
        let driver = tokio::spawn(async move {
            driver.await;
            drop(open_sender);
        });
        Ok(Self { commands, traffic, open, _driver: ConnectionTask(driver) })
    }

    /// Sends a command. If `is_asking` is set, `ASKING` precedes it, because the slot is being migrated to the server.
    ///
    /// Fails as soon as the connection has been closed. The `redis` crate alone could wait forever: a command that
    /// enters its queue at the moment at which the connection is closed is neither sent nor dropped.
    pub async fn send(&self, command: &Cmd, is_asking: bool) -> RedisResult<Value> {
        let mut commands = self.commands.clone();
        let mut response = pin!(async {
            if !is_asking {
                return command.query_async(&mut commands).await;
            }
            let mut pipeline = Pipeline::new();
            pipeline.cmd("ASKING").add_command(command.clone()).ignore_errors();
            let mut replies: Vec<RedisResult<Value>> = pipeline.query_async(&mut commands).await?;
            replies.pop().unwrap_or(Ok(Value::Nil))
        });
        tokio::select! {
            biased;
            response = &mut response => response,
            // If the response arrived just before the connection was closed, it is returned instead of an error.
            () = self.closed() => poll_immediate(response)
                .await
                .unwrap_or_else(|| Err(io::Error::from(io::ErrorKind::BrokenPipe).into())),
        }
    }

    /// Returns `true` if the connection has been closed, by the server or after an error.
    pub fn is_closed(&self) -> bool {
        self.open.has_changed().is_err()
    }

    /// Waits until the connection has been closed.
    pub async fn closed(&self) {
        let _ = self.open.clone().changed().await;
    }

    /// Returns the number of writes so far. A command that is sent after this number was read has not been written if
    /// the number is still the same when its call fails.
    pub fn writes(&self) -> u64 {
        self.traffic.writes.load(Ordering::Relaxed)
    }

    /// Returns the number of reads so far. If the number does not change during a call, nothing was received.
    pub fn reads(&self) -> u64 {
        self.traffic.reads.load(Ordering::Relaxed)
    }
}

/// The task that reads and writes a connection. It is aborted when the connection is dropped.
#[derive(Debug)]
struct ConnectionTask(JoinHandle<()>);

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Numbers of reads and writes of a socket that transferred data.
#[derive(Debug, Default)]
pub struct SocketTraffic {
    writes: AtomicU64,
    reads: AtomicU64,
}

/// A socket that counts its reads and writes. A write to a connection that the server has closed fails without writing,
/// even before the runtime has reported the close.
pub struct Socket<S> {
    stream: S,
    traffic: Arc<SocketTraffic>,
    last_write: Instant,
}

impl<S: Peek> Socket<S> {
    pub fn new(stream: S, traffic: &Arc<SocketTraffic>) -> Self {
        Self { stream, traffic: traffic.clone(), last_write: Instant::now() }
    }

    /// Returns an error if the server has closed the connection.
    fn check_is_open(&self) -> io::Result<()> {
        match self.stream.peek_byte() {
            Ok(0) => Err(io::ErrorKind::BrokenPipe.into()),
            // Data can be read, so a close is not known yet. With TLS, a close follows other data, which the driver
            // task reads first.
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            },
        }
    }
}

/// A stream whose next byte can be read without removing it.
pub trait Peek {
    /// Returns 1 if a byte can be read, and 0 at the end of the stream. Does not wait: fails with `WouldBlock` if there
    /// is no data yet.
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
        if now - self.last_write > IDLE_TIME_BEFORE_CLOSE_CHECK {
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
