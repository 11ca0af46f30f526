//! A cluster node: functions that start the node and leave the cluster, and the settings of the node. One task drives
//! all parts of a running node.

mod driver;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::clock::{Clock, DriftCorrectedClock};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::clock_limit::ClockSkewLimit;
use crate::counters::{CounterSettings, Counters};
use crate::credentials::{
    Certificates, Credentials, CredentialsError, NodeTls, derive_fingerprint_secret,
};
use crate::membership::{self, AdvertisedAddressError, Membership, SILENCE_TIMEOUT};
use crate::node_info::{MAX_NAME_BYTES, NodeInfo, incarnation};
use crate::pn_counter::Incarnation;
use crate::replication::{self, ReplicationEngine};
use crate::store::{ClusterStore, ReplicationHandle};
use crate::transport::RejectCounters;
use crate::transport::tcp::{TcpTransport, TlsHandle, TransportTiming};

use driver::{LeaveRequest, NodeDriver};

pub use status::{ClusterStatus, MemberStatus};

/// Settings of a node.
#[derive(Clone)]
pub struct ClusterSettings {
    /// The address to listen on for other nodes. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The address at which other nodes reach this node, if different from `listen`.
    pub advertise: Option<SocketAddr>,
    /// Addresses or host names of other nodes, each with a port. The list may include this node.
    pub seeds: Vec<String>,
    /// The name of this node; by default its address.
    pub name: Option<String>,
    /// The keys or certificates with which the nodes authenticate each other. Without credentials, the node must listen
    /// on a loopback address.
    pub credentials: Option<Credentials>,
    /// The secret from which the fingerprints of keys are derived, a text of at least 16 bytes that is identical on all
    /// nodes. By default, it is the shared key. It is required with certificates, and with two shared keys, because the
    /// fingerprints must not change while the key is changed.
    pub secret: Option<String>,
    /// Interval at which nodes send changed counters to each other.
    pub sync_interval: Duration,
    /// Maximum time for which a request waits for acknowledgements of other nodes.
    pub sync_wait: Duration,
    /// Maximum difference between the clocks of two nodes.
    pub max_clock_skew: Duration,
    /// Maximum number of keys.
    pub max_keys: usize,
    /// Maximum memory of the counters of all keys and of the records of calls, in bytes.
    pub max_memory: usize,
}

/// Omits the secrets from the debug output.
impl std::fmt::Debug for ClusterSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { listen, advertise, seeds, name, .. } = self;
        f.debug_struct("ClusterSettings")
            .field("listen", listen)
            .field("advertise", advertise)
            .field("seeds", seeds)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// An error that prevents a node from starting.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address to listen on is in use or does not belong to this machine.
    #[error(
        "cannot listen on {address} for other nodes: {source}; use a free port and an address of this machine"
    )]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The address to listen on is reachable from other machines, and there are no credentials to authenticate nodes.
    #[error("other machines can reach {0}, so the nodes need a common cluster key or certificates")]
    NoCredentials(SocketAddr),
    /// The credentials cannot be used.
    #[error(transparent)]
    Credentials(#[from] CredentialsError),
    /// There is no secret, although there are certificates or two shared keys.
    #[error(
        "certificates and two cluster keys need a cluster secret, which stays the same when they change"
    )]
    NoSecret,
    /// The advertised address cannot be determined.
    #[error(transparent)]
    Address(#[from] AdvertisedAddressError),
    /// The length of the node name is invalid.
    #[error("node name has {0} bytes; use 1 to {MAX_NAME_BYTES}")]
    Name(usize),
}

/// A handle to a running node.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    leave: mpsc::Sender<LeaveRequest>,
    /// Whether the node leaves the cluster, so that its tasks end.
    is_leaving: AtomicBool,
    status: Arc<status::LatestClusterStatus>,
    tls: TlsHandle,
    /// The task without which the node cannot replicate its counters. It cannot be started again after a panic.
    event_loop: AbortHandle,
}

impl NodeHandle {
    fn ended_task(&self) -> Option<&'static str> {
        let has_ended = self.event_loop.is_finished() && !self.is_leaving.load(Ordering::Relaxed);
        has_ended.then_some("cluster replication")
    }
}

