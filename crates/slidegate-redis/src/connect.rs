//! A connection to Redis that a background task opens, and reopens whenever it is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::address::SentinelTarget;
use crate::failure;
use crate::sentinel::{Sentinels, is_master};
use crate::tls::TlsRoots;

/// Timeout of a connection attempt. The timeout is short, because a failover may make another server the master during
/// the attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(750);

/// Backoff after the first failed connection attempt. The backoff doubles after each further failure, up to
/// [`MAX_RECONNECT_BACKOFF`].
const INITIAL_RECONNECT_BACKOFF: Duration = Duration::from_millis(20);

/// Maximum backoff between two connection attempts.
const MAX_RECONNECT_BACKOFF: Duration = Duration::from_millis(500);

/// A shared connection that reconnects when it is lost.
#[derive(Debug)]
pub struct ReconnectingConnection {
    current: watch::Receiver<ConnectionState>,
    /// Whether a connection has ever been established.
    was_connected: Arc<AtomicBool>,
    /// The highest sequence number of all connections that were reported as lost. If the current connection has this
    /// number or a lower one, the background task replaces the connection.
    lost: watch::Sender<u64>,
    task: JoinHandle<()>,
}

/// The current connection, or the reason why there is none.
type ConnectionState = Result<ConnectionHandle, String>;

/// A connection and its sequence number.
#[derive(Clone, Debug)]
pub struct ConnectionHandle {
    pub connection: MultiplexedConnection,
    pub number: u64,
}

impl ReconnectingConnection {
    /// Creates a connection that a background task opens. `on_reconnect` is called when the first connection succeeds,
    /// when a connection to another server succeeds, and when a connection succeeds after a failed attempt.
    pub fn open(source: ConnectionSource, on_reconnect: impl Fn() + Send + 'static) -> Self {
        let (publish, current) =
            watch::channel(Err("the first connection attempt has not finished".to_owned()));
        let (lost, lost_receiver) = watch::channel(0);
        let was_connected = Arc::<AtomicBool>::default();
        let on_reconnect = {
            let was_connected = was_connected.clone();
            move || {
                was_connected.store(true, Ordering::Release);
                on_reconnect();
            }
        };
        let task = tokio::spawn(maintain_connection(source, publish, lost_receiver, on_reconnect));
        Self { current, was_connected, lost, task }
    }

    /// Returns `true` if a connection has ever been established.
    pub fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Acquire)
    }

    /// Waits until there is a connection and returns it. Returns `None` if the background task has ended.
    pub async fn connection(&self) -> Option<ConnectionHandle> {
        if let Ok(handle) = &*self.current.borrow() {
            return Some(handle.clone());
        }
        let mut current = self.current.clone();
        let state = current.wait_for(Result::is_ok).await.ok()?;
        state.as_ref().ok().cloned()
    }

    /// Returns the reason why there is no connection, or `None` if there is one.
    pub fn last_error(&self) -> Option<String> {
        self.current.borrow().as_ref().err().cloned()
    }

    /// Requests that the background task replaces the current connection.
    pub fn replace_current(&self) {
        let number = self.current.borrow().as_ref().map_or(0, |handle| handle.number);
        self.request_replacement_if_not_newer_than(number);
    }

    /// Requests that the background task replaces this connection, unless it has been replaced already.
    pub fn replace(&self, handle: &ConnectionHandle) {
        self.request_replacement_if_not_newer_than(handle.number);
    }

    /// Requests that the background task replaces the current connection if its sequence number is `lost` or lower.
    fn request_replacement_if_not_newer_than(&self, lost: u64) {
        self.lost.send_if_modified(|number| {
            let is_newer = lost > *number;
            *number = (*number).max(lost);
            is_newer
        });
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
    Server(Box<Client>),
    /// The current master, as reported by Sentinels.
    Sentinel(Box<Sentinels>),
}

impl ConnectionSource {
    /// Creates the source of connections to one server.
    pub fn to_server(info: &ConnectionInfo, tls_roots: &TlsRoots) -> RedisResult<Self> {
        Ok(Self::Server(Box::new(tls_roots.client(info)?)))
    }

    /// Creates the source of connections to the master of a Sentinel service.
    pub fn to_master(target: &SentinelTarget, tls_roots: &TlsRoots) -> RedisResult<Self> {
        Ok(Self::Sentinel(Box::new(Sentinels::new(target, tls_roots)?)))
    }

    /// Returns a description of the server for log messages.
    pub fn server_name_for_log(&self) -> String {
        match self {
            Self::Server(client) => client.get_connection_info().addr().to_string(),
            Self::Sentinel(sentinels) => format!("Sentinel service {}", sentinels.service()),
        }
    }

    /// Connects to the server, or to the current master. Returns the connection and the address of the server.
    async fn connect(&mut self) -> RedisResult<(MultiplexedConnection, String)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT_TIMEOUT))
            .set_response_timeout(None);
        let sentinels = match self {
            Self::Server(client) => {
                let connection =
                    client.get_multiplexed_async_connection_with_config(&config).await?;
                return Ok((connection, client.get_connection_info().addr().to_string()));
            }
            Self::Sentinel(sentinels) => sentinels,
        };
        sentinels.refresh_master().await;
        loop {
            let client = sentinels.client()?;
            // A server that hangs would delay the connection to its successor until the attempt times out.
            tokio::select! {
                connection = connect_to_master(&client, &config) => {
                    return Ok((connection?, client.get_connection_info().addr().to_string()));
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
async fn connect_to_master(
    client: &Client,
    config: &AsyncConnectionConfig,
) -> RedisResult<MultiplexedConnection> {
    let mut connection = client.get_multiplexed_async_connection_with_config(config).await?;
    match timeout(CONNECT_TIMEOUT, is_master(&mut connection)).await {
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
    mut source: ConnectionSource,
    publish: watch::Sender<ConnectionState>,
    mut lost: watch::Receiver<u64>,
    on_reconnect: impl Fn(),
) {
    let mut backoff = INITIAL_RECONNECT_BACKOFF;
    let (mut last_address, mut number) = (String::new(), 0);
    let mut has_warned = false;
    loop {
        number += 1;
        match source.connect().await {
            Ok((connection, address)) => {
                let is_new = backoff > INITIAL_RECONNECT_BACKOFF || address != last_address;
                (backoff, last_address) = (INITIAL_RECONNECT_BACKOFF, address);
                if std::mem::take(&mut has_warned) {
                    tracing::info!(address = last_address, "connected to Redis for the first time");
                }
                publish.send_modify(|state| *state = Ok(ConnectionHandle { connection, number }));
                if is_new {
                    on_reconnect();
                }
                tokio::select! {
                    lost = lost.wait_for(|lost| *lost >= number) => {
                        if lost.is_err() {
                            return;
                        }
                    }
                    () = source.wait_for_master_change() => tracing::info!("the Sentinels reported another Redis master; reconnecting"),
                }
                publish
                    .send_modify(|state| *state = Err("connection lost; reconnecting".to_owned()));
            }
            Err(error) => {
                // The circuit breaker reports an outage only after a request.
                let is_rejection = failure::rejection_class(&error).is_some();
                if last_address.is_empty()
                    && !std::mem::replace(&mut has_warned, true)
                    && !is_rejection
                {
                    let address = source.server_name_for_log();
                    tracing::warn!(%error, address, "Redis has not been reachable since the start; check its address; retrying");
                }
                log_and_publish_connect_error(&error, &publish);
                sleep(backoff).await;
                backoff = (2 * backoff).min(MAX_RECONNECT_BACKOFF);
            }
        }
    }
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
