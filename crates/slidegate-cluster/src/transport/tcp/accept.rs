//! Incoming connections: handshakes and streams from peers.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{debug, warn};

use super::stream::{self, FrameReader, PeerStreamError};
use super::{MAX_PENDING_HANDSHAKES, MAX_STREAMS, TcpTransportContext, TransportTaskEvent};
use crate::pn_counter::Incarnation;
use crate::seal::{RejectReason, Session};

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
                Ok((stream, _)) => acceptor.start_handshake(stream),
                Err(error) => {
                    warn!(%error, "cannot accept connections of other nodes, so their counters arrive late; retrying");
                    sleep(PAUSE_AFTER_ACCEPT_ERROR).await;
                }
            },
            Some(completed) = acceptor.handshakes.join_next() => {
                if let Ok(Some((stream, session))) = completed {
                    acceptor.start_stream(stream, session);
                }
            },
            Some(ended) = acceptor.streams.tasks.join_next_with_id() => acceptor.streams.remove_stream_of_ended_task(&ended),
        }
    }
}

struct ConnectionAcceptor {
    context: Arc<TcpTransportContext>,
    event_sender: mpsc::Sender<TransportTaskEvent>,
    handshakes: JoinSet<Option<(TcpStream, Session)>>,
    /// Pending handshakes, oldest first.
    pending: VecDeque<AbortHandle>,
    streams: IncomingPeerStreams,
}

impl ConnectionAcceptor {
    /// Starts the handshake of a new connection. If too many handshakes are pending, aborts the oldest one, since nodes
    /// of the cluster complete their handshakes quickly.
    fn start_handshake(&mut self, mut stream: TcpStream) {
        self.pending.retain(|handshake| !handshake.is_finished());
        if self.pending.len() >= MAX_PENDING_HANDSHAKES
            && let Some(oldest) = self.pending.pop_front()
        {
            oldest.abort();
            self.context.reject_counters.count(RejectReason::Crowded);
        }
        let context = Arc::clone(&self.context);
        let handshake = self.handshakes.spawn(async move {
            let result = stream::server_handshake(&mut stream, &context).await;
            result
                .inspect_err(|error| log_stream_error(&context, error))
                .ok()
                .map(|session| (stream, session))
        });
        self.pending.push_back(handshake);
    }

    /// Starts a task that receives frames from an authenticated peer. Replaces an older stream of the same incarnation.
    fn start_stream(&mut self, stream: TcpStream, session: Session) {
        let peer = session.peer.incarnation;
        self.streams.close(peer);
        if self.streams.by_peer.len() >= MAX_STREAMS {
            return self.context.reject_counters.count(RejectReason::Crowded);
        }
        debug!(peer = peer.0, name = session.peer.name, "cluster node connected");
        let (context, event_sender) = (Arc::clone(&self.context), self.event_sender.clone());
        let receive = async move {
            if let Err(error) = receive_frames(stream, session, &context, &event_sender).await {
                log_stream_error(&context, &error);
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

/// Receives the frames of a peer and sends keepalives.
async fn receive_frames(
    stream: TcpStream,
    session: Session,
    context: &TcpTransportContext,
    event_sender: &mpsc::Sender<TransportTaskEvent>,
) -> Result<(), PeerStreamError> {
    stream.set_nodelay(true)?;
    let (read, mut write) = stream.into_split();
    let Session { peer, mut sealer, opener } = session;
    let from = peer.incarnation;
    let counters = context.counters.get_or_create(from);
    let mut frames = FrameReader::new(read, opener);
    let mut keepalive_interval = interval(context.timing.keepalive_interval);
    keepalive_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last_received_at = Instant::now();
    loop {
        while let Some(frame) = frames.next_frame(&counters)? {
            // Fails only if the transport is dropped, and then this task is aborted.
            let _ = event_sender.send(TransportTaskEvent::Frame { from, frame }).await;
            last_received_at = Instant::now();
        }
        tokio::select! {
            biased;
            _ = keepalive_interval.tick() => {
                let mut keepalive = Vec::new();
                sealer.seal(&[], &mut keepalive)?;
                stream::write_with_timeout(&mut write, &keepalive, context, &counters).await?;
            }
            read = frames.fill_buffer(&counters) => {
                read?;
                last_received_at = Instant::now();
            }
            () = sleep_until(last_received_at + context.timing.idle_timeout) => {
                return Err(PeerStreamError::IdleTimeout);
            }
        }
    }
}

fn log_stream_error(context: &TcpTransportContext, error: &PeerStreamError) {
    if let PeerStreamError::Rejected(reason) = error {
        context.reject_counters.count(*reason);
    }
    debug!(%error, "cluster connection closed");
}