impl ClusterStore<Arc<DriftCorrectedClock>> {
    /// Starts a node in the current Tokio runtime. The node discovers other nodes in the background.
    ///
    /// # Errors
    /// Returns an error if the node cannot listen, needs a key, or has no address that other nodes can reach.
    pub async fn start(settings: ClusterSettings) -> Result<Self, StartError> {
        let credentials = credentials_or_default(&settings)?;
        let tls = NodeTls::new(&credentials)?;
        let listen_error = |source| StartError::Listen { address: settings.listen, source };
        let listener = membership::listen_on(settings.listen).map_err(listen_error)?;
        let address = listener.local_addr().map_err(listen_error)?;
        let advertise =
            membership::resolve_advertised_address(address, settings.advertise, &settings.seeds)
                .await?;
        let clock = Arc::new(DriftCorrectedClock::new());
        let local_node = new_local_node(&settings, advertise, clock.now().as_micros())?;
        let secret = fingerprint_secret(&settings, &credentials)?;
        let counters = Arc::new(new_counters(&settings, secret, local_node.incarnation, &clock));
        let has_other_seeds = membership::has_other_seeds(&settings.seeds, advertise).await;
        let engine = ReplicationEngine::new(
            local_node.clone(),
            engine_settings(&settings),
            has_other_seeds,
            counters.progress().clone(),
            clock.now(),
        );
        let reject_counters = Arc::new(RejectCounters::default());
        let transport = TcpTransport::new(
            listener,
            tls,
            local_node.clone(),
            reject_counters.clone(),
            TransportTiming::default(),
        )
        .map_err(listen_error)?;
        let tls = transport.tls_handle();
        let replication = ReplicationHandle::default();
        let status = Arc::new(status::LatestClusterStatus::default());
        let (leave, leave_requests) = mpsc::channel(1);
        let mut driver = NodeDriver {
            engine,
            counters: counters.clone(),
            clock: clock.clone(),
            transport,
            membership: Membership::new(local_node, membership_settings(&settings)),
            view: membership::MembershipView::default(),
            own_address: advertise,
            seeds: membership::watch_seeds(settings.seeds),
            replication: replication.clone(),
            interval: settings.sync_interval,
            reject_counters,
            status: status.clone(),
        };
        // The first status must be available before the event loop has run.
        driver.update_status();
        let event_loop = tokio::spawn(driver.run_event_loop(leave_requests)).abort_handle();
        let store = Self::new(clock, counters, replication, settings.sync_wait);
        Ok(store.with_node_handle(NodeHandle {
            leave,
            is_leaving: AtomicBool::new(false),
            status,
            tls,
            event_loop,
        }))
    }
}

impl<C: Clock> ClusterStore<C> {
    /// Returns the status of this node and its cluster, at most about half a second old. Returns `None` if the store
    /// was created without a node.
    pub fn status(&self) -> Option<Arc<ClusterStatus>> {
        self.node().map(|node| node.status.load())
    }

    /// Returns the name of a background task that has ended although the node has not left the cluster, most likely by
    /// a panic. The node then decides alone. Returns `None` if there is none.
    pub fn ended_task(&self) -> Option<&'static str> {
        self.node().and_then(NodeHandle::ended_task)
    }

    /// Uses other certificates for new connections. Open connections stay. Does nothing if the store was created
    /// without a node.
    ///
    /// # Errors
    /// Returns the reason why the certificates cannot be used. The node then keeps its certificates.
    pub fn replace_certificates(
        &self,
        certificates: &Certificates,
    ) -> Result<(), CredentialsError> {
        let tls = NodeTls::new(&Credentials::Certificates(certificates.clone()))?;
        if let Some(node) = self.node() {
            node.tls.replace(tls);
        }
        Ok(())
    }

    /// Leaves the cluster: sends the remaining counter updates and announces the departure of this node. Waits for at
    /// most `max_wait`.
    ///
    /// Charges after this call are not replicated.
    pub async fn leave(&self, max_wait: Duration) {
        let Some(node) = self.node() else { return };
        node.is_leaving.store(true, Ordering::Relaxed);
        let (done, has_left) = oneshot::channel();
        let leave = async {
            // Sending fails if the event loop has ended: the node has already left.
            if node.leave.send(done).await.is_ok() {
                let _ = has_left.await;
            }
        };
        let _ = timeout(max_wait, leave).await;
    }
}

