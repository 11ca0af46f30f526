//! Transport over TCP: one stream to each peer for sending, and one stream from each peer for receiving.
//!
//! A stream begins with the handshake of mutual TLS, after which each side introduces itself. Then both sides send
//! keepalives (empty frames), the first at once and further ones every second. A stream without received data for
//! [`TransportTiming::idle_timeout`] is closed, and the client reconnects. A broken connection is thus detected within
//! seconds, independent of TCP's own timeouts. When the network works again, the client reconnects within seconds.
//!
//! All resources are bounded. If a peer does not read, its queue fills and frames are dropped. If this node does not
//! receive, its peers wait. Unauthenticated peers have [`TransportTiming::handshake_timeout`] to present a certificate.
//! Above [`MAX_PENDING_HANDSHAKES`], the oldest handshake of the IP address with the most handshakes is aborted.

mod accept;
mod dial;
mod queue;
mod stream;

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use slidegate::store::restart_on_panic;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::{JoinHandle, JoinSet};
use tracing::{debug, error};

use super::link_counters::{LinkCounters, LinkCountersByNode};
use super::{LinkTraffic, MAX_FRAME_BYTES, RejectCounters, Transport, TransportEvent};
use crate::credentials::NodeTls;
use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;

use stream::PeerStreamError;

/// Maximum number of connections without a completed handshake.
pub const MAX_PENDING_HANDSHAKES: usize = 64;

/// Maximum number of streams from peers. Each stream requires a trusted certificate, and each incarnation has at most
/// one.
pub const MAX_INCOMING_STREAMS: usize = 1_024;

/// Maximum number of bytes that are queued for one peer.
pub const MAX_QUEUED_BYTES: usize = 4 << 20;

/// Maximum number of frames that are queued for one peer.
pub const MAX_QUEUED_FRAMES: usize = 1_024;

/// Maximum number of addresses to which this node introduces itself at the same time.
const MAX_INTRODUCTIONS: usize = 64;

/// Maximum number of events, mostly received frames, that wait to be processed.
const MAX_PENDING_TASK_EVENTS: usize = 256;

/// Timeouts and intervals of the transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransportTiming {
    /// Maximum time to establish a connection.
    pub connect_timeout: Duration,
    /// Maximum time of the handshake after the connection is established.
    pub handshake_timeout: Duration,
    /// Interval between keepalives.
    pub keepalive_interval: Duration,
    /// Time without received data after which a stream is closed. Also the maximum time of a write.
    pub idle_timeout: Duration,
    /// Delay before the first reconnect. It doubles with each further attempt.
    pub initial_backoff: Duration,
    /// Maximum delay before a reconnect.
    pub max_backoff: Duration,
}

