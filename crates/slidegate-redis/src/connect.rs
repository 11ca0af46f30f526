//! A connection to Redis that a background task opens, and replaces whenever it is lost.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult};
use slidegate::internal::restart_on_panic;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::address::SentinelTarget;
use crate::connection::{Connection, Connector};
use crate::failure;
use crate::sentinel::{Sentinels, is_master};
use crate::tls::TlsRoots;

/// Timeout of a connection attempt. The timeout is short, because a failover may make another server the master during
/// the attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(750);

/// Backoff after the first failed connection attempt. The backoff doubles after each further failure, up to
/// [`MAX_RECONNECT_BACKOFF`]. A connection that is lost sooner than this after it was opened counts as a failed attempt.
const INITIAL_RECONNECT_BACKOFF: Duration = Duration::from_millis(20);

/// Maximum backoff between two connection attempts.
const MAX_RECONNECT_BACKOFF: Duration = Duration::from_millis(500);

/// Backoff between two connection attempts while a call waits for a connection. It is shorter than usual timeouts, so
/// that a call succeeds if Redis has been started again.
const BACKOFF_FOR_WAITING_CALL: Duration = Duration::from_millis(3);

/// A shared connection that is replaced when it is lost.
#[derive(Debug)]
pub struct ReconnectingConnection {
    current: watch::Receiver<ConnectionState>,
    reports: Arc<Reports>,
    task: JoinHandle<()>,
}

/// The current connection, or the reason why there is none.
type ConnectionState = Result<ConnectionHandle, String>;

/// A connection and its number. Each connection has a higher number than the one that it replaces.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    pub connection: Connection,
    pub number: u64,
}

impl ConnectionHandle {
    /// Returns `true` if the connection is open and its number is higher than `lost`.
    fn is_usable(&self, lost: u64) -> bool {
        self.number > lost && !self.connection.is_closed()
    }
}

/// Reports of calls to the background task.
#[derive(Debug, Default)]
struct Reports {
    /// Whether a connection has ever been established.
    was_connected: AtomicBool,
    /// The highest number of a lost connection. The current connection is closed and replaced if its number is not higher.
    lost: AtomicU64,
    /// The highest number of a connection that the server has closed during a call. It is also lost.
    closed: AtomicU64,
    /// The highest number of a doubtful connection. The current connection is replaced if its number is not higher, but kept
    /// until another one is open.
    doubtful: AtomicU64,
    /// Notified after a report of a lost or doubtful connection.
    reported: Notify,
    /// Notified while a call waits for a connection.
    wanted: Notify,
}

impl Reports {
    /// Returns the highest number of a connection that is to be replaced.
    fn highest_replaced(&self) -> u64 {
        self.lost.load(Ordering::Acquire).max(self.doubtful.load(Ordering::Acquire))
    }

    /// Waits until the connection with this number is reported as lost or doubtful. Returns `true` if it is lost.
    async fn wait_for_report(&self, number: u64) -> bool {
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
    async fn wait_for_backoff(&self, backoff: Duration) {
        let wanted = async {
            sleep(BACKOFF_FOR_WAITING_CALL).await;
            self.wanted.notified().await;
        };
        let _ = timeout(backoff, wanted).await;
    }
}

impl ReconnectingConnection {
    /// Creates a connection that a background task opens. `on_reconnect` is called when the first connection succeeds,
    /// when a connection to another server succeeds, and when a connection succeeds after a failed attempt, or after the
    /// server has closed the previous connection.
    /// `call_timeout` is the timeout of calls.
    pub fn open(
        mut source: ConnectionSource,
        call_timeout: Duration,
        mut on_reconnect: impl FnMut() + Send + 'static,
    ) -> Self {
        let (publish, current) =
            watch::channel(Err("the first connection attempt has not finished".to_owned()));
        let reports = Arc::<Reports>::default();
        let task_reports = reports.clone();
        let maintain = async move || {
            let (source, on_reconnect) = (&mut source, &mut on_reconnect);
            maintain_connection(source, call_timeout, &publish, &task_reports, on_reconnect).await;
        };
        let task = tokio::spawn(restart_on_panic(maintain, || {
            tracing::error!("the task that connects to Redis panicked; it runs again");
        }));
        Self { current, reports, task }
    }

    /// Returns `true` if a connection has ever been established.
    pub fn was_connected(&self) -> bool {
        self.reports.was_connected.load(Ordering::Acquire)
    }

