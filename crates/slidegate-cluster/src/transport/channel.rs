//! Frames within a process, through a network whose weather is made: it loses, repeats, delays and reorders them, and
//! can be cut in parts. By the same seed the same happens, on tokio's time, which tests may pause.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{LinkTraffic, MAX_FRAME, PeerAddress, Transport, TransportEvent};
use crate::pn_counter::Incarnation;

/// Frames that are under way to one node. What is more is dropped.
pub const MAX_IN_TRANSIT: usize = 1_024;

/// What happens to frames.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct NetworkFaults {
    /// The part of the frames that is lost: 0 to 1.
    pub loss: f64,
    /// The part of the others that comes twice: 0 to 1.
    pub duplication: f64,
    /// No frame is quicker.
    pub min_delay: Duration,
    /// No frame is slower. If it is more than the shortest delay, frames overtake each other.
    pub max_delay: Duration,
}

/// A network within this process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    faults: NetworkFaults,
    nodes: BTreeMap<Incarnation, ChannelNode>,
    /// In which part of the network a node is, if it is cut. Those that are not named are in one of their own.
    partitions: BTreeMap<Incarnation, usize>,
    joined: u64,
    sent: u64,
}

/// One that has joined.
#[derive(Debug, Default)]
struct ChannelNode {
    /// No two that joined have the same.
    number: u64,
    /// Its peers, and whether it was told that their links are up.
    peers: BTreeMap<Incarnation, bool>,
    events: VecDeque<TransportEvent>,
    in_transit: BinaryHeap<Reverse<InTransitFrame>>,
    traffic: BTreeMap<Incarnation, LinkTraffic>,
    changed: Arc<Notify>,
}

/// In the order in which frames arrive. No two have the same number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct InTransitFrame {
    arrives_at: Instant,
    number: u64,
    from: Incarnation,
    frame: Bytes,
}

impl Network {
    /// An empty network.
    pub fn new(seed: u64, faults: NetworkFaults) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let (nodes, partitions) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State { random, faults, nodes, partitions, joined: 0, sent: 0 })))
    }

    /// A node joins, and leaves when what is returned is dropped. If one of the same incarnation is there, it is gone.
    pub fn join(&self, incarnation: Incarnation) -> ChannelTransport {
        let mut state = self.state();
        state.joined += 1;
        let changed = Arc::new(Notify::new());
        let number = state.joined;
        let node = ChannelNode { number, changed: Arc::clone(&changed), ..ChannelNode::default() };
        state.nodes.insert(incarnation, node);
        state.update_links();
        drop(state);
        ChannelTransport { network: self.clone(), local: incarnation, number, changed }
    }

    /// Changes the weather of what is sent from now on.
    pub fn set_faults(&self, faults: NetworkFaults) {
        self.state().faults = faults;
    }

    /// Cuts the network: nodes of different parts do not reach each other, and what is under way between them is lost.
    /// Nodes that are in none of them are together.
    pub fn partition(&self, partitions: &[&[Incarnation]]) {
        let mut state = self.state();
        let numbered = partitions.iter().enumerate();
        state.partitions = numbered
            .flat_map(|(partition, nodes)| nodes.iter().map(move |node| (*node, partition)))
            .collect();
        state.update_links();
    }

    /// Makes it one again.
    pub fn heal(&self) {
        self.partition(&[]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_linked(&self, one: Incarnation, other: Incarnation) -> bool {
        self.nodes.contains_key(&other)
            && one != other
            && self.partitions.get(&one) == self.partitions.get(&other)
    }

    /// Tells every node whose links came up or went down.
    fn update_links(&mut self) {
        let local: Vec<Incarnation> = self.nodes.keys().copied().collect();
        local.into_iter().for_each(|node| self.update_links_of(node));
    }

    fn update_links_of(&mut self, local: Incarnation) {
        let peers = self.nodes.get(&local).map(|node| node.peers.clone()).unwrap_or_default();
        let now = peers.into_iter().map(|(peer, was)| (peer, was, self.is_linked(local, peer)));
        let changed: Vec<_> = now.filter(|(_, was, is)| was != is).collect();
        let Some(node) = self.nodes.get_mut(&local) else { return };
        for (peer, _, is) in changed {
            node.peers.insert(peer, is);
            node.events.push_back(if is {
                TransportEvent::LinkUp(peer)
            } else {
                TransportEvent::LinkDown(peer)
            });
        }
        node.changed.notify_one();
    }

    fn send(&mut self, from: Incarnation, to: Incarnation, frame: &Bytes) {
        let Some(sender) = self.nodes.get_mut(&from) else { return };
        let Some(up) = sender.peers.get(&to) else { return };
        let traffic = sender.traffic.entry(to).or_default();
        if !up || frame.len() > MAX_FRAME {
            traffic.dropped_frames += 1;
            return;
        }
        traffic.sent_frames += 1;
        traffic.sent_bytes += frame.len() as u64;
        if self.random.f64() < self.faults.loss {
            return;
        }
        let copies = if self.random.f64() < self.faults.duplication { 2 } else { 1 };
        (0..copies).for_each(|_| self.enqueue(from, to, frame.clone()));
    }

    fn enqueue(&mut self, from: Incarnation, to: Incarnation, frame: Bytes) {
        self.sent += 1;
        let NetworkFaults { min_delay, max_delay, .. } = self.faults;
        let more = max_delay.saturating_sub(min_delay).mul_f64(self.random.f64());
        let in_transit = InTransitFrame {
            arrives_at: Instant::now() + min_delay + more,
            number: self.sent,
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

    /// What happens now at this node; or when to look again.
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
                self.count_received(local, from, &frame);
                return Ok(TransportEvent::Frame { from, frame });
            }
        }
    }

    fn count_received(&mut self, local: Incarnation, from: Incarnation, frame: &Bytes) {
        let Some(node) = self.nodes.get_mut(&local) else { return };
        let traffic = node.traffic.entry(from).or_default();
        traffic.received_frames += 1;
        traffic.received_bytes += frame.len() as u64;
    }
}

