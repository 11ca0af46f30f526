//! Who is there: nodes find each other by seeds, gossip over UDP, and notice when one falls silent.
//!
//! The gossip and the detection are `chitchat`'s; its datagrams are sealed. What it is not able to tell is told here:
//! whether a node that is not heard of any more has *left* by its own word, was *replaced* by a newer life of the same
//! name, or is *silent*. Of a silent one nobody knows whether it still allows.

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
use tokio::task::JoinHandle;
use tokio::time::sleep;

use crate::pn_counter::Incarnation;
use crate::seal::{ClusterKey, DatagramOpener, DatagramSealer, MAX_NAME_BYTES, RejectCounters};

pub use address::{AddressError, Sockets, has_other_seeds, resolve_advertised};
pub use gossip::GossipTraffic;
pub use view::{Member, MembershipView};

/// What nodes of one cluster call it. Clusters are told apart by their keys.
const CLUSTER_ID: &str = "slidegate";

/// The key under which a node says that it leaves.
const LEAVING_KEY: &str = "leaving";

/// How often a node gossips.
const GOSSIP_INTERVAL: Duration = Duration::from_millis(200);

/// Rounds of gossip that a node stays for after it has said that it leaves.
const LEAVE_GOSSIP_ROUNDS: u32 = 3;

/// So long a node that is not heard of is remembered, and half as long others are told of it. Nodes that are cut off
/// for longer find each other again by their seeds. More would let a node that starts again and again fill datagrams.
const DEAD_NODE_RETENTION: Duration = Duration::from_secs(600);

/// What a node says of itself, and whom it asks first.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its name: no other node of the cluster may have it.
    pub name: String,
    /// Larger at each start: the wall clock's microseconds.
    pub generation: u64,
    /// Where others reach it, for gossip and for counts: see [`resolve_advertised`].
    pub advertise: SocketAddr,
    /// `host:port` each: others that may be there. The node itself may be among them. Names are resolved again every
    /// minute, and every few seconds while nobody else is found.
    pub seeds: Vec<String>,
    /// How far the clocks of nodes may be apart.
    pub max_clock_skew: Duration,
}

/// Why a node cannot take part.
#[derive(Debug, thiserror::Error)]
pub enum JoinError {
    /// Names are sent in every datagram.
    #[error("the node's name has {0} bytes: it may have 1 to {MAX_NAME_BYTES}")]
    Name(usize),
    /// The gossip did not start.
    #[error("the gossip of the cluster cannot start: {0}")]
    Gossip(String),
}

/// The incarnation of a node: its generation, and below it 12 bits of SHA-256 over its name. So every node knows it of
/// every other without being told, a later life of a name has a larger one, and two nodes that start at the same
/// microsecond differ by their names.
pub fn incarnation(name: &str, generation: u64) -> Incarnation {
    let hash = ring::digest::digest(&ring::digest::SHA256, name.as_bytes());
    let low = hash.as_ref().iter().take(2).fold(0, |number, byte| number << 8 | u64::from(*byte));
    Incarnation(generation << 12 | low >> 4)
}

/// This node's place among the others. Dropping it falls silent; [`leave`](Self::leave) says so first.
#[derive(Debug)]
pub struct Membership {
    handle: Option<GossipTasks>,
    incarnation: Incarnation,
    view: watch::Receiver<MembershipView>,
    traffic: Arc<GossipTraffic>,
}

/// What runs, until it is dropped.
struct GossipTasks {
    gossip: Arc<ChitchatHandle>,
    watch_task: JoinHandle<()>,
    seed_task: JoinHandle<()>,
}

impl std::fmt::Debug for GossipTasks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").finish_non_exhaustive()
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
    /// Begins to gossip over this socket, in tasks of tokio. `clock` is the wall clock, by which seals are dated.
    ///
    /// # Errors
    /// If the name is none, or the gossip does not start.
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
        let sealed = gossip::SealedSocket {
            socket,
            sealer: DatagramSealer::new(key, own),
            opener: DatagramOpener::new(key, own, settings.max_clock_skew),
            clock: Arc::new(clock),
            reject_counters,
            traffic: Arc::clone(&traffic),
        };
        let id = ChitchatId::new(settings.name.as_str(), settings.generation, settings.advertise);
        let config = config(id, settings.seeds.clone());
        let transport = gossip::OneShotTransport::new(sealed);
        let gossip = spawn_chitchat(config, Vec::new(), &transport).await;
        let gossip = Arc::new(gossip.map_err(|error| JoinError::Gossip(error.to_string()))?);
        let (watch_task, view) = view::watch_members(&gossip).await;
        let seed_task = view::resolve_seeds_while_alone(
            Arc::clone(&gossip),
            settings.seeds,
            settings.advertise,
            view.clone(),
        );
        Ok(Self {
            handle: Some(GossipTasks { gossip, watch_task, seed_task }),
            incarnation: own,
            view,
            traffic,
        })
    }

    /// Which life of this node it is.
    pub const fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// The other nodes, as they are and as they change. It ends if the gossip does, which it only does by a fault.
    pub fn view(&self) -> watch::Receiver<MembershipView> {
        self.view.clone()
    }

    /// What was gossiped so far.
    pub fn traffic(&self) -> &GossipTraffic {
        &self.traffic
    }

    /// Tells the others that this node leaves, gives that time to spread, and ends.
    pub async fn leave(mut self) {
        let Some(running) = self.handle.take() else { return };
        let announce_leave = |chitchat: &mut chitchat::Chitchat| {
            chitchat.self_node_state().set(LEAVING_KEY, "yes");
            let live = chitchat.live_nodes().filter(|node| *node != chitchat.self_chitchat_id());
            live.map(|node| node.gossip_advertise_addr).collect::<Vec<_>>()
        };
        for live in running.gossip.with_chitchat(announce_leave).await {
            // It only fails if the gossip has ended.
            let _ = running.gossip.gossip(live);
        }
        sleep(GOSSIP_INTERVAL * LEAVE_GOSSIP_ROUNDS).await;
    }
}

fn config(chitchat_id: ChitchatId, seed_nodes: Vec<String>) -> ChitchatConfig {
    ChitchatConfig {
        listen_addr: chitchat_id.gossip_advertise_addr,
        chitchat_id,
        cluster_id: CLUSTER_ID.to_owned(),
        gossip_interval: GOSSIP_INTERVAL,
        seed_nodes,
        failure_detector_config: detection(),
        marked_for_deletion_grace_period: DEAD_NODE_RETENTION,
        catchup_callback: None,
        extra_liveness_predicate: None,
    }
}

/// A node is silent after ten times the mean of the intervals at which it was heard of. The mean is over the last five
/// and five assumed ones of 0.4 s, so it stays between 0.2 s and, on a network that loses much, 0.7 s: whatever the
/// cluster's size, that is 2 to 4 s as a rule, and 7 s at most.
fn detection() -> FailureDetectorConfig {
    FailureDetectorConfig {
        phi_threshold: 10.0,
        sampling_window_size: 5,
        max_interval: Duration::from_secs(1),
        initial_interval: Duration::from_millis(400),
        dead_node_grace_period: DEAD_NODE_RETENTION,
    }
}
