//! Finds the current master of a Redis service by querying its Sentinels.
//!
//! The Sentinel client of the `redis` crate is not used. It looks up the master only when it connects. After a manual
//! failover the old master keeps responding for seconds, and charges during that time would be lost. Also, that client
//! queries one Sentinel after another, and waits for each Sentinel that hangs.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};
use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, ErrorKind, RedisError, RedisResult, Value};
use slidegate::store::RejectionClass;
use tokio::time::{Instant, sleep, timeout};

use crate::address::{SentinelTarget, with_host_and_port};
use crate::connection::Connection;
use crate::connector::Connector;
use crate::failure;
use crate::tls::ClientTls;

/// Interval at which each Sentinel is polled for the current master.
const MASTER_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Timeout of a query to a Sentinel.
const SENTINEL_QUERY_TIMEOUT: Duration = Duration::from_millis(300);

/// The time after which an older epoch is accepted. Sentinels inform each other of a failover every 2 seconds.
const OLDER_EPOCH_TIMEOUT: Duration = Duration::from_secs(5);

/// The Sentinels of a Redis service, and the master that they reported last.
pub struct Sentinels {
    sentinels: Vec<SentinelConnection>,
    service: String,
    /// Credentials and database for connections to the service.
    login: ConnectionInfo,
    tls: ClientTls,
    latest: LatestMaster,
}

/// The master that the Sentinels reported last; `None` if they have never reported one.
#[derive(Default)]
struct LatestMaster {
    reported: Option<ReportedMaster>,
    /// The time since which most Sentinels have reported older epochs, and none the latest one.
    older_since: Option<Instant>,
}

/// The connector of one Sentinel, and the connection to it if there is one.
struct SentinelConnection {
    connector: Connector,
    connection: Option<Connection>,
    /// The error response to the last query; `None` if the query failed in another way or succeeded.
    rejection: Option<RedisError>,
}

/// A master as reported by a Sentinel, and its configuration epoch. A Sentinel that has missed a failover reports an
/// older epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReportedMaster {
    epoch: u64,
    address: String,
}

impl Sentinels {
    /// Creates a client for each Sentinel, without connecting.
    pub fn new(target: &SentinelTarget, tls: &ClientTls) -> RedisResult<Self> {
        let SentinelTarget { sentinels, service, login } = target;
        let sentinel = |info| {
            let connector = Connector::new(info, tls)?;
            Ok(SentinelConnection { connector, connection: None, rejection: None })
        };
        Ok(Self {
            sentinels: sentinels.iter().map(sentinel).collect::<RedisResult<_>>()?,
            service: service.clone(),
            login: login.clone(),
            tls: tls.clone(),
            latest: LatestMaster::default(),
        })
    }

    /// Returns the name of the service.
    pub fn service(&self) -> &str {
        &self.service
    }

    /// Queries all Sentinels for the master. Returns `true` if they report another master than before, or report a
    /// master for the first time.
    pub async fn refresh_master(&mut self) -> bool {
        let service = &self.service;
        let reports =
            join_all(self.sentinels.iter_mut().map(|sentinel| sentinel.fetch_master(service)))
                .await;
        self.latest.update(&reports, Instant::now())
    }

    /// Waits until the Sentinels report another master. Each Sentinel is polled on its own, so one that hangs does not
    /// delay the others.
    pub async fn wait_for_master_change(&mut self) {
        let Self { sentinels, service, latest, .. } = self;
        let mut reports = vec![None; sentinels.len()];
        let poll = |(index, sentinel)| poll_sentinel(index, sentinel, service);
        let mut polls: FuturesUnordered<_> = sentinels.iter_mut().enumerate().map(poll).collect();
        while let Some((index, sentinel, report)) = polls.next().await {
            reports[index] = report;
            if latest.update(&reports, Instant::now()) {
                return;
            }
            polls.push(poll((index, sentinel)));
        }
    }

    /// Creates a connector of the master that the Sentinels reported last. Fails if they have never reported one.
    pub fn connector(&self) -> RedisResult<Connector> {
        let unknown = || self.no_master_error();
        let latest = self.latest.reported.as_ref().ok_or_else(unknown)?;
        let info = with_host_and_port(&self.login, &latest.address).ok_or_else(unknown)?;
        Connector::new(&info, &self.tls)
    }
}

impl Sentinels {
    /// Returns the error for a service without a reported master. If a Sentinel rejected the query, the error has the
    /// class of its response.
    fn no_master_error(&self) -> RedisError {
        let text =
            "no Sentinel reported a master; check the Sentinel addresses and the service name";
        let rejection = self.sentinels.iter().find_map(|sentinel| sentinel.rejection.as_ref());
        let Some((error, class)) =
            rejection.and_then(|error| Some((error, failure::rejection_class(error)?)))
        else {
            return RedisError::from((ErrorKind::Client, text));
        };
        let response = failure::error_message(error);
        match (class, error.kind()) {
            (RejectionClass::WrongCredentials, _) => {
                let detail =
                    format!("no Sentinel reported a master: a Sentinel responded {response}");
                RedisError::from((ErrorKind::AuthenticationFailed, "authentication failed", detail))
            }
            (_, kind @ ErrorKind::Server(_)) => RedisError::from((
                kind,
                "rejected",
                format!("{text}: a Sentinel responded {response}"),
            )),
            _ => {
                RedisError::from((ErrorKind::Extension, "rejected", format!("{text}: {response}")))
            }
        }
    }
}