    /// Waits until there is a connection with a higher number than `lost`, and returns it. Returns `None` if the background
    /// task has ended.
    pub async fn connection(&self, lost: u64) -> Option<ConnectionHandle> {
        let lost = lost.max(self.reports.highest_replaced());
        let is_usable =
            |state: &ConnectionState| state.as_ref().is_ok_and(|handle| handle.is_usable(lost));
        if let Ok(handle) = &*self.current.borrow()
            && handle.is_usable(lost)
        {
            return Some(handle.clone());
        }
        let mut current = self.current.clone();
        loop {
            self.reports.wanted.notify_one();
            let state = timeout(BACKOFF_FOR_WAITING_CALL, current.wait_for(is_usable)).await;
            if let Ok(state) = state {
                return state.ok()?.as_ref().ok().cloned();
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
            self.report_doubtful(handle.number);
        }
    }

    /// Requests that the background task opens another connection and then replaces the one with this number, because a
    /// call on it has timed out. Does nothing if the connection has received data since it had made `reads_before` reads:
    /// then the server is slow, and a new connection would not be faster.
    pub fn replace_if_silent(&self, number: u64, reads_before: u64) {
        if let Ok(handle) = &*self.current.borrow()
            && handle.number == number
            && handle.connection.reads() == reads_before
        {
            self.report_doubtful(number);
        }
    }

    fn report_doubtful(&self, number: u64) {
        self.reports.doubtful.fetch_max(number, Ordering::AcqRel);
        self.reports.reported.notify_one();
    }
}

impl Drop for ReconnectingConnection {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The source of connections: one server, or the current master as reported by Sentinels.
pub enum ConnectionSource {
    /// One server.
    Server(Box<Connector>),
    /// The current master, as reported by Sentinels.
    Sentinel(Box<Sentinels>),
}

impl ConnectionSource {
    /// Creates the source of connections to one server.
    pub fn to_server(info: &ConnectionInfo, tls_roots: &TlsRoots) -> RedisResult<Self> {
        Ok(Self::Server(Box::new(Connector::new(info, tls_roots)?)))
    }

    /// Creates the source of connections to the master of a Sentinel service.
    pub fn to_master(target: &SentinelTarget, tls_roots: &TlsRoots) -> RedisResult<Self> {
        Ok(Self::Sentinel(Box::new(Sentinels::new(target, tls_roots)?)))
    }

    /// Returns a description of the server for log messages.
    pub fn server_name_for_log(&self) -> String {
        match self {
            Self::Server(connector) => connector.address().to_string(),
            Self::Sentinel(sentinels) => format!("Sentinel service {}", sentinels.service()),
        }
    }

    /// Connects to the server, or to the current master. Returns the connection and the address of the server.
    async fn connect(&mut self) -> RedisResult<(Connection, String)> {
        let sentinels = match self {
            Self::Server(connector) => {
                let connection = connector.connect(CONNECT_TIMEOUT).await?;
                return Ok((connection, connector.address().to_string()));
            }
            Self::Sentinel(sentinels) => sentinels,
        };
        sentinels.refresh_master().await;
        loop {
            let connector = sentinels.connector()?;
            // A server that hangs would delay the connection to its successor until the attempt times out.
            tokio::select! {
                connection = connect_to_master(&connector) => {
                    return Ok((connection?, connector.address().to_string()));
                }
                () = sentinels.wait_for_master_change() => {}
            }
        }
    }

