//! Frames within a process, through a network whose weather is made: it loses, repeats, delays and reorders them, and
//! can be cut in parts. By the same seed the same happens, on tokio's time, which tests may pause.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::{Event, MAX_FRAME, Peer, Traffic, Transport};
use crate::counts::Incarnation;

/// Frames that are under way to one node. What is more is dropped.
pub const MAX_UNDER_WAY: usize = 1_024;

/// What happens to frames.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Weather {
    /// The part of the frames that is lost: 0 to 1.
    pub loss: f64,
    /// The part of the others that comes twice: 0 to 1.
    pub repeats: f64,
    /// No frame is quicker.
    pub shortest_delay: Duration,
    /// No frame is slower. If it is more than the shortest delay, frames overtake each other.
    pub longest_delay: Duration,
}

/// A network within this process. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    random: fastrand::Rng,
    weather: Weather,
    nodes: BTreeMap<Incarnation, Node>,
    /// In which part of the network a node is, if it is cut. Those that are not named are in one of their own.
    parts: BTreeMap<Incarnation, usize>,
    joined: u64,
    sent: u64,
}

/// One that has joined.
#[derive(Debug, Default)]
struct Node {
    /// No two that joined have the same.
    number: u64,
    /// Its peers, and whether it was told that their links are up.
    peers: BTreeMap<Incarnation, bool>,
    events: VecDeque<Event>,
    under_way: BinaryHeap<Reverse<UnderWay>>,
    traffic: BTreeMap<Incarnation, Traffic>,
    changed: Arc<Notify>,
}

/// In the order in which frames arrive. No two have the same number.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    arrives: Instant,
    number: u64,
    from: Incarnation,
    frame: Bytes,
}

