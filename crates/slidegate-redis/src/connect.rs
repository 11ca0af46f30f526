//! The connection to Redis: made, and made again, by a task of its own.

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

/// How long to wait for a new connection. Somebody else may be the master meanwhile.
const CONNECTING: Duration = Duration::from_millis(750);

/// The pause after the first attempt that fails; each further may be twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(20);

/// The longest pause between two attempts.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// The pause between two looks at who is the master.
const LOOKING: Duration = Duration::from_millis(500);

/// How a store talks to Redis.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What every key begins with.
    pub prefix: String,
    /// No call waits longer.
    pub timeout: Duration,
    /// How long a key is kept beyond what it is known to be needed for. Longer than the clocks of callers
    /// differ, if they bring their own.
    pub keep: Duration,
    /// How long a denial is believed without asking Redis again, unless the cost fits sooner; zero: not at all.
    pub deny_cache_ttl: Duration,
    /// For `rediss://`: who vouches for the server, as certificates in a PEM file. None is Mozilla's list.
    pub ca_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            keep: Duration::from_secs(1),
            deny_cache_ttl: Duration::from_secs(1),
            ca_file: None,
        }
    }
}

/// Why there can be no store at an address.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is none.
    #[error("`{address}` is no address of a Redis: {source}")]
    Address {
        /// As it was given, without its password.
        address: String,
        /// What is wrong.
        #[source]
        source: AddressError,
    },
    /// No client can be made for it.
    #[error("there can be no connection to {address}: {message}")]
    Client {
        /// Without its password.
        address: String,
        /// What is wrong.
        message: String,
    },
    /// The file of certificates is none, or is of no use at this address.
    #[error("cannot trust the certificates in `{}`: {message}", path.display())]
    Ca {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        message: String,
    },
}

/// A connection that is shared, and replaced when it is lost.
#[derive(Debug)]
pub struct Link {
    current: watch::Receiver<State>,
    /// Whether there has ever been a connection.
    was_connected: Arc<AtomicBool>,
    broken: watch::Sender<u64>,
    keeper: JoinHandle<()>,
}

/// The connection, or why there is none.
type State = Result<Shared, String>;

/// A connection, and the how manieth it is.
#[derive(Clone, Debug)]
pub struct Shared {
    pub connection: MultiplexedConnection,
    pub nth: u64,
}

impl Link {
    /// Begins to connect. `regained` is told of connections to somebody who was not there before: another
    /// server, or one that was lost.
    pub fn open(source: Source, regained: impl Fn() + Send + 'static) -> Self {
        let (publish, current) = watch::channel(Err("none has been made yet".to_owned()));
        let (broken, reported) = watch::channel(0);
        let was_connected = Arc::<AtomicBool>::default();
        let regained = {
            let was_connected = was_connected.clone();
            move || {
                was_connected.store(true, Ordering::Release);
                regained();
            }
        };
        let keeper = tokio::spawn(keep(source, publish, reported, regained));
        Self { current, was_connected, broken, keeper }
    }

    /// Returns whether there has ever been a connection.
    pub fn was_connected(&self) -> bool {
        self.was_connected.load(Ordering::Acquire)
    }

    /// The connection, as soon as there is one.
    pub async fn connection(&self) -> Option<Shared> {
        if let Ok(shared) = &*self.current.borrow() {
            return Some(shared.clone());
        }
        let mut current = self.current.clone();
        let state = current.wait_for(Result::is_ok).await.ok()?;
        state.as_ref().ok().cloned()
    }

    /// Why there is no connection.
    pub fn trouble(&self) -> Option<String> {
        self.current.borrow().as_ref().err().cloned()
    }

    /// Has the connection replaced that there is now.
    pub fn replace_current(&self) {
        let nth = self.current.borrow().as_ref().map_or(0, |shared| shared.nth);
        self.replace_nth(nth);
    }

    /// Has this connection replaced.
    pub fn replace(&self, shared: &Shared) {
        self.replace_nth(shared.nth);
    }

    fn replace_nth(&self, broken: u64) {
        self.broken.send_if_modified(|nth| {
            let newer = broken > *nth;
            *nth = (*nth).max(broken);
            newer
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

/// Where connections come from.
pub enum Source {
    /// A server.
    One(Box<Client>),
    /// Whoever is the master, as Sentinels say.
    Sentinel(Box<Sentinels>),
}

/// Who vouches for servers; none is Mozilla's list.
#[derive(Clone, Debug, Default)]
pub struct Trust(Option<TlsCertificates>);

impl Trust {
    /// Those of a file.
    pub fn read(path: Option<&Path>) -> Result<Self, ConnectError> {
        let Some(path) = path else { return Ok(Self(None)) };
        let pem = std::fs::read(path).map_err(|error| ConnectError::Ca {
            path: path.to_owned(),
            message: error.to_string(),
        })?;
        Ok(Self(Some(TlsCertificates { client_tls: None, root_cert: Some(pem) })))
    }

    /// A client of one server.
    pub fn client(&self, info: &ConnectionInfo) -> RedisResult<Client> {
        if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            choose_cryptography();
        }
        match &self.0 {
            Some(certificates) => Client::build_with_tls(info.clone(), certificates.clone()),
            None => Client::open(info.clone()),
        }
    }

    /// Connections to one server.
    pub fn one(&self, info: &ConnectionInfo) -> RedisResult<Source> {
        Ok(Source::One(Box::new(self.client(info)?)))
    }

    /// Connections to the master of a service.
    pub fn sentinel(&self, target: &SentinelTarget) -> RedisResult<Source> {
        Ok(Source::Sentinel(Box::new(Sentinels::new(target, self)?)))
    }
}

/// `host:port`, connected to as to another.
pub fn at_address(like: &ConnectionInfo, address: &str) -> Option<ConnectionInfo> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let port = port.parse().ok()?;
    let address = match like.addr() {
        ConnectionAddr::TcpTls { insecure, .. } => {
            ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: None }
        }
        _ => ConnectionAddr::Tcp(host, port),
    };
    Some(like.clone().set_addr(address))
}

/// Without one of the process, rustls panics where it cannot tell which to take.
fn choose_cryptography() {
    // An error says that there is one already.
    let _ = ring::default_provider().install_default();
}

impl Source {
    /// Returns the address for the log.
    fn address(&self) -> String {
        match self {
            Self::One(client) => client.get_connection_info().addr().to_string(),
            Self::Sentinel(_) => "the master that the Sentinels name".to_owned(),
        }
    }