fn credentials_or_default(settings: &ClusterSettings) -> Result<Credentials, StartError> {
    match &settings.credentials {
        Some(credentials) => Ok(credentials.clone()),
        None if settings.listen.ip().is_loopback() => Ok(Credentials::for_loopback()),
        None => Err(StartError::NoCredentials(settings.listen)),
    }
}

fn new_local_node(
    settings: &ClusterSettings,
    advertise: SocketAddr,
    generation: u64,
) -> Result<NodeInfo, StartError> {
    let name = settings.name.clone().unwrap_or_else(|| advertise.to_string());
    if !(1..=MAX_NAME_BYTES).contains(&name.len()) {
        return Err(StartError::Name(name.len()));
    }
    let incarnation = incarnation(&name, generation);
    Ok(NodeInfo { incarnation, name: name.into(), address: Some(advertise) })
}

fn fingerprint_secret(
    settings: &ClusterSettings,
    credentials: &Credentials,
) -> Result<[u8; 16], StartError> {
    let secret = settings.secret.as_deref().or_else(|| credentials.single_shared_key());
    Ok(derive_fingerprint_secret(secret.ok_or(StartError::NoSecret)?)?)
}

fn new_counters(
    settings: &ClusterSettings,
    secret: [u8; 16],
    incarnation: Incarnation,
    clock: &DriftCorrectedClock,
) -> Counters {
    let settings = CounterSettings {
        incarnation,
        secret: secret.into(),
        max_clock_skew_us: ClockSkewLimit::new(settings.max_clock_skew).max_clock_difference_us(),
        sync_interval: settings.sync_interval,
        max_keys: settings.max_keys,
        max_memory: settings.max_memory,
    };
    Counters::new(settings, clock.now())
}

fn membership_settings(settings: &ClusterSettings) -> membership::Settings {
    membership::Settings {
        clock_limit: ClockSkewLimit::new(settings.max_clock_skew),
        silence_timeout: SILENCE_TIMEOUT,
    }
}

fn engine_settings(settings: &ClusterSettings) -> replication::Settings {
    replication::Settings {
        interval: settings.sync_interval,
        clock_limit: ClockSkewLimit::new(settings.max_clock_skew),
        ..replication::Settings::default()
    }
}

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Settings of a node on a free port, which finds no other node.
    fn settings() -> ClusterSettings {
        ClusterSettings {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            seeds: Vec::new(),
            name: None,
            credentials: None,
            secret: None,
            sync_interval: Duration::from_millis(50),
            sync_wait: Duration::ZERO,
            max_clock_skew: Duration::from_secs(1),
            max_keys: 10,
            max_memory: 1 << 20,
        }
    }

    #[tokio::test]
    async fn ended_task_is_reported_until_node_leaves() {
        let store = ClusterStore::start(settings()).await.unwrap();
        assert_eq!(store.ended_task(), None);
        store.node().unwrap().event_loop.abort();
        while store.ended_task().is_none() {
            yield_now().await;
        }
        assert_eq!(store.ended_task(), Some("cluster replication"));
        store.leave(Duration::ZERO).await;
        assert_eq!(store.ended_task(), None);
    }

    #[tokio::test]
    async fn two_keys_and_certificates_need_secret() {
        let key = |text: &str| format!("{text} with enough bytes");
        let two = Credentials::Keys(vec![key("old"), key("new")]);
        let start = async |secret| {
            let credentials = Some(two.clone());
            ClusterStore::start(ClusterSettings { credentials, secret, ..settings() }).await
        };
        assert!(matches!(start(None).await, Err(StartError::NoSecret)));
        assert!(start(Some(key("old"))).await.is_ok());
        let error = start(Some("short".to_owned())).await.unwrap_err();
        assert!(error.to_string().contains("5 bytes"), "{error}");
    }
}