/// One node's end of a [`Network`].
#[derive(Debug)]
pub struct ChannelTransport {
    network: Network,
    local: Incarnation,
    number: u64,
    changed: Arc<Notify>,
}

impl ChannelTransport {
    /// This node, while it is the one that joined last under its incarnation.
    fn with_state<T: Default>(&self, action: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.network.state();
        let is_current =
            state.nodes.get(&self.local).is_some_and(|node| node.number == self.number);
        if is_current { action(&mut state) } else { T::default() }
    }
}

impl Transport for ChannelTransport {
    fn set_peers(&mut self, peers: &[PeerAddress]) {
        self.with_state(|state| {
            let Some(node) = state.nodes.get_mut(&self.local) else { return };
            let wanted =
                peers.iter().map(|peer| peer.incarnation).filter(|peer| *peer != self.local);
            node.peers = wanted
                .map(|peer| (peer, node.peers.get(&peer).copied().unwrap_or_default()))
                .collect();
            let ChannelNode { peers, events, traffic, .. } = node;
            traffic.retain(|peer, _| peers.contains_key(peer));
            events.retain(|event| match event {
                TransportEvent::LinkUp(peer) | TransportEvent::LinkDown(peer) => {
                    peers.contains_key(peer)
                }
                TransportEvent::Frame { .. } => true,
            });
            state.update_links_of(self.local);
        });
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        self.with_state(|state| state.send(self.local, to, &frame));
    }

    async fn next(&mut self) -> TransportEvent {
        loop {
            let changed = Arc::clone(&self.changed);
            let polled = self.with_state(|state| Some(state.next(self.local)));
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
        self.with_state(|state| {
            let node = state.nodes.get(&self.local);
            node.map(|node| node.traffic.clone().into_iter().collect()).unwrap_or_default()
        })
    }
}

/// The node is gone: others are told that their links to it are down.
impl Drop for ChannelTransport {
    fn drop(&mut self) {
        self.with_state(|state| {
            state.nodes.remove(&self.local);
            state.update_links();
        });
    }
}
