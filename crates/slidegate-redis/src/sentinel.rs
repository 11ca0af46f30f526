//! The master of a service, as Sentinels tell.
//!
//! `redis` has a client for Sentinels. It is not used, because it looks for the master only when it connects: a
//! failover that was asked for leaves the old master answering for seconds, and what is charged there is lost;
//! and because it asks one Sentinel after another, and waits for each that hangs.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ConnectionInfo, ErrorKind, RedisError, RedisResult, Value,
};
use tokio::time::timeout;

use crate::address::SentinelTarget;
use crate::connect::{Trust, at_address};

/// How long to wait for a Sentinel.
const TELLING: Duration = Duration::from_millis(300);

/// Sentinels that watch a service.
pub struct Sentinels {
    watchers: Vec<Watcher>,
    service: String,
    /// How one logs in at the service.
    login: ConnectionInfo,
    trust: Trust,
    /// What was told last.
    known: Option<Master>,
}

/// A Sentinel, and the connection to it.
struct Watcher {
    client: Client,
    connection: Option<MultiplexedConnection>,
}

/// A master, and of which configuration: a Sentinel that has missed a failover tells of an older one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Master {
    epoch: u64,
    address: String,
}

impl Sentinels {
    pub fn new(target: &SentinelTarget, trust: &Trust) -> RedisResult<Self> {
        let SentinelTarget { sentinels, service, login } = target;
        let watcher = |info| Ok(Watcher { client: trust.client(info)?, connection: None });
        Ok(Self {
            watchers: sentinels.iter().map(watcher).collect::<RedisResult<_>>()?,
            service: service.clone(),
            login: login.clone(),
            trust: trust.clone(),
            known: None,
        })
    }

    /// Asks all Sentinels. Whether they tell of another master than before.
    pub async fn look(&mut self) -> bool {
        let service = &self.service;
        let told = join_all(self.watchers.iter_mut().map(|watcher| watcher.master(service))).await;
        let newest = told.into_iter().flatten().max_by_key(|master| master.epoch);
        let is_newer = |newest: &Master| match &self.known {
            None => true,
            Some(known) => newest.epoch >= known.epoch && newest.address != known.address,
        };
        match newest.filter(is_newer) {
            None => false,
            newest => {
                self.known = newest;
                true
            }
        }
    }

    /// A client of the master that was told last.
    pub fn client(&self) -> RedisResult<Client> {
        let unknown = || RedisError::from((ErrorKind::Client, "no Sentinel tells of a master"));
        let known = self.known.as_ref().ok_or_else(unknown)?;
        self.trust.client(&at_address(&self.login, &known.address).ok_or_else(unknown)?)
    }
}

/// Whether somebody takes himself for a master.
pub async fn is_master(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let role: Vec<Value> = redis::cmd("ROLE").query_async(connection).await?;
    Ok(matches!(role.first(), Some(Value::BulkString(role)) if role == b"master"))
}

impl Watcher {
    /// The master that this Sentinel knows; none if it does not tell.
    async fn master(&mut self, service: &str) -> Option<Master> {
        let told = timeout(TELLING, self.ask(service)).await;
        match told {
            Ok(Ok(told)) => master(&told),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a Sentinel does not tell of the master");
                self.connection = None;
                None
            }
            Err(_) => {
                self.connection = None;
                None
            }
        }
    }

    async fn ask(&mut self, service: &str) -> RedisResult<HashMap<String, String>> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => {
                let config = AsyncConnectionConfig::new().set_connection_timeout(Some(TELLING));
                let made = self.client.get_multiplexed_async_connection_with_config(&config);
                none.insert(made.await?)
            }
        };
        redis::cmd("SENTINEL").arg("MASTER").arg(service).query_async(connection).await
    }
}

/// What SENTINEL MASTER has told.
fn master(told: &HashMap<String, String>) -> Option<Master> {
    let host = told.get("ip")?;
    let port: u16 = told.get("port")?.parse().ok()?;
    let address = match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    Some(Master { epoch: told.get("config-epoch")?.parse().ok()?, address })
}
