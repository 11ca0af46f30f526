//! Outgoing connection to one peer, with reconnects.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};

use super::queue::{self, OutgoingFrameReceiver};
use super::stream::{PeerStream, PeerStreamError};
use super::{TcpTransportContext, TransportTaskEvent};
use crate::node_info::NodeInfo;
use crate::pn_counter::Incarnation;
use crate::transport::RejectReason;
use crate::transport::link_counters::LinkCounters;

/// Maximum number of queued frames that are combined into one write.
const MAX_FRAMES_PER_WRITE: usize = 64;

/// A task that keeps a connection to one peer, and sends frames on it.
pub(super) struct PeerDialer {
    pub(super) context: Arc<TcpTransportContext>,
    pub(super) peer: Incarnation,
    pub(super) address: SocketAddr,
    pub(super) link: u64,
    pub(super) counters: Arc<LinkCounters>,
    pub(super) event_sender: mpsc::Sender<TransportTaskEvent>,
}

impl PeerDialer {
    /// Keeps the connection: connects, sends frames, and reconnects after each failure until the task is aborted.
    pub(super) async fn keep_connected(&self) {
        let mut backoff = self.context.timing.initial_backoff;
        loop {
            let was_up = self.connect_and_send().await;
            backoff = if was_up { self.context.timing.initial_backoff } else { backoff };
            // Jitter, so that nodes that lost each other at the same time do not all reconnect at once.
            sleep(backoff.mul_f64(0.5 + fastrand::f64() / 2.0)).await;
            backoff = (backoff * 2).min(self.context.timing.max_backoff);
        }
    }

    /// Connects once and sends frames until the link fails. Returns `true` if the handshake was completed, so that the
    /// link was up.
    async fn connect_and_send(&self) -> bool {
        let stream = match self.connect().await {
            Ok(stream) => stream,
            Err(error) => {
                self.context.report_closed_connection(self.address, &error);
                return false;
            }
        };
        let (queue, frames) = queue::new_frame_queue();
        let (to, link) = (self.peer, self.link);
        // Sending fails only if the transport is dropped, and then this task is aborted.
        let _ = self.event_sender.send(TransportTaskEvent::LinkUp { to, link, queue }).await;
        if let Err(error) = self.send_frames(stream, frames).await {
            self.context.report_closed_connection(self.address, &error);
        }
        let _ = self.event_sender.send(TransportTaskEvent::LinkDown { to, link }).await;
        true
    }

    async fn connect(&self) -> Result<PeerStream, PeerStreamError> {
        let mut stream = connect_to(self.address, &self.context).await?;
        if stream.peer.incarnation == self.peer {
            // The first keepalive shows that this connection is not only an introduction.
            stream.send_frames([Bytes::new()], &self.context, &self.counters).await?;
            return Ok(stream);
        }
        let _ = self.event_sender.send(TransportTaskEvent::NodeIntroduced(stream.peer)).await;
        Err(RejectReason::WrongNode.into())
    }

    /// Sends queued frames and keepalives, and receives the keepalives of the peer.
    async fn send_frames(
        &self,
        mut stream: PeerStream,
        mut frames: OutgoingFrameReceiver,
    ) -> Result<(), PeerStreamError> {
        let (timing, counters) = (self.context.timing, &*self.counters);
        let mut keepalive_interval = interval(timing.keepalive_interval);
        keepalive_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_received_at = Instant::now();
        loop {
            tokio::select! {
                // Reads before checking the idle timeout, since a write may have taken long.
                biased;
                received = stream.next_frame(counters) => {
                    // The accepting side sends only keepalives, which are empty, so any other frame is an error.
                    if !received?.is_empty() {
                        return Err(RejectReason::Malformed.into());
                    }
                    last_received_at = Instant::now();
                }
                () = sleep_until(last_received_at + timing.idle_timeout) => return Err(PeerStreamError::IdleTimeout),
                Some(first) = frames.next() => {
                    let queued = std::iter::from_fn(|| frames.try_next()).take(MAX_FRAMES_PER_WRITE);
                    stream.send_frames(std::iter::once(first).chain(queued), &self.context, counters).await?;
                }
                _ = keepalive_interval.tick() => stream.send_frames([Bytes::new()], &self.context, counters).await?,
            }
        }
    }
}

/// Connects to an address once, and introduces this node to the node there. Returns the other node.
pub(super) async fn introduce_local_node(
    address: SocketAddr,
    context: &TcpTransportContext,
) -> Result<NodeInfo, PeerStreamError> {
    connect_to(address, context).await.map(|stream| stream.peer)
}

async fn connect_to(
    address: SocketAddr,
    context: &TcpTransportContext,
) -> Result<PeerStream, PeerStreamError> {
    let connecting = connect_tcp(address, context);
    let connected = timeout(context.timing.connect_timeout, connecting).await;
    let tcp = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    tcp.set_nodelay(true)?;
    PeerStream::connect(tcp, context).await
}

async fn connect_tcp(address: SocketAddr, context: &TcpTransportContext) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    if let Some(ip) = context.source_ip.filter(|ip| ip.is_ipv4() == address.is_ipv4()) {
        socket.bind((ip, 0).into())?;
    }
    socket.connect(address).await
}