impl Network {
    /// An empty network.
    pub fn new(seed: u64, weather: Weather) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        let (nodes, parts) = (BTreeMap::new(), BTreeMap::new());
        Self(Arc::new(Mutex::new(State { random, weather, nodes, parts, joined: 0, sent: 0 })))
    }

    /// A node joins, and leaves when what is returned is dropped. If one of the same incarnation is there, it is gone.
    pub fn join(&self, incarnation: Incarnation) -> ChannelTransport {
        let mut state = self.state();
        state.joined += 1;
        let changed = Arc::new(Notify::new());
        let number = state.joined;
        let node = Node { number, changed: Arc::clone(&changed), ..Node::default() };
        state.nodes.insert(incarnation, node);
        state.tell_links();
        drop(state);
        ChannelTransport { network: self.clone(), own: incarnation, number, changed }
    }

    /// Changes the weather of what is sent from now on.
    pub fn set_weather(&self, weather: Weather) {
        self.state().weather = weather;
    }

    /// Cuts the network: nodes of different parts do not reach each other, and what is under way between them is lost.
    /// Nodes that are in none of them are together.
    pub fn cut(&self, parts: &[&[Incarnation]]) {
        let mut state = self.state();
        let numbered = parts.iter().enumerate();
        state.parts = numbered
            .flat_map(|(part, nodes)| nodes.iter().map(move |node| (*node, part)))
            .collect();
        state.tell_links();
    }

    /// Makes it one again.
    pub fn heal(&self) {
        self.cut(&[]);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn linked(&self, one: Incarnation, other: Incarnation) -> bool {
        self.nodes.contains_key(&other)
            && one != other
            && self.parts.get(&one) == self.parts.get(&other)
    }

    /// Tells every node whose links came up or went down.
    fn tell_links(&mut self) {
        let own: Vec<Incarnation> = self.nodes.keys().copied().collect();
        own.into_iter().for_each(|node| self.tell_links_of(node));
    }

    fn tell_links_of(&mut self, own: Incarnation) {
        let peers = self.nodes.get(&own).map(|node| node.peers.clone()).unwrap_or_default();
        let now = peers.into_iter().map(|(peer, was)| (peer, was, self.linked(own, peer)));
        let changed: Vec<_> = now.filter(|(_, was, is)| was != is).collect();
        let Some(node) = self.nodes.get_mut(&own) else { return };
        for (peer, _, is) in changed {
            node.peers.insert(peer, is);
            node.events.push_back(if is { Event::Up(peer) } else { Event::Down(peer) });
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
        if self.random.f64() < self.weather.loss {
            return;
        }
        let copies = if self.random.f64() < self.weather.repeats { 2 } else { 1 };
        (0..copies).for_each(|_| self.let_go(from, to, frame.clone()));
    }

    fn let_go(&mut self, from: Incarnation, to: Incarnation, frame: Bytes) {
        self.sent += 1;
        let Weather { shortest_delay, longest_delay, .. } = self.weather;
        let more = longest_delay.saturating_sub(shortest_delay).mul_f64(self.random.f64());
        let under_way = UnderWay {
            arrives: Instant::now() + shortest_delay + more,
            number: self.sent,
            from,
            frame,
        };
        let Some(node) =
            self.nodes.get_mut(&to).filter(|node| node.under_way.len() < MAX_UNDER_WAY)
        else {
            return;
        };
        node.under_way.push(Reverse(under_way));
        node.changed.notify_one();
    }

    /// What happens now at this node; or when to look again.
    fn next(&mut self, own: Incarnation) -> Result<Event, Option<Instant>> {
        loop {
            let node = self.nodes.get_mut(&own).ok_or(None)?;
            if let Some(event) = node.events.pop_front() {
                return Ok(event);
            }
            let Reverse(first) = node.under_way.peek().ok_or(None)?;
            if first.arrives > Instant::now() {
                return Err(Some(first.arrives));
            }
            let Reverse(UnderWay { from, frame, .. }) = node.under_way.pop().ok_or(None)?;
            if self.parts.get(&own) == self.parts.get(&from) {
                self.count_received(own, from, &frame);
                return Ok(Event::Frame { from, frame });
            }
        }
    }

    fn count_received(&mut self, own: Incarnation, from: Incarnation, frame: &Bytes) {
        let Some(node) = self.nodes.get_mut(&own) else { return };
        let traffic = node.traffic.entry(from).or_default();
        traffic.received_frames += 1;
        traffic.received_bytes += frame.len() as u64;
    }
}

/// One node's end of a [`Network`].
#[derive(Debug)]
pub struct ChannelTransport {
    network: Network,
    own: Incarnation,
    number: u64,
    changed: Arc<Notify>,
}

impl ChannelTransport {
    /// This node, while it is the one that joined last under its incarnation.
    fn with<T: Default>(&self, act: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.network.state();
        let still = state.nodes.get(&self.own).is_some_and(|node| node.number == self.number);
        if still { act(&mut state) } else { T::default() }
    }
}

impl Transport for ChannelTransport {
    fn set_peers(&mut self, peers: &[Peer]) {
        self.with(|state| {
            let Some(node) = state.nodes.get_mut(&self.own) else { return };
            let wanted = peers.iter().map(|peer| peer.incarnation).filter(|peer| *peer != self.own);
            node.peers = wanted
                .map(|peer| (peer, node.peers.get(&peer).copied().unwrap_or_default()))
                .collect();
            let Node { peers, events, traffic, .. } = node;
            traffic.retain(|peer, _| peers.contains_key(peer));
            events.retain(|event| match event {
                Event::Up(peer) | Event::Down(peer) => peers.contains_key(peer),
                Event::Frame { .. } => true,
            });
            state.tell_links_of(self.own);
        });
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        self.with(|state| state.send(self.own, to, &frame));
    }

    async fn next(&mut self) -> Event {
        loop {
            let changed = Arc::clone(&self.changed);
            let looked = self.with(|state| Some(state.next(self.own)));
            match looked.unwrap_or(Err(None)) {
                Ok(event) => return event,
                Err(Some(then)) => tokio::select! {
                    () = changed.notified() => {}
                    () = sleep_until(then) => {}
                },
                Err(None) => changed.notified().await,
            }
        }
    }

    fn traffic(&self) -> Vec<(Incarnation, Traffic)> {
        self.with(|state| {
            let node = state.nodes.get(&self.own);
            node.map(|node| node.traffic.clone().into_iter().collect()).unwrap_or_default()
        })
    }
}

/// The node is gone: others are told that their links to it are down.
impl Drop for ChannelTransport {
    fn drop(&mut self) {
        self.with(|state| {
            state.nodes.remove(&self.own);
            state.tell_links();
        });
    }
}
