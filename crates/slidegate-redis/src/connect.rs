//! The connection to Redis: made, and made again, by a task of its own.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, ErrorKind, IntoConnectionInfo,
    RedisError, TlsCertificates,
};
use rustls::crypto::ring;
use thiserror::Error;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How long to wait for a new connection.
const CONNECTING: Duration = Duration::from_secs(2);

/// The longest pause between two attempts.
const MOST_PAUSE: Duration = Duration::from_secs(1);

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
    /// For `rediss://`: who vouches for the server, as certificates in a PEM file. None is Mozilla's list.
    pub ca_file: Option<PathBuf>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            keep: Duration::from_secs(1),
            ca_file: None,
        }
    }
}

/// Why there can be no store at an address.
#[derive(Debug, Error)]
pub enum ConnectError {
    /// The address is none.
    #[error("`{address}` is no address of a Redis: {message}")]
    Address {
        /// As it was given, without its password.
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
    /// Begins to connect.
    pub fn open(address: &str, ca_file: Option<&Path>) -> Result<Self, ConnectError> {
        let client = client(address, ca_file)?;
        let (publish, current) = watch::channel(Err("none has been made yet".to_owned()));
        let (broken, reported) = watch::channel(0);
        let keeper = tokio::spawn(keep(client, publish, reported));
        Ok(Self { current, broken, keeper })
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
    pub fn trouble(&self) -> String {
        match &*self.current.borrow() {
            Ok(_) => "it was made just now".to_owned(),
            Err(trouble) => trouble.clone(),
        }
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

fn client(address: &str, ca_file: Option<&Path>) -> Result<Client, ConnectError> {
    let wrong = |error: RedisError| ConnectError::Address {
        address: without_password(address),
        message: error.to_string(),
    };
    let info = address.into_connection_info().map_err(wrong)?;
    if matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
        // Without one of the process, rustls panics where it cannot tell which to take. An error says that
        // there is one already.
        let _ = ring::default_provider().install_default();
    }
    match ca_file {
        Some(path) => trusting(info, path),
        None => Client::open(info).map_err(wrong),
    }
}

/// A client that trusts who is vouched for in a file, and nobody else.
fn trusting(info: ConnectionInfo, path: &Path) -> Result<Client, ConnectError> {
    let wrong = |message: String| ConnectError::Ca { path: path.to_owned(), message };
    let pem = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
    let certificates = TlsCertificates { client_tls: None, root_cert: Some(pem) };
    Client::build_with_tls(info, certificates).map_err(|error| wrong(error.to_string()))
}

async fn keep(client: Client, publish: watch::Sender<State>, mut reported: watch::Receiver<u64>) {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECTING))
        .set_response_timeout(None);
    let mut pause = Duration::from_millis(20);
    for nth in 1.. {
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => {
                pause = Duration::from_millis(20);
                publish.send_modify(|state| *state = Ok(Shared { connection, nth }));
                if reported.wait_for(|broken| *broken >= nth).await.is_err() {
                    return;
                }
                publish.send_modify(|state| *state = Err("it was lost".to_owned()));
            }
            Err(error) => {
                tell(&error, &publish);
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(MOST_PAUSE);
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
fn without_password(address: &str) -> String {
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
