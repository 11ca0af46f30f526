//! Membership: nodes discover each other through seed addresses and gossip over UDP, and detect nodes that have become
//! silent.
//!
//! `chitchat` provides gossip and failure detection; its datagrams are authenticated. This module distinguishes three
//! kinds of nodes from which heartbeats no longer arrive. A node has *left* if it announced its departure. A node was
//! *replaced* if a newer incarnation has the same name. Any other node is *silent*, and may still admit requests.

mod address;
mod gossip;
#[cfg(test)]
mod tests;
mod view;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, spawn_chitchat};
use slidegate::Clock;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};
use tokio::time::sleep;

use crate::pn_counter::Incarnation;
use crate::seal::{ClusterKey, DatagramOpener, DatagramSealer, MAX_NAME_BYTES, RejectCounters};

pub use address::{AdvertisedAddressError, Sockets, has_other_seeds, resolve_advertised};
pub use gossip::GossipTraffic;
pub use view::{Member, MembershipView};

/// Cluster name for `chitchat`, identical for all clusters. Clusters are separated by their keys.
const CHITCHAT_CLUSTER_ID: &str = "slidegate";

/// Key in the gossip state of a node. A node sets it to announce that it leaves the cluster.
const LEAVING_KEY_IN_GOSSIP_STATE: &str = "leaving";

/// Interval between gossip rounds.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(200);

/// Number of gossip rounds for which a leaving node keeps running after it has announced its departure.
const GOSSIP_ROUNDS_AFTER_DEPARTURE_ANNOUNCEMENT: u32 = 3;

/// Time for which a dead node is remembered. The state of a dead node is gossiped for half of this time. Nodes that are
/// disconnected for longer find each other again through their seeds. With a longer time, the old incarnations of a
/// node that restarts repeatedly could fill the datagrams.
const DEAD_NODE_RETENTION_TIME: Duration = Duration::from_secs(600);

/// Settings of the membership of one node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The name of this node, unique in the cluster.
    pub name: String,
    /// A number that is larger after each restart of the node: the wall clock time of its start, in microseconds.
    pub generation: u64,
    /// The address at which other nodes reach this node for gossip and replication: see [`resolve_advertised`].
    pub advertise: SocketAddr,
    /// Addresses of other nodes, as `host:port`; may include this node. Names are resolved again every minute, and
    /// every few seconds while no other node is found.
    pub seeds: Vec<String>,
    /// Maximum difference between the clocks of two nodes.
    pub max_clock_skew: Duration,
}

/// An error that prevents a node from joining a cluster.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// The length of the node name is invalid. The length is limited, since the name is part of every datagram.
    #[error("node name has {0} bytes; use 1 to {MAX_NAME_BYTES}")]
    Name(usize),
    /// The gossip task could not start.
    #[error("cannot start the gossip task, which detects other nodes: {0}")]
    Gossip(String),
}

/// Returns the incarnation of a node: its generation, followed by 12 bits of SHA-256 of its name.
///
/// Each node can thus compute the incarnation of any other node. A restarted node has a larger incarnation, and two
/// nodes that start in the same microsecond differ by their names.
pub fn incarnation(name: &str, generation: u64) -> Incarnation {
    let hash = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let name_hash =
        hash.as_ref().iter().take(2).fold(0, |number, byte| number << 8 | u64::from(*byte));
    Incarnation(generation << 12 | name_hash >> 4)
}

/// The membership of this node in its cluster.
///
/// If it is dropped without [`leave`](Self::leave), the other nodes consider this node silent, because it has not
/// announced its departure.
#[derive(Debug)]
pub struct Membership {
    tasks: Option<GossipTasks>,
    watch_task: AbortHandle,
    incarnation: Incarnation,
    view: watch::Receiver<MembershipView>,
    traffic: Arc<GossipTraffic>,
}

/// The background tasks of a membership, aborted on drop.
struct GossipTasks {
    gossip: Arc<ChitchatHandle>,
    watch_task: JoinHandle<()>,
    seed_task: JoinHandle<()>,
}

impl std::fmt::Debug for GossipTasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GossipTasks").finish_non_exhaustive()
    }
}

impl Drop for GossipTasks {
    fn drop(&mut self) {
        self.watch_task.abort();
        self.seed_task.abort();
        self.gossip.abort();
    }
}