impl LatestMaster {
    /// Replaces the master by the newest of `reports`, which has one item for each Sentinel, `None` for a Sentinel that
    /// does not report a master. Returns `true` if the address has changed.
    ///
    /// An older report is from a Sentinel that has missed a failover. But if most Sentinels have an older epoch, none
    /// has the latest one, and this lasts for [`OLDER_EPOCH_TIMEOUT`], they have lost their state: epochs begin at 0
    /// again.
    fn update(&mut self, reports: &[Option<ReportedMaster>], now: Instant) -> bool {
        let reported = || reports.iter().flatten();
        let Some(newest) = reported().max_by_key(|master| master.epoch) else { return false };
        if self.reported.as_ref().is_some_and(|latest| newest.epoch < latest.epoch) {
            if 2 * reported().count() <= reports.len() {
                self.older_since = None;
                return false;
            }
            let older_since = *self.older_since.get_or_insert(now);
            if now.duration_since(older_since) < OLDER_EPOCH_TIMEOUT {
                return false;
            }
        }
        self.older_since = None;
        let before = self.reported.replace(newest.clone());
        before.is_none_or(|before| before.address != newest.address)
    }
}

/// Queries a Sentinel for the master after [`MASTER_POLL_INTERVAL`]. Returns the index of the Sentinel, and the Sentinel
/// for the next query.
async fn poll_sentinel<'s>(
    index: usize,
    sentinel: &'s mut SentinelConnection,
    service: &str,
) -> (usize, &'s mut SentinelConnection, Option<ReportedMaster>) {
    sleep(MASTER_POLL_INTERVAL).await;
    let master = sentinel.fetch_master(service).await;
    (index, sentinel, master)
}

/// Queries a server for its role. Returns `true` if the server considers itself a master.
pub async fn is_master(connection: &mut MultiplexedConnection) -> RedisResult<bool> {
    let role: Vec<Value> = redis::cmd("ROLE").query_async(connection).await?;
    Ok(matches!(role.first(), Some(Value::BulkString(role)) if role == b"master"))
}

impl SentinelConnection {
    /// Queries this Sentinel for the master of a service. Returns `None` if the query fails or the response is invalid.
    async fn fetch_master(&mut self, service: &str) -> Option<ReportedMaster> {
        let response = timeout(SENTINEL_QUERY_TIMEOUT, self.fetch_master_fields(service)).await;
        match response {
            Ok(Ok(response)) => {
                self.rejection = None;
                parse_master_fields(&response)
            }
            Ok(Err(error)) => {
                tracing::debug!(error = error.to_string(), "query to a Sentinel failed");
                self.connection = None;
                self.rejection = failure::rejection_class(&error).map(|_| error);
                None
            }
            Err(_) => {
                (self.connection, self.rejection) = (None, None);
                None
            }
        }
    }

    /// Sends `SENTINEL MASTER`, on a new connection if necessary, and returns the fields of the response.
    async fn fetch_master_fields(&mut self, service: &str) -> RedisResult<HashMap<String, String>> {
        let mut query = redis::cmd("SENTINEL");
        query.arg("MASTER").arg(service);
        if let Some(connection) = &mut self.connection {
            match query.query_async(&mut connection.commands).await {
                // The connection may have been closed since the last query. The query is then sent on a new connection.
                Err(error) if error.is_io_error() => {}
                response => return response,
            }
        }
        let connection =
            self.connection.insert(self.connector.connect(SENTINEL_QUERY_TIMEOUT).await?);
        query.query_async(&mut connection.commands).await
    }
}

/// Parses the response to `SENTINEL MASTER`. Returns `None` if a field is missing or invalid.
fn parse_master_fields(response: &HashMap<String, String>) -> Option<ReportedMaster> {
    let host = response.get("ip")?;
    let port: u16 = response.get("port")?.parse().ok()?;
    let address =
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") };
    Some(ReportedMaster { epoch: response.get("config-epoch")?.parse().ok()?, address })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(epoch: u64, address: &str) -> Option<ReportedMaster> {
        Some(ReportedMaster { epoch, address: address.to_owned() })
    }

    #[test]
    fn older_report_counts_only_if_most_sentinels_have_lost_their_epoch() {
        let mut latest = LatestMaster::default();
        let start = Instant::now();
        let mut update =
            |seconds, reports: &[_]| latest.update(reports, start + Duration::from_secs(seconds));
        assert!(update(0, &[report(4, "a"), None, None]));
        assert!(!update(1, &[report(5, "a"), report(4, "a"), None]));
        assert!(!update(2, &[report(4, "b"), None, None]), "missed a failover");
        assert!(!update(10, &[report(4, "b"), None, None]), "only one Sentinel");
        assert!(!update(11, &[report(4, "b"), report(4, "b"), None]), "for the first time");
        assert!(!update(11, &[report(4, "b"), report(5, "a"), report(4, "b")]));
        assert!(!update(12, &[report(4, "b"), report(4, "b"), report(4, "b")]), "not for long");
        assert!(!update(15, &[None, None, None]));
        assert!(update(17, &[report(0, "b"), report(0, "b"), None]));
        assert!(update(18, &[report(0, "b"), report(1, "c"), None]));
        // A Sentinel behind a load balancer.
        assert!(!update(19, &[report(0, "b")]));
        assert!(!update(21, &[report(1, "c")]));
        assert!(!update(24, &[report(0, "b")]));
    }
}
