//! Keeps a connection to Redis open: to one server, or to the master that Sentinels report.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult};
use slidegate::store::restart_on_panic;
use tokio::sync::watch;
use tokio::time::{Instant, timeout};

use crate::address::SentinelTarget;
use crate::connection::{
    Connection, ConnectionHandle, ConnectionReports, CurrentConnection, ReconnectingConnection,
};
use crate::connector::Connector;
use crate::failure;
use crate::log_throttle::LogThrottle;
use crate::sentinel::{Sentinels, is_master};
use crate::tls::ClientTls;

/// Timeout of a connection attempt. The timeout is short, because a failover may make another server the master during
/// the attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(750);

/// Backoff after the first failed connection attempt. The backoff doubles after each further failure, up to
/// [`MAX_RECONNECT_BACKOFF`]. A connection that is lost sooner than this after it was opened counts as a failed attempt.
const INITIAL_RECONNECT_BACKOFF: Duration = Duration::from_millis(20);

/// Maximum backoff between two connection attempts.
const MAX_RECONNECT_BACKOFF: Duration = Duration::from_millis(500);

/// Creates a connection that a background task opens, and replaces whenever it is lost. `call_timeout` is the timeout
/// of calls. The task calls `on_reconnect` after the first connection, after a connection to another server, and after
/// a connection that follows a failed attempt or a close by the server.
pub fn open(
    mut source: ConnectionSource,
    call_timeout: Duration,
    mut on_reconnect: impl FnMut() + Send + 'static,
) -> ReconnectingConnection {
    let (publish, current) =
        watch::channel(Err("the first connection attempt has not finished".to_owned()));
    let reports = Arc::<ConnectionReports>::default();
    let task_reports = reports.clone();
    let maintain = async move || {
        let (source, on_reconnect) = (&mut source, &mut on_reconnect);
        maintain_connection(source, call_timeout, &publish, &task_reports, on_reconnect).await;
    };
    let task = tokio::spawn(restart_on_panic(maintain, || {
        tracing::error!("the task that connects to Redis panicked; it runs again");
    }));
    ReconnectingConnection::new(current, reports, task)
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
    pub fn for_server(info: &ConnectionInfo, tls: &ClientTls) -> RedisResult<Self> {
        Ok(Self::Server(Box::new(Connector::new(info, tls)?)))
    }

    /// Creates the source of connections to the master of a Sentinel service.
    pub fn for_master(target: &SentinelTarget, tls: &ClientTls) -> RedisResult<Self> {
        Ok(Self::Sentinel(Box::new(Sentinels::new(target, tls)?)))
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
            // Ends the attempt if the Sentinels report another master. Otherwise, a master that hangs would delay the
            // connection to its successor until the attempt times out.
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
    publish: &watch::Sender<CurrentConnection>,
    reports: &ConnectionReports,
    on_reconnect: &mut impl FnMut(),
) {
    let mut backoff = INITIAL_RECONNECT_BACKOFF;
    // If this task has panicked and runs again, the numbers of connections continue above all earlier ones.
    let mut number = publish.borrow().as_ref().map_or(0, |handle| handle.number);
    number = number.max(reports.highest_connection_to_replace());
    let mut last_address = String::new();
    let never_reached_log = LogThrottle::default();
    let mut has_failed = false;
    // Whether an attempt has failed, or the server has closed a connection, since the last connection was opened.
    let mut was_interrupted = false;
    // A doubtful connection, on which Redis did not respond in time. It stays usable until another one is open.
    let mut doubtful: Option<Arc<Connection>> = None;
    loop {
        number += 1;
        let attempt = {
            let mut connecting = pin!(source.connect());
            match &doubtful {
                None => connecting.await,
                Some(connection) => match timeout(call_timeout, &mut connecting).await {
                    Ok(attempt) => attempt,
                    // Opening another connection takes longer than the timeout of calls. The doubtful connection may
                    // work again, so calls use it until then: with a new number, it no longer counts as doubtful.
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
                let connection = Arc::new(connection);
                let is_new = was_interrupted || address != last_address;
                (was_interrupted, last_address) = (false, address);
                if std::mem::take(&mut has_failed) {
                    tracing::info!(address = last_address, "connected to Redis for the first time");
                }
                publish_connection(publish, &connection, number);
                if is_new {
                    reports.was_connected.store(true, Ordering::Release);
                    on_reconnect();
                }
                connection
            }
            // No other connection could be opened: the server is slow or has too many connections. The doubtful
            // connection is kept.
            (Err(error), Some(connection)) if !connection.is_closed() => {
                tracing::debug!(
                    error = error.to_string(),
                    "cannot replace the connection to Redis; keeping it"
                );
                publish_connection(publish, &connection, number);
                connection
            }
            (Err(error), _) => {
                was_interrupted = true;
                let cause = failure::error_message(&error);
                // The circuit breaker reports an outage only after a failed request, so a server that was never reached
                // is logged here.
                if last_address.is_empty() {
                    has_failed = true;
                    log_never_reached(&never_reached_log, &cause, source);
                } else {
                    log_connect_error(&error, &cause, publish);
                }
                publish.send_modify(|state| *state = Err(cause));
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
        // Whether the server has closed the connection. This is not the case if a call has rejected the connection, for
        // example because its server is a replica: another connection to it is no better.
        let closed = reports.closed.load(Ordering::Acquire);
        was_interrupted = connection.is_closed() || closed >= number;
        drop(connection);
        // If the connection was lost at once, waits before the next attempt, because the server may close each
        // connection at once.
        if connected_at.elapsed() < INITIAL_RECONNECT_BACKOFF {
            reports.wait_for_backoff(backoff).await;
            backoff = (2 * backoff).min(MAX_RECONNECT_BACKOFF);
        } else {
            backoff = INITIAL_RECONNECT_BACKOFF;
        }
    }
}

/// Makes a connection the current one, which calls use, under this number.
fn publish_connection(
    publish: &watch::Sender<CurrentConnection>,
    connection: &Arc<Connection>,
    number: u64,
) {
    let handle = ConnectionHandle { connection: connection.clone(), number };
    publish.send_modify(|state| *state = Ok(handle));
}

/// Logs once a minute that no connection has been established since the start, with the error of the last attempt. This is
/// an error, because the settings are probably wrong.
fn log_never_reached(throttle: &LogThrottle, cause: &str, source: &ConnectionSource) {
    let error = failure::no_connection_error(cause);
    if throttle.should_log(error.class()) {
        tracing::error!(
            class = error.class(),
            error = cause,
            address = source.server_name_for_log(),
            remedy = error.remedy(),
            "Redis has not been reachable since the start; retrying"
        );
    }
}

/// Logs the error of a failed attempt to connect again. The error is a warning only if the server has rejected the
/// connection, for example because of a wrong password. An unreachable server is reported by the circuit breaker.
fn log_connect_error(error: &RedisError, cause: &str, publish: &watch::Sender<CurrentConnection>) {
    let is_known = publish.borrow().as_ref().is_err_and(|known| known == cause);
    if let Some(class) = failure::rejection_class(error).filter(|_| !is_known) {
        tracing::warn!(
            class = class.label(),
            error = cause,
            remedy = class.remedy(),
            "Redis rejected the connection; retrying"
        );
    } else {
        tracing::debug!(error = error.to_string(), "no connection to Redis");
    }
}
