//! A node: what it is told to be, and how it starts and leaves.

mod driver;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, DriftCorrectedClock};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::counters::{CounterSettings, Counters};
use crate::membership::{self, AddressError, JoinError, Membership, Sockets};
use crate::replication::{self, ReplicationEngine};
use crate::seal::{ClusterKey, PeerIdentity, RejectCounters, ShortKeyError};
use crate::store::{ClusterStore, ReplicationHandle};
use crate::transport::tcp::{TcpTransport, Timing};

use driver::{LeaveRequest, NodeDriver};

pub use status::{ClusterStatus, MemberStatus};

/// What a node is told to be.
#[derive(Clone)]
pub struct Settings {
    /// Where to listen: UDP for who is there, TCP for counts. Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Where others reach this node, if not there.
    pub advertise: Option<SocketAddr>,
    /// Where others may be: addresses or names with ports. This node may be among them.
    pub seeds: Vec<String>,
    /// What the others call it; its address, if not given.
    pub name: Option<String>,
    /// What all nodes of the cluster know, and nobody else. Without it only nodes of this machine are heard.
    pub key: Option<String>,
    /// How often nodes tell each other what has changed.
    pub sync_interval: Duration,
    /// How long a request may wait for other nodes.
    pub sync_wait: Duration,
    /// By how much the clocks of nodes may differ.
    pub max_clock_skew: Duration,
    /// Keys that are kept, at most.
    pub max_keys: usize,
    /// Bytes that the keys take, at most.
    pub max_memory: usize,
}

/// Without the key.
impl std::fmt::Debug for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { listen, advertise, seeds, name, .. } = self;
        f.debug_struct("Settings")
            .field("listen", listen)
            .field("advertise", advertise)
            .field("seeds", seeds)
            .field("name", name)
            .finish_non_exhaustive()
    }
}

/// Why a node does not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The address is taken, or none of this machine's.
    #[error("cannot listen on {address} for other nodes: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: std::io::Error,
    },
    /// Others could be heard, and nobody could tell friend from stranger.
    #[error(
        "to listen on {0}, where others than this machine are heard, a cluster needs a key that they do not know"
    )]
    NoKey(SocketAddr),
    /// The key is easily guessed.
    #[error(transparent)]
    Key(#[from] ShortKeyError),
    /// Nobody knows where others reach this node.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The node cannot take part.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// What reaches a node that runs.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    leave: mpsc::Sender<LeaveRequest>,
    status: Arc<status::LatestStatus>,
}

impl ClusterStore<Arc<DriftCorrectedClock>> {
    /// Starts a node, within a runtime. It looks for the others in the background.
    ///
    /// # Errors
    /// If it cannot listen, could be heard by strangers, or cannot be reached.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let key = key(&settings)?;
        let listen = |source| StartError::Listen { address: settings.listen, source };
        let sockets = Sockets::bind(settings.listen).await.map_err(listen)?;
        let advertise =
            membership::resolve_advertised(sockets.address, settings.advertise, &settings.seeds)
                .await?;
        let clock = Arc::new(DriftCorrectedClock::new());
        let generation = clock.now().as_micros();
        let name = settings.name.clone().unwrap_or_else(|| advertise.to_string());
        let local_node = replication::NodeInfo {
            incarnation: membership::incarnation(&name, generation),
            name: name.as_str().into(),
            address: Some(advertise),
        };
        let counters = Arc::new(counters(&settings, &key, local_node.incarnation, &clock));
        let knows_others = membership::has_other_seeds(&settings.seeds, advertise).await;
        let engine = ReplicationEngine::new(
            local_node.clone(),
            engine_settings(&settings),
            knows_others,
            counters.progress().clone(),
            clock.now(),
        );
        let reject_counters = Arc::new(RejectCounters::default());
        let identity = PeerIdentity { incarnation: local_node.incarnation, name: name.clone() };
        let transport = TcpTransport::new(
            sockets.tcp,
            key.clone(),
            identity,
            reject_counters.clone(),
            Timing::default(),
        )
        .map_err(listen)?;
        let membership_settings = membership::Settings {
            name,
            generation,
            advertise,
            seeds: settings.seeds,
            max_clock_skew: settings.max_clock_skew,
        };
        let membership = Membership::join(
            membership_settings,
            sockets.udp,
            &key,
            clock.clone(),
            reject_counters.clone(),
        )
        .await?;
        let replication = ReplicationHandle::default();
        let status = Arc::new(status::LatestStatus::default());
        let (leave, leave_requests) = mpsc::channel(1);
        let mut driver = NodeDriver {
            engine,
            counters: counters.clone(),
            clock: clock.clone(),
            transport,
            membership,
            replication: replication.clone(),
            interval: settings.sync_interval,
            reject_counters,
            status: status.clone(),
        };
        // Who asks at once is told who this is.
        driver.update_status();
        tokio::spawn(driver.run(leave_requests));
        let store = Self::new(clock, counters, replication, settings.sync_wait);
        Ok(store.with_node(NodeHandle { leave, status }))
    }
}

impl<C: Clock> ClusterStore<C> {
    /// How this node and its cluster stand, as of some tenths of a second ago. None of a store without a node.
    pub fn status(&self) -> Option<Arc<ClusterStatus>> {
        self.node().map(|node| node.status.load())
    }

    /// Tells the others that this node goes, and what it has still to tell. Waits at most so long.
    ///
    /// What is charged after that is not told to anybody.
    pub async fn leave(&self, max_wait: Duration) {
        let Some(node) = self.node() else { return };
        let (done, left) = oneshot::channel();
        let leave = async {
            // Who does not run any more has left.
            if node.leave.send(done).await.is_ok() {
                let _ = left.await;
            }
        };
        let _ = timeout(max_wait, leave).await;
    }
}

fn key(settings: &Settings) -> Result<ClusterKey, StartError> {
    match &settings.key {
        Some(text) => Ok(ClusterKey::new(text)?),
        None if settings.listen.ip().is_loopback() => Ok(ClusterKey::for_loopback()),
        None => Err(StartError::NoKey(settings.listen)),
    }
}

fn counters(
    settings: &Settings,
    key: &ClusterKey,
    incarnation: crate::pn_counter::Incarnation,
    clock: &DriftCorrectedClock,
) -> Counters {
    let settings = CounterSettings {
        incarnation,
        secret: key.fingerprint_secret().into(),
        max_clock_skew_us: u64::try_from(settings.max_clock_skew.as_micros()).unwrap_or(u64::MAX),
        sync_interval: settings.sync_interval,
        max_keys: settings.max_keys,
        max_memory: settings.max_memory,
    };
    Counters::new(settings, clock.now())
}

fn engine_settings(settings: &Settings) -> replication::Settings {
    replication::Settings {
        interval: settings.sync_interval,
        max_clock_skew: settings.max_clock_skew,
        ..replication::Settings::default()
    }
}
