//! A cluster node: functions that start the node and leave the cluster, and the settings of the node. One task drives
//! all parts of a running node.

mod driver;
mod status;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use slidegate::{Clock, DriftCorrectedClock};
use thiserror::Error;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio::time::timeout;

use crate::counters::{CounterSettings, Counters};
use crate::membership::{self, AdvertisedAddressError, JoinError, Membership, Sockets};
use crate::replication::{self, ReplicationEngine};
use crate::seal::{ClusterKey, PeerIdentity, RejectCounters, ShortKeyError};
use crate::store::{ClusterStore, ReplicationHandle};
use crate::transport::tcp::{TcpTransport, Timing};

use driver::{LeaveRequest, NodeDriver};

pub use status::{ClusterStatus, MemberStatus};

/// Settings of a node.
#[derive(Clone)]
pub struct Settings {
    /// The address to listen on: UDP for gossip, TCP for replication. Port 0 selects a free port.
    pub listen: SocketAddr,
    /// The address at which other nodes reach this node, if different from `listen`.
    pub advertise: Option<SocketAddr>,
    /// Addresses or host names of other nodes, each with a port. The list may include this node.
    pub seeds: Vec<String>,
    /// The name of this node; by default its address.
    pub name: Option<String>,
    /// The shared secret of the cluster. Without it, the node must listen on a loopback address.
    pub key: Option<String>,
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

/// Omits the shared secret from the debug output.
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
    /// The address to listen on is reachable from other machines, and there is no key to authenticate peers.
    #[error("other machines can reach {0}, so the nodes need a common cluster key")]
    NoKey(SocketAddr),
    /// The key is too short.
    #[error(transparent)]
    Key(#[from] ShortKeyError),
    /// The advertised address cannot be determined.
    #[error(transparent)]
    Address(#[from] AdvertisedAddressError),
    /// The node cannot join the cluster.
    #[error(transparent)]
    Join(#[from] JoinError),
}

/// A handle to a running node.
#[derive(Debug)]
pub(crate) struct NodeHandle {
    leave: mpsc::Sender<LeaveRequest>,
    /// Whether the node leaves the cluster, so that its tasks end.
    is_leaving: AtomicBool,
    status: Arc<status::LatestClusterStatus>,
    /// The tasks without which the node cannot replicate its counters. They cannot be started again after a panic.
    tasks: [(&'static str, AbortHandle); 2],
}

impl NodeHandle {
    fn ended_task(&self) -> Option<&'static str> {
        if self.is_leaving.load(Ordering::Relaxed) {
            return None;
        }
        self.tasks.iter().find(|(_, task)| task.is_finished()).map(|(name, _)| *name)
    }
}

impl ClusterStore<Arc<DriftCorrectedClock>> {
    /// Starts a node in the current Tokio runtime. The node discovers other nodes in the background.
    ///
    /// # Errors
    /// Returns an error if the node cannot listen, needs a key, or has no address that other nodes can reach.
    pub async fn start(settings: Settings) -> Result<Self, StartError> {
        let key = read_or_default_cluster_key(&settings)?;
        let listen_error = |source| StartError::Listen { address: settings.listen, source };
        let sockets = Sockets::bind(settings.listen).await.map_err(listen_error)?;
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
        let counters = Arc::new(new_counters(&settings, &key, local_node.incarnation, &clock));
        let has_other_seeds = membership::has_other_seeds(&settings.seeds, advertise).await;
        let engine = ReplicationEngine::new(
            local_node.clone(),
            engine_settings(&settings),
            has_other_seeds,
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
        .map_err(listen_error)?;
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
        let status = Arc::new(status::LatestClusterStatus::default());
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
        // The first status must be available before the task has run.
        driver.update_status();
        let gossip_task = driver.membership.watch_task();
        let event_loop = tokio::spawn(driver.run_event_loop(leave_requests)).abort_handle();
        let store = Self::new(clock, counters, replication, settings.sync_wait);
        Ok(store.with_node(NodeHandle {
            leave,
            is_leaving: AtomicBool::new(false),
            status,
            tasks: [("cluster replication", event_loop), ("cluster membership", gossip_task)],
        }))
    }
}

impl<C: Clock> ClusterStore<C> {
    /// Returns the status of this node and its cluster, at most about half a second old. Returns `None` if the store
    /// was created without a node.
    pub fn status(&self) -> Option<Arc<ClusterStatus>> {
        self.node().map(|node| node.status.load())
    }

    /// Returns the name of a background task that has ended although the node has not left the cluster, most likely by a
    /// panic. The node then decides alone. Returns `None` if there is none.
    pub fn ended_task(&self) -> Option<&'static str> {
        self.node().and_then(NodeHandle::ended_task)
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
            // A node whose task has ended has already left.
            if node.leave.send(done).await.is_ok() {
                let _ = has_left.await;
            }
        };
        let _ = timeout(max_wait, leave).await;
    }
}

fn read_or_default_cluster_key(settings: &Settings) -> Result<ClusterKey, StartError> {
    match &settings.key {
        Some(text) => Ok(ClusterKey::new(text)?),
        None if settings.listen.ip().is_loopback() => Ok(ClusterKey::for_loopback()),
        None => Err(StartError::NoKey(settings.listen)),
    }
}

fn new_counters(
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

#[cfg(test)]
mod tests {
    use tokio::task::yield_now;

    use super::*;

    /// Settings of a node on a free port, which finds no other node.
    fn settings() -> Settings {
        Settings {
            listen: ([127, 0, 0, 1], 0).into(),
            advertise: None,
            seeds: Vec::new(),
            name: None,
            key: None,
            sync_interval: Duration::from_millis(50),
            sync_wait: Duration::ZERO,
            max_clock_skew: Duration::from_secs(1),
            max_keys: 10,
            max_memory: 1 << 20,
        }
    }

    #[tokio::test]
    async fn ended_tasks_are_reported_until_node_leaves() {
        for (index, name) in ["cluster replication", "cluster membership"].into_iter().enumerate() {
            let store = ClusterStore::start(settings()).await.unwrap();
            assert_eq!(store.ended_task(), None);
            store.node().unwrap().tasks[index].1.abort();
            while store.ended_task().is_none() {
                yield_now().await;
            }
            assert_eq!(store.ended_task(), Some(name));
            store.leave(Duration::ZERO).await;
            assert_eq!(store.ended_task(), None);
        }
    }
}