impl Default for TransportTiming {
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

/// Context shared by all tasks of one transport.
#[derive(Debug)]
struct TcpTransportContext {
    /// The TLS configuration of new connections. Replaced when the certificates of the node are renewed.
    tls: ArcSwap<NodeTls>,
    local: NodeInfo,
    timing: TransportTiming,
    /// Source address of outgoing connections, since a firewall may identify a node by it.
    source_ip: Option<IpAddr>,
    reject_counters: Arc<RejectCounters>,
    counters: LinkCountersByNode,
}

impl TcpTransportContext {
    /// Logs the end of a connection, and counts it if it was rejected.
    fn report_closed_connection(&self, address: SocketAddr, error: &PeerStreamError) {
        match error {
            PeerStreamError::Rejected(reason, error) => {
                self.reject_counters.report(*reason, address, error);
            }
            error => debug!(%address, error = error.to_string(), "cluster connection closed"),
        }
    }
}

/// A handle that replaces the certificates of a transport.
#[derive(Clone, Debug)]
pub struct TlsHandle(Arc<TcpTransportContext>);

impl TlsHandle {
    /// Uses `tls` for new connections. Open connections stay.
    pub fn replace(&self, tls: NodeTls) {
        self.0.tls.store(Arc::new(tls));
    }
}

/// A transport over TCP. Dropping it closes all links.
#[derive(Debug)]
pub struct TcpTransport {
    context: Arc<TcpTransportContext>,
    events: mpsc::Receiver<TransportTaskEvent>,
    event_sender: mpsc::Sender<TransportTaskEvent>,
    links: HashMap<Incarnation, OutgoingPeerLink>,
    opened_links: u64,
    introductions: JoinSet<()>,
    _accept_task: AbortOnDrop,
}

/// An event from a task of the transport.
#[derive(Debug)]
enum TransportTaskEvent {
    Frame { from: Incarnation, frame: Bytes },
    LinkUp { to: Incarnation, link: u64, queue: queue::OutgoingFrameSender },
    LinkDown { to: Incarnation, link: u64 },
    NodeIntroduced(NodeInfo),
}

/// The outgoing link to one peer.
#[derive(Debug)]
struct OutgoingPeerLink {
    /// Unique number of the link, by which events of a replaced link are recognized.
    number: u64,
    address: SocketAddr,
    /// The queue of outgoing frames; `None` while the link is down.
    queue: Option<queue::OutgoingFrameSender>,
    counters: Arc<LinkCounters>,
    _dial_task: AbortOnDrop,
}

/// A task that is aborted on drop.
#[derive(Debug)]
struct AbortOnDrop(JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl TcpTransport {
    /// Accepts connections from `listener` in a Tokio task. Outgoing connections use the IP address of the listener as
    /// their source address, unless it is unspecified.
    ///
    /// # Errors
    /// Returns an error if the listener's address cannot be determined.
    pub fn new(
        listener: TcpListener,
        tls: NodeTls,
        local: NodeInfo,
        reject_counters: Arc<RejectCounters>,
        timing: TransportTiming,
    ) -> std::io::Result<Self> {
        let ip = listener.local_addr()?.ip();
        let source_ip = (!ip.is_unspecified()).then_some(ip);
        let context = TcpTransportContext {
            tls: ArcSwap::from_pointee(tls),
            local,
            timing,
            source_ip,
            reject_counters,
            counters: LinkCountersByNode::default(),
        };
        let context = Arc::new(context);
        let (event_sender, events) = mpsc::channel(MAX_PENDING_TASK_EVENTS);
        let (accept_context, accept_sender) = (Arc::clone(&context), event_sender.clone());
        let accept = async move || {
            accept::accept_connections(&listener, &accept_context, &accept_sender).await;
        };
        let accept_task = AbortOnDrop(tokio::spawn(restart_on_panic(accept, || {
            error!("the task that accepts cluster nodes panicked; it runs again");
        })));
        Ok(Self {
            context,
            events,
            event_sender,
            links: HashMap::new(),
            opened_links: 0,
            introductions: JoinSet::new(),
            _accept_task: accept_task,
        })
    }

    /// Returns a handle that replaces the certificates.
    pub fn tls_handle(&self) -> TlsHandle {
        TlsHandle(Arc::clone(&self.context))
    }

    fn open_outgoing_link(&mut self, peer: Incarnation, address: SocketAddr) -> OutgoingPeerLink {
        self.opened_links += 1;
        let counters = self.context.counters.get_or_create(peer);
        let dialer = dial::PeerDialer {
            context: Arc::clone(&self.context),
            peer,
            address,
            link: self.opened_links,
            counters: Arc::clone(&counters),
            event_sender: self.event_sender.clone(),
        };
        let connect = async move || dialer.keep_connected().await;
        let dial_task = AbortOnDrop(tokio::spawn(restart_on_panic(connect, || {
            error!("the task that connects to a cluster node panicked; it runs again");
        })));
        OutgoingPeerLink {
            number: self.opened_links,
            address,
            queue: None,
            counters,
            _dial_task: dial_task,
        }
    }

    /// Converts an event of a task to an event of the transport. Returns `None` if the event belongs to a link that was
    /// replaced or removed.
    fn convert_task_event_to_transport_event(
        &mut self,
        event: TransportTaskEvent,
    ) -> Option<TransportEvent> {
        let (peer, number, queue) = match event {
            TransportTaskEvent::Frame { from, frame } => {
                return Some(TransportEvent::Frame { from, frame });
            }
            TransportTaskEvent::NodeIntroduced(node) => {
                return Some(TransportEvent::NodeIntroduced(node));
            }
            TransportTaskEvent::LinkUp { to, link, queue } => (to, link, Some(queue)),
            TransportTaskEvent::LinkDown { to, link } => (to, link, None),
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
    fn set_peers(&mut self, peers: &[NodeInfo]) {
        let own = self.context.local.incarnation;
        let wanted: HashMap<Incarnation, SocketAddr> = peers
            .iter()
            .filter(|peer| peer.incarnation != own)
            .filter_map(|peer| Some((peer.incarnation, peer.address?)))
            .collect();
        self.links.retain(|peer, link| wanted.get(peer) == Some(&link.address));
        for (peer, address) in wanted {
            if !self.links.contains_key(&peer) {
                let link = self.open_outgoing_link(peer, address);
                self.links.insert(peer, link);
            }
        }
    }

    fn introduce_local_node(&mut self, address: SocketAddr) {
        while self.introductions.try_join_next().is_some() {}
        if self.introductions.len() >= MAX_INTRODUCTIONS {
            return;
        }
        let (context, event_sender) = (Arc::clone(&self.context), self.event_sender.clone());
        self.introductions.spawn(async move {
            match dial::introduce_local_node(address, &context).await {
                Ok(node) => _ = event_sender.send(TransportTaskEvent::NodeIntroduced(node)).await,
                Err(error) => context.report_closed_connection(address, &error),
            }
        });
    }

    fn send(&mut self, to: Incarnation, frame: Bytes) {
        let Some(link) = self.links.get(&to) else { return };
        let fits = frame.len() <= MAX_FRAME_BYTES;
        let queued = link.queue.as_ref().is_some_and(|queue| fits && queue.push(frame));
        if !queued {
            link.counters.dropped_frames.add(1);
        }
    }

    async fn next(&mut self) -> TransportEvent {
        loop {
            // Never returns `None`, since this transport also holds a sender.
            let Some(event) = self.events.recv().await else { return std::future::pending().await };
            if let Some(event) = self.convert_task_event_to_transport_event(event) {
                return event;
            }
        }
    }

    fn traffic(&self) -> Vec<(Incarnation, LinkTraffic)> {
        // Drops the counters of nodes that are not peers and have no open stream.
        self.context.counters.retain(|node| self.links.contains_key(&node));
        self.context.counters.traffic_of_all_nodes()
    }
}
