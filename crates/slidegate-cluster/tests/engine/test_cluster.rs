//! A cluster of replication engines and the frames in flight between them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate::Timestamp;
use slidegate::store::OnPartition;
use slidegate_cluster::membership::MembershipView;
use slidegate_cluster::message::{self, Message};
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::progress::SharedReplicationProgress;
use slidegate_cluster::replicated_counters::FlushSeq;
use slidegate_cluster::replication::{
    EngineStatus, OutboundFrame, PeerStatus, ReplicationEngine, Settings,
};

use crate::engine::map_counters::{BUCKET_LAYOUT, MapCounters};

/// The replication interval.
pub const REPLICATION_INTERVAL: Duration = Duration::from_millis(250);

/// A frame in flight.
#[derive(Clone, Debug)]
pub struct InFlightFrame {
    pub from: u64,
    pub to: u64,
    pub bytes: Bytes,
}

impl InFlightFrame {
    /// Returns the decoded message.
    pub fn message(&self) -> Message {
        message::decode(self.bytes.clone()).unwrap().message.unwrap()
    }

    /// Returns `true` if the frame is an acknowledgement.
    pub fn is_ack(&self) -> bool {
        matches!(self.message(), Message::Ack(_))
    }
}

/// A node. By default, its name is the letter of its number: `a` for 1.
pub struct TestNode {
    pub name: String,
    pub engine: ReplicationEngine,
    pub counters: MapCounters,
    pub progress: Arc<SharedReplicationProgress>,
}

/// Nodes by incarnation number, a manual clock, and the frames in flight in sending order.
pub struct TestCluster {
    pub now: Timestamp,
    pub nodes: BTreeMap<u64, TestNode>,
    pub network: Vec<InFlightFrame>,
    pub settings: Settings,
}

/// Returns the identity of a node without an address.
pub fn node_info(incarnation: u64, name: &str) -> NodeInfo {
    NodeInfo { incarnation: Incarnation(incarnation), name: name.into(), address: None }
}

impl TestCluster {
    /// Returns a cluster without nodes.
    pub fn new() -> Self {
        Self {
            now: Timestamp::from_secs(1_700_000_001),
            nodes: BTreeMap::new(),
            network: Vec::new(),
            settings: Settings { interval: REPLICATION_INTERVAL, ..Settings::default() },
        }
    }

    /// Returns a cluster of settled nodes with identical counters: node 1 is named `a`, node 2 `b`.
    pub fn with_nodes(nodes: u64) -> Self {
        let mut cluster = Self::new();
        for incarnation in 1..=nodes {
            cluster.start_node(incarnation, node_name(incarnation));
            cluster.set_all_live();
            cluster.synchronize();
        }
        cluster
    }

    /// Starts a node. If other nodes are running, the new node waits for one of them before it starts a new cluster.
    pub fn start_node(&mut self, incarnation: u64, name: &str) {
        let expects_peers = !self.nodes.is_empty();
        let progress = Arc::<SharedReplicationProgress>::default();
        let settings = self.settings.clone();
        let local_node = node_info(incarnation, name);
        let engine = ReplicationEngine::new(
            local_node,
            settings,
            expects_peers,
            Arc::clone(&progress),
            self.now,
        );
        let counters = MapCounters::new(Incarnation(incarnation));
        self.nodes.insert(incarnation, TestNode { name: name.into(), engine, counters, progress });
    }

    /// Stops a node without notice and drops all frames to it.
    pub fn kill_node(&mut self, incarnation: u64) {
        self.nodes.remove(&incarnation);
        self.network.retain(|frame| frame.to != incarnation);
    }

    /// Runs an action on a node and adds the frames that it returns to the network.
    pub fn run_on(
        &mut self,
        node: u64,
        action: impl FnOnce(&mut ReplicationEngine, &MapCounters, Timestamp) -> Vec<OutboundFrame>,
    ) {
        let TestNode { engine, counters, .. } = self.nodes.get_mut(&node).unwrap();
        let frames = action(engine, counters, self.now);
        let frames =
            frames.into_iter().map(|(to, bytes)| InFlightFrame { from: node, to: to.0, bytes });
        self.network.extend(frames);
    }

    /// Reports to a node that exactly `peers` are alive.
    pub fn set_live_peers(&mut self, node: u64, peers: &[u64]) {
        let view = MembershipView { live: self.node_infos(peers), ..MembershipView::default() };
        self.set_view(node, &view);
    }

    /// Returns the identities of nodes.
    pub fn node_infos(&self, nodes: &[u64]) -> Vec<NodeInfo> {
        let node_info = |node: &u64| {
            let name = self.nodes.get(node).map_or(node_name(*node), |node| &node.name);
            node_info(*node, name)
        };
        nodes.iter().map(node_info).collect()
    }

