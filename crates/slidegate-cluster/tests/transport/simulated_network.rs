//! Transport within one process over a simulated network that drops, duplicates, delays and reorders frames, and can be
//! partitioned.
//!
//! Behavior is determined by the seed and uses Tokio's clock, which tests may pause.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{LinkTraffic, MAX_FRAME_BYTES, Transport, TransportEvent};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

/// Maximum number of frames in transit to one node. Further frames are dropped.
pub const MAX_IN_TRANSIT: usize = 1_024;

/// Faults of the simulated network.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// Probability that a frame is lost, from 0 to 1.
    pub loss: f64,
    /// Probability that a frame that is not lost is duplicated, from 0 to 1.
    pub duplication: f64,
    /// Minimum delay of a frame.
    pub min_delay: Duration,
    /// Maximum delay of a frame. If it is larger than the minimum, frames are reordered.
    pub max_delay: Duration,
}

/// A simulated network within this process. Clones share the same network.
#[derive(Clone, Debug)]
pub struct ChannelNetwork(Arc<Mutex<ChannelNetworkState>>);

#[derive(Debug)]
struct ChannelNetworkState {
    rng: fastrand::Rng,
    faults: NetworkFaults,
    nodes: BTreeMap<Incarnation, ChannelNode>,
    /// The partition of each node while the network is partitioned. Unlisted nodes share one partition.
    partitions: BTreeMap<Incarnation, usize>,
    join_count: u64,
    sent: u64,
}

/// A node of the network.
#[derive(Debug)]
struct ChannelNode {
    info: NodeInfo,
    /// Number that is unique for each call of [`ChannelNetwork::join`]. It distinguishes this node from a replaced node
    /// with the same incarnation.
    join_number: u64,
    /// The peers of the node, and whether their links were last reported as up.
    peers: BTreeMap<Incarnation, bool>,
    events: VecDeque<TransportEvent>,
    in_transit: BinaryHeap<Reverse<InTransitFrame>>,
    traffic: BTreeMap<Incarnation, LinkTraffic>,
    changed: Arc<Notify>,
}

/// A frame in transit, ordered by arrival time. Frames with the same arrival time keep the order in which they were
/// sent.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InTransitFrame {
    arrives_at: Instant,
    send_number: u64,
    from: Incarnation,
    frame: Bytes,
}

