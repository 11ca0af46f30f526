//! Incoming connections: handshakes and streams from peers.

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{debug, warn};

use super::stream::{PeerStream, PeerStreamError};
use super::{
    MAX_INCOMING_STREAMS, MAX_PENDING_HANDSHAKES, TcpTransportContext, TransportTaskEvent,
};
use crate::pn_counter::Incarnation;
use crate::transport::RejectReason;

/// Pause after the listener has returned an error, most often because too many files are open.
const PAUSE_AFTER_ACCEPT_ERROR: Duration = Duration::from_millis(100);

/// Accepts connections until the task is aborted. The abort also closes all accepted connections.
pub(super) async fn accept_connections(
    listener: &TcpListener,
    context: &Arc<TcpTransportContext>,
    event_sender: &mpsc::Sender<TransportTaskEvent>,
) {
    let mut acceptor = ConnectionAcceptor {
        context: Arc::clone(context),
        event_sender: event_sender.clone(),
        handshakes: JoinSet::new(),
        pending: VecDeque::new(),
        streams: IncomingPeerStreams::default(),
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, address)) => acceptor.start_handshake(stream, address),
                Err(error) => {
                    warn!(error = error.to_string(), "cannot accept connections of other nodes, so their counters arrive late; retrying");
                    sleep(PAUSE_AFTER_ACCEPT_ERROR).await;
                }
            },
            Some(completed) = acceptor.handshakes.join_next() => {
                if let Ok(Some((stream, address))) = completed {
                    acceptor.start_stream(stream, address);
                }
            },
            Some(ended) = acceptor.streams.tasks.join_next_with_id() => acceptor.streams.remove_stream_of_ended_task(&ended),
        }
    }
}

struct ConnectionAcceptor {
    context: Arc<TcpTransportContext>,
    event_sender: mpsc::Sender<TransportTaskEvent>,
    handshakes: JoinSet<Option<(PeerStream, SocketAddr)>>,
    /// Pending handshakes, oldest first.
    pending: VecDeque<(AbortHandle, SocketAddr)>,
    streams: IncomingPeerStreams,
}

impl ConnectionAcceptor {
    /// Starts the handshake of a new connection. If too many handshakes are pending, aborts the oldest one of the IP
    /// address with the most handshakes, so that a flood of connections does not abort the handshakes of nodes at other
    /// addresses.
    fn start_handshake(&mut self, stream: TcpStream, address: SocketAddr) {
        self.pending.retain(|(handshake, _)| !handshake.is_finished());
        if self.pending.len() >= MAX_PENDING_HANDSHAKES
            && let Some((oldest, address)) =
                self.handshake_index_to_abort().and_then(|index| self.pending.remove(index))
        {
            oldest.abort();
            self.context.report_closed_connection(address, &RejectReason::Crowded.into());
        }
        let (context, event_sender) = (Arc::clone(&self.context), self.event_sender.clone());
        let handshake = self.handshakes.spawn(async move {
            let accepted = accept_stream(stream, &context, &event_sender).await;
            let accepted =
                accepted.inspect_err(|error| context.report_closed_connection(address, error));
            accepted.ok().map(|stream| (stream, address))
        });
        self.pending.push_back((handshake, address));
    }

    /// Returns the index of the oldest pending handshake of the IP address that has the most of them.
    fn handshake_index_to_abort(&self) -> Option<usize> {
        let handshakes_of_same_ip = |index: &usize| {
            let ip = self.pending[*index].1.ip();
            self.pending.iter().filter(|(_, address)| address.ip() == ip).count()
        };
        // Of several maxima, `max_by_key` returns the last one. In reverse order, this is the oldest handshake.
        (0..self.pending.len()).rev().max_by_key(handshakes_of_same_ip)
    }

    /// Starts a task that receives frames from an authenticated peer. Replaces an older stream of the same incarnation.
    fn start_stream(&mut self, stream: PeerStream, address: SocketAddr) {
        let peer = stream.peer.incarnation;
        self.streams.close(peer);
        if self.streams.by_peer.len() >= MAX_INCOMING_STREAMS {
            return self.context.report_closed_connection(address, &RejectReason::Crowded.into());
        }
        debug!(peer = peer.0, name = %stream.peer.name, %address, "cluster node connected");
        let (context, event_sender) = (Arc::clone(&self.context), self.event_sender.clone());
        let receive = async move {
            if let Err(error) = receive_frames(stream, &context, &event_sender).await {
                context.report_closed_connection(address, &error);
            }
        };
        let task = self.streams.tasks.spawn(receive);
        self.streams.by_peer.insert(peer, task);
    }
}

/// The streams that peers have opened, at most one per incarnation.
#[derive(Default)]
struct IncomingPeerStreams {
    tasks: JoinSet<()>,
    by_peer: HashMap<Incarnation, AbortHandle>,
}

impl IncomingPeerStreams {
    fn close(&mut self, peer: Incarnation) {
        if let Some(task) = self.by_peer.remove(&peer) {
            task.abort();
        }
    }

    fn remove_stream_of_ended_task(&mut self, ended: &Result<(Id, ()), JoinError>) {
        let id = match ended {
            Ok((id, ())) => *id,
            Err(error) => error.id(),
        };
        self.by_peer.retain(|_, task| task.id() != id);
    }
}

/// Performs the handshake on a connection, and reports the node at the other end. Then waits for its first keepalive: a
/// node that only introduces itself closes the connection instead, and its older stream stays.
async fn accept_stream(
    stream: TcpStream,
    context: &TcpTransportContext,
    event_sender: &mpsc::Sender<TransportTaskEvent>,
) -> Result<PeerStream, PeerStreamError> {
    stream.set_nodelay(true)?;
    let mut stream = PeerStream::accept(stream, context).await?;
    // Sending fails only if the transport is dropped, and then this task is aborted.
    let _ = event_sender.send(TransportTaskEvent::NodeIntroduced(stream.peer.clone())).await;
    stream.receive_first_keepalive(context).await?;
    Ok(stream)
}

/// Receives the frames of a peer and sends keepalives.
async fn receive_frames(
    mut stream: PeerStream,
    context: &TcpTransportContext,
    event_sender: &mpsc::Sender<TransportTaskEvent>,
) -> Result<(), PeerStreamError> {
    let from = stream.peer.incarnation;
    let counters = context.counters.get_or_create(from);
    let mut keepalive_interval = interval(context.timing.keepalive_interval);
    keepalive_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_received_at = Instant::now();
    loop {
        tokio::select! {
            biased;
            _ = keepalive_interval.tick() => stream.send_frames([Bytes::new()], context, &counters).await?,
            received = stream.next_frame(&counters) => {
                let frame = received?;
                if !frame.is_empty() {
                    // Sending fails only if the transport is dropped, and then this task is aborted.
                    let _ = event_sender.send(TransportTaskEvent::Frame { from, frame }).await;
                }
                last_received_at = Instant::now();
            }
            () = sleep_until(last_received_at + context.timing.idle_timeout) => {
                return Err(PeerStreamError::IdleTimeout);
            }
        }
    }
}
