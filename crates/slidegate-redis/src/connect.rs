//! The connection to Redis: made, and made again, by a task of its own.

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo};
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
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prefix: "slidegate:".to_owned(),
            timeout: Duration::from_millis(15),
            keep: Duration::from_secs(1),
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
}

/// A connection that is shared, and replaced when it is lost.
#[derive(Debug)]
pub struct Link {
    current: watch::Receiver<Option<Shared>>,
    broken: watch::Sender<u64>,
    keeper: JoinHandle<()>,
}

/// A connection, and the how manieth it is.
#[derive(Clone, Debug)]
pub struct Shared {
    pub connection: MultiplexedConnection,
    pub nth: u64,
}

impl Link {
    /// Begins to connect.
    pub fn open(address: &str) -> Result<Self, ConnectError> {
        let wrong = |error: redis::RedisError| ConnectError::Address {
            address: without_password(address),
            message: error.to_string(),
        };
        let client = Client::open(address.into_connection_info().map_err(wrong)?).map_err(wrong)?;
        let (publish, current) = watch::channel(None);
        let (broken, reported) = watch::channel(0);
        let keeper = tokio::spawn(keep(client, publish, reported));
        Ok(Self { current, broken, keeper })
    }

    /// The connection, as soon as there is one.
    pub async fn connection(&self) -> Option<Shared> {
        if let Some(shared) = &*self.current.borrow() {
            return Some(shared.clone());
        }
        let mut current = self.current.clone();
        let shared = current.wait_for(Option::is_some).await.ok()?;
        shared.clone()
    }

    /// Has the connection replaced that there is now.
    pub fn replace_current(&self) {
        if let Some(shared) = self.current.borrow().clone() {
            self.replace(&shared);
        }
    }

    /// Has this connection replaced.
    pub fn replace(&self, shared: &Shared) {
        self.broken.send_if_modified(|nth| {
            let newer = shared.nth > *nth;
            *nth = (*nth).max(shared.nth);
            newer
        });
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.keeper.abort();
    }
}

async fn keep(
    client: Client,
    publish: watch::Sender<Option<Shared>>,
    mut reported: watch::Receiver<u64>,
) {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(CONNECTING))
        .set_response_timeout(None);
    let mut pause = Duration::from_millis(20);
    for nth in 1.. {
        match client.get_multiplexed_async_connection_with_config(&config).await {
            Ok(connection) => {
                pause = Duration::from_millis(20);
                publish.send_replace(Some(Shared { connection, nth }));
                if reported.wait_for(|broken| *broken >= nth).await.is_err() {
                    return;
                }
                publish.send_replace(None);
            }
            Err(error) => {
                tracing::debug!(%error, "no connection to Redis");
                tokio::time::sleep(pause).await;
                pause = (2 * pause).min(MOST_PAUSE);
            }
        }
    }
}

/// An address as one may show it.
fn without_password(address: &str) -> String {
    match (address.find("://"), address.rfind('@')) {
        (Some(scheme), Some(at)) => format!("{}…{}", &address[..scheme + 3], &address[at..]),
        _ => address.to_owned(),
    }
}