    /// A connection, and to whom.
    async fn connect(&mut self) -> RedisResult<(MultiplexedConnection, String)> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECTING))
            .set_response_timeout(None);
        let sentinels = match self {
            Self::One(client) => {
                let made = client.get_multiplexed_async_connection_with_config(&config).await?;
                return Ok((made, client.get_connection_info().addr().to_string()));
            }
            Self::Sentinel(sentinels) => sentinels,
        };
        sentinels.look().await;
        let client = sentinels.client()?;
        let mut made = client.get_multiplexed_async_connection_with_config(&config).await?;
        match timeout(CONNECTING, is_master(&mut made)).await {
            Ok(Ok(true)) => Ok((made, client.get_connection_info().addr().to_string())),
            Ok(Err(error)) => Err(error),
            _ => Err((ErrorKind::Client, "whom the Sentinels name is no master yet").into()),
        }
    }

    /// Waits until somebody else is to be connected to.
    async fn moved(&mut self) {
        match self {
            Self::One(_) => std::future::pending().await,
            Self::Sentinel(sentinels) => loop {
                sleep(LOOKING).await;
                if sentinels.look().await {
                    return;
                }
            },
        }
    }
}

async fn keep(
    mut source: Source,
    publish: watch::Sender<State>,
    mut reported: watch::Receiver<u64>,
    regained: impl Fn(),
) {
    let mut pause = FIRST_PAUSE;
    let (mut last, mut nth) = (String::new(), 0);
    let mut is_missed = false;
    loop {
        nth += 1;
        match source.connect().await {
            Ok((connection, address)) => {
                let is_new = pause > FIRST_PAUSE || address != last;
                (pause, last) = (FIRST_PAUSE, address);
                if std::mem::take(&mut is_missed) {
                    tracing::info!(address = last, "Redis is reached for the first time");
                }
                publish.send_modify(|state| *state = Ok(Shared { connection, nth }));
                if is_new {
                    regained();
                }
                tokio::select! {
                    reported = reported.wait_for(|broken| *broken >= nth) => {
                        if reported.is_err() {
                            return;
                        }
                    }
                    () = source.moved() => tracing::info!("Redis: the Sentinels name another master"),
                }
                publish.send_modify(|state| *state = Err("it was lost".to_owned()));
            }
            Err(error) => {
                // The breaker reports it only after a request.
                if last.is_empty() && !std::mem::replace(&mut is_missed, true) {
                    let address = source.address();
                    tracing::warn!(%error, address, "Redis was never reached so far; trying again");
                }
                tell(&error, &publish);
                sleep(pause).await;
                pause = (2 * pause).min(MAX_PAUSE);
            }
        }
    }
}

/// Says why there is no connection. That nobody answers, the breaker says; that this is not the way in would
/// otherwise be heard of only with the first request.
fn tell(error: &RedisError, publish: &watch::Sender<State>) {
    let trouble = error.to_string();
    let is_known = publish.borrow().as_ref().is_err_and(|known| *known == trouble);
    let is_refusal = matches!(error.kind(), ErrorKind::AuthenticationFailed | ErrorKind::Server(_));
    if is_refusal && !is_known {
        tracing::warn!(%error, "Redis refuses the connection");
    } else {
        tracing::debug!(%error, "no connection to Redis");
    }
    publish.send_modify(|state| *state = Err(trouble));
}

/// An address as one may show it: without what stands before an @, or after a question mark.
pub fn without_password(address: &str) -> String {
    let shown = match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => {
            format!("{}…{}", &address[..scheme + 3], &address[at..])
        }
        _ => address.to_owned(),
    };
    match shown.split_once('?') {
        Some((place, _)) => format!("{place}?…"),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_password_is_shown() {
        for (address, shown) in [
            ("redis://u:p@h:1/2", "redis://…@h:1/2"),
            ("redis://:p@q?@h", "redis://…@h"),
            ("unix:///run/redis?pass=p&db=1", "unix:///run/redis?…"),
            ("redis://h", "redis://h"),
            ("@://", "@://"),
        ] {
            assert_eq!(without_password(address), shown);
        }
    }
}