    /// Waits until the Sentinels report another master. Waits forever if the source is one server.
    async fn wait_for_master_change(&mut self) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Sentinel(sentinels) => sentinels.wait_for_master_change().await,
        }
    }
}

/// Connects to a server that the Sentinels name as the master. Fails if the server is not a master yet.
async fn connect_to_master(connector: &Connector) -> RedisResult<Connection> {
    let mut connection = connector.connect(CONNECT_TIMEOUT).await?;
    match timeout(CONNECT_TIMEOUT, is_master(&mut connection.commands)).await {
        Ok(Ok(true)) => Ok(connection),
        Ok(Err(error)) => Err(error),
        _ => {
            let text = "the server that the Sentinels reported is not a master; a failover may be in progress";
            Err((ErrorKind::Client, text).into())
        }
    }
}

/// Connects, and reconnects whenever the connection is lost, until the [`ReconnectingConnection`] is dropped.
async fn maintain_connection(
    source: &mut ConnectionSource,
    call_timeout: Duration,
    publish: &watch::Sender<ConnectionState>,
    reports: &Reports,
    on_reconnect: &mut impl FnMut(),
) {
    let mut backoff = INITIAL_RECONNECT_BACKOFF;
    // After a panic, the numbers continue above all earlier ones.
    let mut number = publish.borrow().as_ref().map_or(0, |handle| handle.number);
    number = number.max(reports.highest_replaced());
    let mut last_address = String::new();
    let mut has_warned = false;
    // Whether an attempt has failed, or the server has closed a connection, since the last connection was opened.
    let mut was_interrupted = false;
    // The doubtful connection, while another one is opened.
    let mut doubtful: Option<Connection> = None;
    loop {
        number += 1;
        let attempt = {
            let mut connecting = pin!(source.connect());
            match &doubtful {
                None => connecting.await,
                Some(connection) => match timeout(call_timeout, &mut connecting).await {
                    Ok(attempt) => attempt,
                    // The login takes longer than calls may wait. The doubtful connection may work again; its new number
                    // ends the doubt.
                    Err(_) => {
                        publish_connection(publish, connection, number);
                        number += 1;
                        connecting.await
                    }
                },
            }
        };
        let connection = match (attempt, doubtful.take()) {
            (Ok((connection, address)), _) => {
                let is_new = was_interrupted || address != last_address;
                (was_interrupted, last_address) = (false, address);
                if std::mem::take(&mut has_warned) {
                    tracing::info!(address = last_address, "connected to Redis for the first time");
                }
                publish_connection(publish, &connection, number);
                if is_new {
                    reports.was_connected.store(true, Ordering::Release);
                    on_reconnect();
                }
                connection
            }
            // The server is slow or has too many connections, so the connection is kept.
            (Err(error), Some(connection)) if !connection.is_closed() => {
                tracing::debug!(%error, "cannot replace the connection to Redis; keeping it");
                publish_connection(publish, &connection, number);
                connection
            }
            (Err(error), _) => {
                // The circuit breaker reports an outage only after a request.
                let is_rejection = failure::rejection_class(&error).is_some();
                if last_address.is_empty()
                    && !std::mem::replace(&mut has_warned, true)
                    && !is_rejection
                {
                    let address = source.server_name_for_log();
                    tracing::warn!(%error, address, "Redis has not been reachable since the start; check its address; retrying");
                }
                was_interrupted = true;
                log_and_publish_connect_error(&error, publish);
                reports.wait_for_backoff(backoff).await;
                backoff = (2 * backoff).min(MAX_RECONNECT_BACKOFF);
                continue;
            }
        };
        let connected_at = Instant::now();
        let is_lost = tokio::select! {
            () = connection.closed() => {
                tracing::debug!(address = last_address, "the connection to Redis was closed; reconnecting");
                true
            }
            is_lost = reports.wait_for_report(number) => is_lost,
            () = source.wait_for_master_change() => {
                tracing::info!("the Sentinels reported another Redis master; reconnecting");
                true
            }
        };
        if !is_lost {
            doubtful = Some(connection);
            continue;
        }
        publish.send_modify(|state| *state = Err("connection lost; reconnecting".to_owned()));
        // Not if a call rejected the connection, for example because its server is a replica: another one is no better.
        let closed = reports.closed.load(Ordering::Acquire);
        was_interrupted = connection.is_closed() || closed >= number;
        drop(connection);
        // A server that closes each connection at once must not be called in an endless loop.
        if connected_at.elapsed() < INITIAL_RECONNECT_BACKOFF {
            reports.wait_for_backoff(backoff).await;
            backoff = (2 * backoff).min(MAX_RECONNECT_BACKOFF);
        } else {
            backoff = INITIAL_RECONNECT_BACKOFF;
        }
    }
}

/// Publishes the current connection.
fn publish_connection(
    publish: &watch::Sender<ConnectionState>,
    connection: &Connection,
    number: u64,
) {
    let handle = ConnectionHandle { connection: connection.clone(), number };
    publish.send_modify(|state| *state = Ok(handle));
}

/// Logs the error of a failed connection attempt and publishes it as the current state. The error is logged as a
/// warning only if the server has rejected the connection, for example because of a wrong password. Without this
/// warning, a wrong password would become visible only with the first request. An unreachable server is reported by the
/// circuit breaker.
fn log_and_publish_connect_error(error: &RedisError, publish: &watch::Sender<ConnectionState>) {
    let last_error = failure::message_of(error);
    let is_known = publish.borrow().as_ref().is_err_and(|known| *known == last_error);
    if let Some(class) = failure::rejection_class(error).filter(|_| !is_known) {
        tracing::warn!(
            class = class.label(),
            error = last_error,
            remedy = class.remedy(),
            "Redis rejected the connection; retrying"
        );
    } else {
        tracing::debug!(%error, "no connection to Redis");
    }
    publish.send_modify(|state| *state = Err(last_error));
}
