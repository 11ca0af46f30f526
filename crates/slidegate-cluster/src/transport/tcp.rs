//! Frames over TCP: one stream to every peer for what this node tells, and one from every peer for what it hears.
//!
//! A stream begins with the handshake of [`seal`](crate::seal). Both sides then give a sign of life every second, an
//! empty frame: a stream that is silent for longer is given up, and whoever dialled dials again, so that a cut is
//! noticed and a healed one found within seconds, whatever TCP itself would wait for.
//!
//! Everything is bounded. What a peer does not read fills its queue, and then frames are dropped. What this node does
//! not take in makes its peers wait. Strangers have [`Timing::handshake`] to show that they have the key; of more than
//! [`MAX_STRANGERS`] at once the one that waits longest goes.

mod accept;
mod dial;
mod pipe;
mod queue;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::counters::{AllCounters, Counters};
use super::{Event, MAX_FRAME, Peer, Traffic, Transport};
use crate::counts::Incarnation;
use crate::seal::{ClusterKey, Introduction, Refusals};

/// Connections that have not shaken hands yet.
pub const MAX_STRANGERS: usize = 64;

/// Streams from peers. Only who has the key gets one, and of every incarnation there is one.
pub const MAX_STREAMS: usize = 1_024;

/// Bytes of frames that wait to be written to one peer.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Frames that wait to be written to one peer.
pub const MAX_QUEUED_FRAMES: usize = 1_024;

/// Frames of all peers that wait to be taken in.
const INBOX: usize = 256;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until a connection is made.
    pub connect: Duration,
    /// From there until hands are shaken.
    pub handshake: Duration,
    /// Between two signs of life.
    pub alive: Duration,
    /// Without one, until a stream is given up. Also how long a write may take.
    pub silence: Duration,
    /// The first wait before dialling again. Each further one is twice as long.
    pub first_wait: Duration,
    /// No wait is longer than this.
    pub longest_wait: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(2),
            handshake: Duration::from_secs(5),
            alive: Duration::from_secs(1),
            silence: Duration::from_secs(4),
            first_wait: Duration::from_millis(50),
            longest_wait: Duration::from_secs(1),
        }
    }
}

/// What all tasks of one transport have in common.
#[derive(Debug)]
struct Shared {
    key: ClusterKey,
    me: Introduction,
    timing: Timing,
    /// The address that connections come from: a firewall may know a node by it.
    dial_from: Option<IpAddr>,
    refusals: Arc<Refusals>,
    counters: AllCounters,
}

/// Carries frames over TCP. Dropping it closes all links.
#[derive(Debug)]
pub struct TcpTransport {
    shared: Arc<Shared>,
    news: mpsc::Receiver<News>,
    tell: mpsc::Sender<News>,
    links: HashMap<Incarnation, Link>,
    dialled: u64,
    _accepting: Task,
}

/// What tasks tell the transport.
#[derive(Debug)]
enum News {
    Frame { from: Incarnation, frame: Bytes },
    Up { to: Incarnation, link: u64, queue: queue::Incoming },
    Down { to: Incarnation, link: u64 },
}

/// What keeps a stream to one peer.
#[derive(Debug)]
struct Link {
    /// No two links have the same: news of one that was given up are known by it.
    number: u64,
    address: SocketAddr,
    /// While the link is up.
    queue: Option<queue::Incoming>,
    counters: Arc<Counters>,
    _dialling: Task,
}

/// A task that ends with its owner.
#[derive(Debug)]
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TcpTransport {
    /// Takes connections from this listener, in a task of tokio. Connections to others come from its address, unless it
    /// is unspecified.
    ///
    /// # Errors
    /// If the listener does not know its address.
    pub fn new(
        listener: TcpListener,
        key: ClusterKey,
        me: Introduction,
        refusals: Arc<Refusals>,
        timing: Timing,
    ) -> std::io::Result<Self> {
        let ip = listener.local_addr()?.ip();
        let dial_from = (!ip.is_unspecified()).then_some(ip);
        let shared =
            Shared { key, me, timing, dial_from, refusals, counters: AllCounters::default() };
        let shared = Arc::new(shared);
        let (tell, news) = mpsc::channel(INBOX);
        let accepting =
            Task(tokio::spawn(accept::accept(listener, Arc::clone(&shared), tell.clone())));
        Ok(Self { shared, news, tell, links: HashMap::new(), dialled: 0, _accepting: accepting })
    }

    fn link(&mut self, peer: Peer) -> Link {
        self.dialled += 1;
        let counters = self.shared.counters.of(peer.incarnation);
        let dialler = dial::Dialler {
            shared: Arc::clone(&self.shared),
            peer,
            link: self.dialled,
            counters: Arc::clone(&counters),
            tell: self.tell.clone(),
        };
        let dialling = Task(tokio::spawn(dialler.run()));
        Link {
            number: self.dialled,
            address: peer.address,
            queue: None,
            counters,
            _dialling: dialling,
        }
    }

    /// What the news mean, unless they are of a link that was given up.
    fn take_in(&mut self, news: News) -> Option<Event> {
        let (peer, number, queue) = match news {
            News::Frame { from, frame } => return Some(Event::Frame { from, frame }),
            News::Up { to, link, queue } => (to, link, Some(queue)),
            News::Down { to, link } => (to, link, None),
        };
        let link = self.links.get_mut(&peer).filter(|link| link.number == number)?;
        let event = if queue.is_some() { Event::Up(peer) } else { Event::Down(peer) };
        link.queue = queue;
        Some(event)
    }
}

impl Transport for TcpTransport {
    fn set_peers(&mut self, peers: &[Peer]) {
        let own = self.shared.me.incarnation;
        let wanted: HashMap<_, _> = peers
            .iter()
            .filter(|peer| peer.incarnation != own)
            .map(|peer| (peer.incarnation, *peer))
            .collect();
        self.links.retain(|peer, link| {
            wanted.get(peer).is_some_and(|wanted| wanted.address == link.address)
        });
        for (incarnation, peer) in &wanted {
            if !self.links.contains_key(incarnation) {
                let link = self.link(*peer);
                self.links.insert(*incarnation, link);
            }
        }
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        let Some(link) = self.links.get(&to) else { return };
        let fits = frame.len() <= MAX_FRAME;
        let queued = link.queue.as_ref().is_some_and(|queue| fits && queue.put(frame));
        if !queued {
            link.counters.dropped_frames.add(1);
        }
    }

    async fn next(&mut self) -> Event {
        loop {
            // It cannot end: this end holds a sender, too.
            let Some(news) = self.news.recv().await else { return std::future::pending().await };
            if let Some(event) = self.take_in(news) {
                return event;
            }
        }
    }

    fn traffic(&self) -> Vec<(Incarnation, Traffic)> {
        // Nodes that are no peers count while they have a stream.
        self.shared.counters.keep(|node| self.links.contains_key(&node));
        self.shared.counters.read()
    }
}