impl ChannelNetwork {
    /// Creates a network without nodes. The seed determines which frames are lost, duplicated and delayed.
    pub fn new(seed: u64, faults: NetworkFaults) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        let (nodes, partitions) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(ChannelNetworkState {
            rng,
            faults,
            nodes,
            partitions,
            join_count: 0,
            sent: 0,
        })))
    }

    /// Adds a node, which is removed when the returned transport is dropped. Replaces a node with the same incarnation.
    /// Other nodes find it by its address.
    pub fn join(&self, info: NodeInfo) -> ChannelTransport {
        let mut state = self.lock_state();
        state.join_count += 1;
        let changed = Arc::new(Notify::new());
        let (join_number, local) = (state.join_count, info.incarnation);
        let node = ChannelNode {
            info,
            join_number,
            peers: BTreeMap::new(),
            events: VecDeque::new(),
            in_transit: BinaryHeap::new(),
            traffic: BTreeMap::new(),
            changed: Arc::clone(&changed),
        };
        state.nodes.insert(local, node);
        state.update_links_of_all_nodes();
        drop(state);
        ChannelTransport { network: self.clone(), local, join_number, changed }
    }

    /// Changes the faults for frames sent from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.lock_state().faults = faults;
    }

    /// Partitions the network: nodes in different partitions cannot reach each other, and frames in transit between
    /// them are lost. Unlisted nodes share one partition.
    pub fn partition(&self, partitions: &[&[Incarnation]]) {
        let mut state = self.lock_state();
        let indexed = partitions.iter().enumerate();
        state.partitions = indexed
            .flat_map(|(partition, nodes)| nodes.iter().map(move |node| (*node, partition)))
            .collect();
        state.update_links_of_all_nodes();
    }

    /// Removes all partitions.
    pub fn heal(&self) {
        self.partition(&[]);
    }

    fn lock_state(&self) -> MutexGuard<'_, ChannelNetworkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChannelNetworkState {
    fn is_link_up_between(&self, one: Incarnation, other: Incarnation) -> bool {
        self.nodes.contains_key(&other)
            && one != other
            && self.partitions.get(&one) == self.partitions.get(&other)
    }

    /// Adds the events of changed links to the event queue of every node.
    fn update_links_of_all_nodes(&mut self) {
        let local: Vec<Incarnation> = self.nodes.keys().copied().collect();
        local.into_iter().for_each(|node| self.update_links_of_node(node));
    }

    fn update_links_of_node(&mut self, local: Incarnation) {
        let peers = self.nodes.get(&local).map(|node| node.peers.clone()).unwrap_or_default();
        let now = peers
            .into_iter()
            .map(|(peer, was_up)| (peer, was_up, self.is_link_up_between(local, peer)));
        let changed: Vec<_> = now.filter(|(_, was_up, is_up)| was_up != is_up).collect();
        let Some(node) = self.nodes.get_mut(&local) else { return };
        let info = node.info.clone();
        for (peer, _, is_up) in &changed {
            node.peers.insert(*peer, *is_up);
            node.events.push_back(if *is_up {
                TransportEvent::LinkUp(*peer)
            } else {
                TransportEvent::LinkDown(*peer)
            });
        }
        node.changed.notify_one();
        for (peer, _, _) in changed.into_iter().filter(|(_, _, is_up)| *is_up) {
            self.push_event(peer, TransportEvent::NodeIntroduced(info.clone()));
        }
    }

    fn push_event(&mut self, local: Incarnation, event: TransportEvent) {
        let Some(node) = self.nodes.get_mut(&local) else { return };
        node.events.push_back(event);
        node.changed.notify_one();
    }

    fn introduce_local_node(&mut self, local: Incarnation, address: SocketAddr) {
        let mut nodes = self.nodes.values();
        let Some(other) = nodes.find(|node| node.info.address == Some(address)) else { return };
        let other = other.info.clone();
        if self.is_link_up_between(local, other.incarnation)
            && let Some(node) = self.nodes.get(&local)
        {
            let met = TransportEvent::NodeIntroduced(node.info.clone());
            self.push_event(other.incarnation, met);
            self.push_event(local, TransportEvent::NodeIntroduced(other));
        }
    }

    fn send(&mut self, from: Incarnation, to: Incarnation, frame: &Bytes) {
        let Some(sender) = self.nodes.get_mut(&from) else { return };
        let Some(up) = sender.peers.get(&to) else { return };
        let traffic = sender.traffic.entry(to).or_default();
        if !up || frame.len() > MAX_FRAME_BYTES {
            traffic.dropped_frames += 1;
            return;
        }
        traffic.sent_frames += 1;
        traffic.sent_bytes += frame.len() as u64;
        if self.rng.f64() < self.faults.loss {
            return;
        }
        let copies = if self.rng.f64() < self.faults.duplication { 2 } else { 1 };
        (0..copies).for_each(|_| self.enqueue_in_transit_frame(from, to, frame.clone()));
    }

    fn enqueue_in_transit_frame(&mut self, from: Incarnation, to: Incarnation, frame: Bytes) {
        self.sent += 1;
        let NetworkFaults { min_delay, max_delay, .. } = self.faults;
        let extra_delay = max_delay.saturating_sub(min_delay).mul_f64(self.rng.f64());
        let in_transit = InTransitFrame {
            arrives_at: Instant::now() + min_delay + extra_delay,
            send_number: self.sent,
            from,
            frame,
        };
        let Some(node) =
            self.nodes.get_mut(&to).filter(|node| node.in_transit.len() < MAX_IN_TRANSIT)
        else {
            return;
        };
        node.in_transit.push(Reverse(in_transit));
        node.changed.notify_one();
    }

    /// Returns the next event of a node. If there is no event yet, the error contains the time at which the next frame
    /// arrives, or `None` if no frame is in transit.
    fn next(&mut self, local: Incarnation) -> Result<TransportEvent, Option<Instant>> {
        loop {
            let node = self.nodes.get_mut(&local).ok_or(None)?;
            if let Some(event) = node.events.pop_front() {
                return Ok(event);
            }
            let Reverse(first) = node.in_transit.peek().ok_or(None)?;
            if first.arrives_at > Instant::now() {
                return Err(Some(first.arrives_at));
            }
            let Reverse(InTransitFrame { from, frame, .. }) = node.in_transit.pop().ok_or(None)?;
            if self.partitions.get(&local) == self.partitions.get(&from) {
                self.count_received_frame(local, from, &frame);
                return Ok(TransportEvent::Frame { from, frame });
            }
        }
    }

    fn count_received_frame(&mut self, local: Incarnation, from: Incarnation, frame: &Bytes) {
        let Some(node) = self.nodes.get_mut(&local) else { return };
        let traffic = node.traffic.entry(from).or_default();
        traffic.received_frames += 1;
        traffic.received_bytes += frame.len() as u64;
    }
}