impl Membership {
    /// Starts to gossip over `socket` in Tokio tasks. `clock` is the wall clock, which timestamps the authenticated
    /// datagrams.
    ///
    /// # Errors
    /// Returns an error if the name is invalid or the gossip task does not start.
    pub async fn join(
        settings: Settings,
        socket: UdpSocket,
        key: &ClusterKey,
        clock: impl Clock,
        reject_counters: Arc<RejectCounters>,
    ) -> Result<Self, JoinError> {
        let length = settings.name.len();
        if length == 0 || length > MAX_NAME_BYTES {
            return Err(JoinError::Name(length));
        }
        let own = incarnation(&settings.name, settings.generation);
        let traffic = Arc::new(GossipTraffic::default());
        let sealed = gossip::AuthenticatedUdpSocket {
            socket,
            sealer: DatagramSealer::new(key, own),
            opener: DatagramOpener::new(key, own, settings.max_clock_skew),
            clock: Arc::new(clock),
            reject_counters,
            traffic: Arc::clone(&traffic),
        };
        let id = ChitchatId::new(settings.name.as_str(), settings.generation, settings.advertise);
        let chitchat_config = chitchat_config(id, settings.seeds.clone());
        let transport = gossip::SingleSocketTransport::new(sealed);
        let gossip = spawn_chitchat(chitchat_config, Vec::new(), &transport).await;
        let gossip = Arc::new(gossip.map_err(|error| JoinError::Gossip(error.to_string()))?);
        let (watch_task, view) = view::watch_members(&gossip).await;
        let seed_task = view::resolve_seeds_while_alone(
            Arc::clone(&gossip),
            settings.seeds,
            settings.advertise,
            view.clone(),
        );
        Ok(Self {
            watch_task: watch_task.abort_handle(),
            tasks: Some(GossipTasks { gossip, watch_task, seed_task }),
            incarnation: own,
            view,
            traffic,
        })
    }

    /// Returns the incarnation of this node.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Returns a watch receiver for the lists of other nodes that are live or have left. The receiver closes only when
    /// the gossip task fails.
    pub fn view(&self) -> watch::Receiver<MembershipView> {
        self.view.clone()
    }

    /// Returns the task that updates the view. It ends only with the membership, or when the gossip task fails.
    pub(crate) fn watch_task(&self) -> AbortHandle {
        self.watch_task.clone()
    }

    /// Returns the gossip traffic so far.
    pub fn traffic(&self) -> &GossipTraffic {
        &self.traffic
    }

    /// Announces that this node leaves, keeps gossiping for a few rounds to spread the announcement, and stops.
    pub async fn leave(mut self) {
        let Some(tasks) = self.tasks.take() else { return };
        let announce_leave = |chitchat: &mut chitchat::Chitchat| {
            chitchat.self_node_state().set(LEAVING_KEY_IN_GOSSIP_STATE, "yes");
            let live = chitchat.live_nodes().filter(|node| *node != chitchat.self_chitchat_id());
            live.map(|node| node.gossip_advertise_addr).collect::<Vec<_>>()
        };
        for live in tasks.gossip.with_chitchat(announce_leave).await {
            // Fails only if the gossip task has ended.
            let _ = tasks.gossip.gossip(live);
        }
        sleep(GOSSIP_INTERVAL * GOSSIP_ROUNDS_AFTER_DEPARTURE_ANNOUNCEMENT).await;
    }
}

fn chitchat_config(chitchat_id: ChitchatId, seed_nodes: Vec<String>) -> ChitchatConfig {
    ChitchatConfig {
        listen_addr: chitchat_id.gossip_advertise_addr,
        chitchat_id,
        cluster_id: CHITCHAT_CLUSTER_ID.to_owned(),
        gossip_interval: GOSSIP_INTERVAL,
        seed_nodes,
        failure_detector_config: failure_detector_config(),
        marked_for_deletion_grace_period: DEAD_NODE_RETENTION_TIME,
        catchup_callback: None,
        extra_liveness_predicate: None,
    }
}

/// Returns the settings of the failure detector. A node is silent when no heartbeat has arrived for ten times the mean
/// interval between its heartbeats. The mean covers the last five intervals and five assumed intervals of 0.4 s, so it
/// is between 0.2 s and, with high packet loss, 0.7 s. A node that stops is thus silent after typically 2 to 4 s and at
/// most 7 s, regardless of the cluster size.
fn failure_detector_config() -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: 10.0,
        sampling_window_size: 5,
        max_interval: Duration::from_secs(1),
        initial_interval: Duration::from_millis(400),
        dead_node_grace_period: DEAD_NODE_RETENTION_TIME,
    }
}
