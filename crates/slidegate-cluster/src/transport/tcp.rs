//! Frames over TCP: one stream to every peer for what this node tells, and one from every peer for what it hears.
//!
//! A stream begins with the handshake of [`seal`](crate::seal). Both sides then give a sign of life every second, an
//! empty frame: a stream that is silent for longer is given up, and whoever dialled dials again, so that a cut is
//! noticed and a healed one found within seconds, whatever TCP itself would wait for.
//!
//! Everything is bounded. What a peer does not read fills its queue, and then frames are dropped. What this node does
//! not take in makes its peers wait. Strangers have [`Timing::handshake`] to show that they have the key; of more than
//! [`MAX_PENDING_HANDSHAKES`] at once the one that waits longest goes.

mod accept;
mod dial;
mod queue;
mod stream;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::link_counters::{LinkCounters, LinkCountersByNode};
use super::{LinkTraffic, MAX_FRAME, PeerAddress, Transport, TransportEvent};
use crate::pn_counter::Incarnation;
use crate::seal::{ClusterKey, PeerIdentity, RejectCounters};

/// Connections that have not shaken hands yet.
pub const MAX_PENDING_HANDSHAKES: usize = 64;

/// Streams from peers. Only who has the key gets one, and of every incarnation there is one.
pub const MAX_STREAMS: usize = 1_024;

/// Bytes of frames that wait to be written to one peer.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Frames that wait to be written to one peer.
pub const MAX_QUEUED_FRAMES: usize = 1_024;

/// Frames of all peers that wait to be taken in.
const INBOX_CAPACITY: usize = 256;

/// How long things may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Until a connection is made.
    pub connect_timeout: Duration,
    /// From there until hands are shaken.
    pub handshake_timeout: Duration,
    /// Between two signs of life.
    pub keepalive_interval: Duration,
    /// Without one, until a stream is given up. Also how long a write may take.
    pub idle_timeout: Duration,
    /// The first wait before dialling again. Each further one is twice as long.
    pub initial_backoff: Duration,
    /// No wait is longer than this.
    pub max_backoff: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            handshake_timeout: Duration::from_secs(5),
            keepalive_interval: Duration::from_secs(1),
            idle_timeout: Duration::from_secs(4),
            initial_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(1),
        }
    }
}

/// What all tasks of one transport have in common.
#[derive(Debug)]
struct TransportContext {
    key: ClusterKey,
    local: PeerIdentity,
    timing: Timing,
    /// The address that connections come from: a firewall may know a node by it.
    source_ip: Option<IpAddr>,
    reject_counters: Arc<RejectCounters>,
    counters: LinkCountersByNode,
}

/// Carries frames over TCP. Dropping it closes all links.
#[derive(Debug)]
pub struct TcpTransport {
    context: Arc<TransportContext>,
    events: mpsc::Receiver<TaskEvent>,
    event_sender: mpsc::Sender<TaskEvent>,
    links: HashMap<Incarnation, PeerLink>,
    opened_links: u64,
    _accept_task: Task,
}

/// What tasks tell the transport.
#[derive(Debug)]
enum TaskEvent {
    Frame { from: Incarnation, frame: Bytes },
    LinkUp { to: Incarnation, link: u64, queue: queue::FrameSender },
    LinkDown { to: Incarnation, link: u64 },
}

/// What keeps a stream to one peer.
#[derive(Debug)]
struct PeerLink {
    /// No two links have the same: news of one that was given up are known by it.
    number: u64,
    address: SocketAddr,
    /// While the link is up.
    queue: Option<queue::FrameSender>,
    counters: Arc<LinkCounters>,
    _dial_task: Task,
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
        local: PeerIdentity,
        reject_counters: Arc<RejectCounters>,
        timing: Timing,
    ) -> std::io::Result<Self> {
        let ip = listener.local_addr()?.ip();
        let source_ip = (!ip.is_unspecified()).then_some(ip);
        let context = TransportContext {
            key,
            local,
            timing,
            source_ip,
            reject_counters,
            counters: LinkCountersByNode::default(),
        };
        let context = Arc::new(context);
        let (event_sender, events) = mpsc::channel(INBOX_CAPACITY);
        let accept_task = Task(tokio::spawn(accept::accept(
            listener,
            Arc::clone(&context),
            event_sender.clone(),
        )));
        Ok(Self {
            context,
            events,
            event_sender,
            links: HashMap::new(),
            opened_links: 0,
            _accept_task: accept_task,
        })
    }

    fn open_link(&mut self, peer: PeerAddress) -> PeerLink {
        self.opened_links += 1;
        let counters = self.context.counters.get_or_create(peer.incarnation);
        let dialer = dial::Dialer {
            context: Arc::clone(&self.context),
            peer,
            link: self.opened_links,
            counters: Arc::clone(&counters),
            event_sender: self.event_sender.clone(),
        };
        let dial_task = Task(tokio::spawn(dialer.run()));
        PeerLink {
            number: self.opened_links,
            address: peer.address,
            queue: None,
            counters,
            _dial_task: dial_task,
        }
    }

    /// What the news mean, unless they are of a link that was given up.
    fn on_task_event(&mut self, event: TaskEvent) -> Option<TransportEvent> {
        let (peer, number, queue) = match event {
            TaskEvent::Frame { from, frame } => return Some(TransportEvent::Frame { from, frame }),
            TaskEvent::LinkUp { to, link, queue } => (to, link, Some(queue)),
            TaskEvent::LinkDown { to, link } => (to, link, None),
        };
        let link = self.links.get_mut(&peer).filter(|link| link.number == number)?;
        let event = if queue.is_some() {
            TransportEvent::LinkUp(peer)
        } else {
            TransportEvent::LinkDown(peer)
        };
        link.queue = queue;
        Some(event)
    }
}

impl Transport for TcpTransport {
    fn set_peers(&mut self, peers: &[PeerAddress]) {
        let own = self.context.local.incarnation;
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
                let link = self.open_link(*peer);
                self.links.insert(*incarnation, link);
            }
        }
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        let Some(link) = self.links.get(&to) else { return };
        let fits = frame.len() <= MAX_FRAME;
        let queued = link.queue.as_ref().is_some_and(|queue| fits && queue.push(frame));
        if !queued {
            link.counters.dropped_frames.add(1);
        }
    }

    async fn next(&mut self) -> TransportEvent {
        loop {
            // It cannot end: this end holds a sender, too.
            let Some(event) = self.events.recv().await else { return std::future::pending().await };
            if let Some(event) = self.on_task_event(event) {
                return event;
            }
        }
    }

    fn traffic(&self) -> Vec<(Incarnation, LinkTraffic)> {
        // Nodes that are no peers count while they have a stream.
        self.context.counters.retain(|node| self.links.contains_key(&node));
        self.context.counters.read()
    }
}
