//! A connection to Redis that a background task opens, and reopens whenever it is lost.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, RedisError,
    RedisResult, TlsCertificates,
};
use rustls::crypto::ring;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::address::{AddressError, SentinelTarget};
use crate::sentinel::{Sentinels, is_master};

/// Timeout of a connection attempt. The timeout is short, because a failover may make another server the master during
/// the attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(750);

/// Backoff after the first failed connection attempt. The backoff doubles after each further failure, up to
/// [`MAX_RECONNECT_BACKOFF`].
const INITIAL_RECONNECT_BACKOFF: Duration = Duration::from_millis(20);

/// Maximum backoff between two connection attempts.
const MAX_RECONNECT_BACKOFF: Duration = Duration::from_millis(500);

/// Interval at which the Sentinels are polled for the current master.
const SENTINEL_MASTER_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Settings of a [`RedisStore`](crate::RedisStore).
#[derive(Clone, Debug)]
pub struct Settings {
    /// Prefix of every Redis key.
    pub prefix: String,
    /// Maximum duration of a request to the store.
    pub timeout: Duration,
    /// Additional time to live of a Redis key, beyond the time until which its counters are needed. If clients use
    /// their own clocks ([`RedisStore::with_clock`](crate::RedisStore::with_clock)), the margin must be longer than the
    /// difference between these clocks.
    pub expiry_margin: Duration,
    /// Maximum time for which a denial is cached. During this time, repeated requests are denied without a call to
    /// Redis. A cached denial expires earlier if the denied cost fits the limit earlier. Zero disables the denial
    /// cache, except for sampled rules.
    pub deny_cache_ttl: Duration,
    /// PEM file with the CA certificates that verify servers at `rediss://` addresses. `None` uses Mozilla's list of
    /// root certificates.
    pub ca_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            expiry_margin: Duration::from_secs(1),
            deny_cache_ttl: Duration::from_secs(1),
            ca_file: None,
        }
    }
}

/// The reason why no store can be created for an address.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is invalid.
    #[error("`{address}` is not a Redis address: {source}")]
    Address {
        /// The address as given, without its password.
        address: String,
        /// The cause.
        #[source]
        source: AddressError,
    },
    /// No client can be created for the address.
    #[error("cannot create a client for {address}: {message}")]
    Client {
        /// The address without its password.
        address: String,
        /// The cause.
        message: String,
    },
    /// The file of CA certificates cannot be read, or cannot be used for this address.
    #[error("cannot trust the certificates in `{}`: {message}", path.display())]
    Ca {
        /// The path of the file.
        path: PathBuf,
        /// The cause.
        message: String,
    },
}

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
        let (publish, current) = watch::channel(Err("no connection has been made yet".to_owned()));
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

/// The CA certificates that verify servers. `None` selects Mozilla's list of root certificates.
#[derive(Clone, Debug, Default)]
pub struct TlsRoots(Option<TlsCertificates>);

impl TlsRoots {
    /// Reads the certificates of a PEM file. `None` selects Mozilla's list of root certificates.
    pub fn from_file(path: Option<&Path>) -> Result<Self, ConnectError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let pem = std::fs::read(path).map_err(|error| ConnectError::Ca {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
        Ok(Self(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) })))
    }

    /// Creates a client of one server, without connecting.
    pub fn client(&self, info: &ConnectionInfo) -> RedisResult<Client> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            install_crypto_provider();
        }
        match &self.0 {
            Some(certificates) => Client::build_with_tls(info.clone(), certificates.clone()),
            None => Client::open(info.clone()),
        }
    }

    /// Creates the source of connections to one server.
    pub fn server_source(&self, info: &ConnectionInfo) -> RedisResult<ConnectionSource> {
        Ok(ConnectionSource::Server(Box::new(self.client(info)?)))
    }

    /// Creates the source of connections to the master of a Sentinel service.
    pub fn sentinel_source(&self, target: &SentinelTarget) -> RedisResult<ConnectionSource> {
        Ok(ConnectionSource::Sentinel(Box::new(Sentinels::new(target, self)?)))
    }
}

/// Returns a copy of `template` with another address, `host:port`. Returns `None` if the address does not have this
/// form.
pub fn with_host_and_port(template: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = port.parse().ok()?;
    let address = match template.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Some(template.clone().set_addr(address))
}

/// Installs a cryptography provider for rustls. If several providers are compiled in and none is installed, rustls
/// panics.
fn install_crypto_provider() {
    // An error means that one is installed already.
    let _ = ring::default_provider().install_default();
}

impl ConnectionSource {
    /// Returns a description of the server for log messages.
    fn server_name_for_log(&self) -> String {
        match self {
            Self::Server(client) => client.get_connection_info().addr().to_string(),
            Self::Sentinel(_) => "the master that the Sentinels name".to_owned(),
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
        let client = sentinels.client()?;
        let mut connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        match timeout(CONNECT_TIMEOUT, is_master(&mut connection)).await {
            Ok(Ok(true)) => Ok((connection, client.get_connection_info().addr().to_string())),
            Ok(Err(error)) => Err(error),
            _ => {
                Err((ErrorKind::Client, "the server that the Sentinels name is not the master yet")
                    .into())
            }
        }
    }

    /// Waits until the Sentinels report another master. Waits forever if the source is one server.
    async fn wait_for_master_change(&mut self) {
        match self {
            Self::Server(_) => std::future::pending().await,
            Self::Sentinel(sentinels) => loop {
                sleep(SENTINEL_MASTER_POLL_INTERVAL).await;
                if sentinels.refresh_master().await {
                    return;
                }
            },
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
                    () = source.wait_for_master_change() => tracing::info!("the Sentinels name another Redis master"),
                }
                publish.send_modify(|state| *state = Err("the connection was lost".to_owned()));
            }
            Err(error) => {
                // The circuit breaker reports an outage only after a request.
                if last_address.is_empty() && !std::mem::replace(&mut has_warned, true) {
                    let address = source.server_name_for_log();
                    tracing::warn!(%error, address, "Redis has not been reachable so far; retrying");
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
    let last_error = error.to_string();
    let is_known = publish.borrow().as_ref().is_err_and(|known| *known == last_error);
    let is_rejection =
        matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Server(_));
    if is_rejection && !is_known {
        tracing::warn!(%error, "Redis rejected the connection");
    } else {
        tracing::debug!(%error, "no connection to Redis");
    }
    publish.send_modify(|state| *state = Err(last_error));
}

/// Replaces user, password and parameters of an address with `…`.
pub fn redact_password(address: &str) -> String {
    let redacted = match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}…{}", &address[..scheme + 3], &address[at..])
        }
        _ => address.to_owned(),
    };
    match redacted.split_once('?') {
        Some((base, _)) => format!("{base}?…"),
        None => redacted,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redacted_address_has_no_password() {
        for (address, redacted) in [
            ("redis://u:p@h:1/2", "redis://…@h:1/2"),
            ("redis://:p@q?@h", "redis://…@h"),
            ("unix:///run/redis?pass=p&db=1", "unix:///run/redis?…"),
            ("redis://h", "redis://h"),
            ("@://", "@://"),
        ] {
            assert_eq!(redact_password(address), redacted);
        }
    }
}