    /// Reports a view of the membership to a node.
    pub fn set_view(&mut self, node: u64, view: &MembershipView) {
        self.run_on(node, |engine, counters, now| {
            engine.on_membership_changed(counters, view, now)
        });
    }

    /// Reports to each node that all other nodes are alive.
    pub fn set_all_live(&mut self) {
        let all: Vec<u64> = self.nodes.keys().copied().collect();
        for node in &all {
            let others: Vec<u64> = all.iter().copied().filter(|other| other != node).collect();
            self.set_live_peers(*node, &others);
        }
    }

    /// Reports to a node that the peer `left` has left and that exactly `peers` are alive.
    pub fn set_departed_peer(&mut self, node: u64, left: u64, peers: &[u64]) {
        let view = MembershipView {
            live: self.node_infos(peers),
            left: vec![Incarnation(left)],
            ..MembershipView::default()
        };
        self.set_view(node, &view);
    }

    /// Runs the tick of one node.
    pub fn tick(&mut self, node: u64) {
        self.run_on(node, |engine, counters, now| engine.tick(counters, now));
    }

    /// Advances the clock by one interval and ticks all nodes.
    pub fn run_interval(&mut self) {
        self.now = self.now.after(REPLICATION_INTERVAL);
        let all: Vec<u64> = self.nodes.keys().copied().collect();
        all.into_iter().for_each(|node| self.tick(node));
    }

    /// Charges one unit on a node.
    pub fn charge(&mut self, node: u64, key: u64) {
        let now = self.now;
        self.nodes[&node].counters.charge(key, now);
    }

    /// Delivers one frame, if the receiver is running.
    pub fn deliver(&mut self, frame: &InFlightFrame) {
        if self.nodes.contains_key(&frame.to) {
            self.receive(frame.to, frame.from, &frame.bytes);
        }
    }

    /// Passes a frame to a node. The frame may be invalid.
    pub fn receive(&mut self, node: u64, from: u64, frame: &Bytes) {
        let from = Incarnation(from);
        self.run_on(node, |engine, counters, now| match message::decode(frame.clone()) {
            Ok(received) => engine.on_message(counters, from, received, frame.len(), now),
            Err(_) => {
                engine.on_invalid_frame(from);
                Vec::new()
            }
        });
    }

    /// Delivers all frames in flight and the frames sent in response, until none are left. Drops frames for which
    /// `is_lost` returns `true`.
    pub fn deliver_except(&mut self, is_lost: impl Fn(&InFlightFrame) -> bool) {
        for _ in 0..10_000 {
            if self.network.is_empty() {
                return;
            }
            let frame = self.network.remove(0);
            if !is_lost(&frame) {
                self.deliver(&frame);
            }
        }
        panic!("10,000 frames delivered, and the nodes still send");
    }

    /// Delivers all frames in flight and the frames sent in response.
    pub fn deliver_all(&mut self) {
        self.deliver_except(|_| false);
    }

    /// Removes the frames for which `is_intercepted` returns `true` from the network, and returns them.
    pub fn intercept(
        &mut self,
        is_intercepted: impl Fn(&InFlightFrame) -> bool,
    ) -> Vec<InFlightFrame> {
        let (intercepted, others) = self.network.drain(..).partition(is_intercepted);
        self.network = others;
        intercepted
    }

    /// Runs four intervals and delivers every frame, so that all connected nodes acknowledge each other.
    pub fn synchronize(&mut self) {
        for _ in 0..4 {
            self.deliver_all();
            self.run_interval();
        }
        self.deliver_all();
    }

    /// Returns the counters of a node.
    pub fn counters(&self, node: u64) -> &MapCounters {
        &self.nodes[&node].counters
    }

    /// Returns the status of the engine of a node.
    pub fn status(&self, node: u64) -> EngineStatus {
        self.nodes[&node].engine.status(self.now)
    }

    /// Returns the status of a peer, as known to a node; `None` if it is not a member.
    pub fn peer_status(&self, node: u64, peer: u64) -> Option<PeerStatus> {
        let members = self.status(node).members;
        members.into_iter().find(|member| member.node.incarnation == Incarnation(peer))
    }

    /// Returns the last flush of a node that all required members have acknowledged.
    pub fn acknowledged_flush(&self, node: u64) -> FlushSeq {
        let progress = self.nodes[&node].progress.load();
        progress.acknowledged_flush(
            self.now,
            BUCKET_LAYOUT.unit_lifetime_us(),
            OnPartition::Bounded,
        )
    }

    /// Returns `true` if all nodes have identical counters.
    pub fn is_consistent(&self) -> bool {
        let mut all = self.nodes.values().map(|node| node.counters.all());
        let first = all.next().unwrap();
        all.all(|counters| counters == first)
    }
}

/// Returns the default name of a node.
pub fn node_name(incarnation: u64) -> &'static str {
    ["a", "b", "c", "d", "e", "f", "g"][(incarnation - 1) as usize % 7]
}