/// The transport of one node of a [`ChannelNetwork`].
#[derive(Debug)]
pub struct ChannelTransport {
    network: ChannelNetwork,
    local: Incarnation,
    join_number: u64,
    changed: Arc<Notify>,
}

impl ChannelTransport {
    /// Runs an action on the network and returns its result. If another transport has joined with the same incarnation,
    /// does nothing and returns the default value.
    fn run_on_network_unless_replaced<T: Default>(
        &self,
        action: impl FnOnce(&mut ChannelNetworkState) -> T,
    ) -> T {
        let mut state = self.network.lock_state();
        let is_current =
            state.nodes.get(&self.local).is_some_and(|node| node.join_number == self.join_number);
        if is_current { action(&mut state) } else { T::default() }
    }
}

impl Transport for ChannelTransport {
    fn set_peers(&mut self, peers: &[NodeInfo]) {
        self.run_on_network_unless_replaced(|state| {
            let Some(node) = state.nodes.get_mut(&self.local) else { return };
            let wanted = peers
                .iter()
                .filter(|peer| peer.address.is_some())
                .map(|peer| peer.incarnation)
                .filter(|peer| *peer != self.local);
            node.peers = wanted
                .map(|peer| (peer, node.peers.get(&peer).copied().unwrap_or_default()))
                .collect();
            let ChannelNode { peers, events, traffic, .. } = node;
            traffic.retain(|peer, _| peers.contains_key(peer));
            events.retain(|event| match event {
                TransportEvent::LinkUp(peer) | TransportEvent::LinkDown(peer) => {
                    peers.contains_key(peer)
                }
                TransportEvent::Frame { .. } | TransportEvent::NodeIntroduced(_) => true,
            });
            state.update_links_of_node(self.local);
        });
    }

    fn introduce_local_node(&mut self, address: SocketAddr) {
        self.run_on_network_unless_replaced(|state| {
            state.introduce_local_node(self.local, address)
        });
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        self.run_on_network_unless_replaced(|state| state.send(self.local, to, &frame));
    }

    async fn next(&mut self) -> TransportEvent {
        loop {
            let changed = Arc::clone(&self.changed);
            let polled = self.run_on_network_unless_replaced(|state| Some(state.next(self.local)));
            match polled.unwrap_or(Err(None)) {
                Ok(event) => return event,
                Err(Some(next_arrival)) => tokio::select! {
                    () = changed.notified() => {}
                    () = sleep_until(next_arrival) => {}
                },
                Err(None) => changed.notified().await,
            }
        }
    }

    fn traffic(&self) -> Vec<(Incarnation, LinkTraffic)> {
        self.run_on_network_unless_replaced(|state| {
            let node = state.nodes.get(&self.local);
            node.map(|node| node.traffic.clone().into_iter().collect()).unwrap_or_default()
        })
    }
}

/// Removes the node from the network. The other nodes receive an event that their link to this node is down.
impl Drop for ChannelTransport {
    fn drop(&mut self) {
        self.run_on_network_unless_replaced(|state| {
            state.nodes.remove(&self.local);
            state.update_links_of_all_nodes();
        });
    }
}
