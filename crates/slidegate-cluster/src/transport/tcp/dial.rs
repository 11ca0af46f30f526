//! Outgoing connection to one peer, with reconnects.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep, sleep_until, timeout};
use tracing::debug;

use super::queue::{self, OutgoingFrameReceiver};
use super::stream::{self, FrameReader, PeerStreamError};
use super::{PeerAddress, TcpTransportContext, TransportTaskEvent};
use crate::seal::{FrameSealer, RejectReason, Session};
use crate::transport::link_counters::LinkCounters;

/// Maximum number of bytes that are combined into one write.
const MAX_FRAME_BYTES_PER_WRITE: usize = 64 * 1024;

/// A task that keeps a connection to one peer, and sends frames on it.
pub(super) struct PeerDialer {
    pub(super) context: Arc<TcpTransportContext>,
    pub(super) peer: PeerAddress,
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
        let (stream, session) = match self.connect_and_handshake().await {
            Ok(connected) => connected,
            Err(error) => {
                self.log_stream_error(&error);
                return false;
            }
        };
        let (queue, frames) = queue::new_frame_queue();
        let (to, link) = (self.peer.incarnation, self.link);
        // Fails only if the transport is dropped, and then this task is aborted.
        let _ = self.event_sender.send(TransportTaskEvent::LinkUp { to, link, queue }).await;
        if let Err(error) = self.send_frames(stream, session, frames).await {
            self.log_stream_error(&error);
        }
        let _ = self.event_sender.send(TransportTaskEvent::LinkDown { to, link }).await;
        true
    }

    async fn connect_and_handshake(&self) -> Result<(TcpStream, Session), PeerStreamError> {
        let connected = timeout(self.context.timing.connect_timeout, self.connect()).await;
        let mut stream = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        stream.set_nodelay(true)?;
        let session = stream::client_handshake(&mut stream, &self.context).await?;
        if session.peer.incarnation != self.peer.incarnation {
            return Err(RejectReason::WrongNode.into());
        }
        Ok((stream, session))
    }

    async fn connect(&self) -> io::Result<TcpStream> {
        let address = self.peer.address;
        let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        if let Some(ip) = self.context.source_ip.filter(|ip| ip.is_ipv4() == address.is_ipv4()) {
            socket.bind((ip, 0).into())?;
        }
        socket.connect(address).await
    }

    /// Sends queued frames and keepalives, and receives the keepalives of the peer.
    async fn send_frames(
        &self,
        stream: TcpStream,
        session: Session,
        mut frames: OutgoingFrameReceiver,
    ) -> Result<(), PeerStreamError> {
        let (read, mut write) = stream.into_split();
        let Session { mut sealer, opener, .. } = session;
        let mut reader = FrameReader::new(read, opener);
        let timing = self.context.timing;
        let mut keepalive_interval = interval(timing.keepalive_interval);
        keepalive_interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut last_received_at = Instant::now();
        let mut sealed = Vec::new();
        loop {
            sealed.clear();
            tokio::select! {
                // Reads before checking the idle timeout, since a write may have taken long.
                biased;
                read = reader.fill_buffer(&self.counters) => {
                    read?;
                    last_received_at = Instant::now();
                    // The accepting side sends only keepalives.
                    if reader.next_frame(&self.counters)?.is_some() {
                        return Err(RejectReason::Malformed.into());
                    }
                    continue;
                }
                () = sleep_until(last_received_at + timing.idle_timeout) => return Err(PeerStreamError::IdleTimeout),
                Some(frame) = frames.next() => self.seal_frames_for_one_write(&mut sealer, frame, &mut frames, &mut sealed)?,
                _ = keepalive_interval.tick() => sealer.seal(&[], &mut sealed)?,
            }
            stream::write_with_timeout(&mut write, &sealed, &self.context, &self.counters).await?;
        }
    }

    /// Seals (authenticates) a frame and further queued frames, up to [`MAX_FRAME_BYTES_PER_WRITE`].
    fn seal_frames_for_one_write(
        &self,
        sealer: &mut FrameSealer,
        first: Bytes,
        frames: &mut OutgoingFrameReceiver,
        sealed: &mut Vec<u8>,
    ) -> Result<(), RejectReason> {
        let mut next = Some(first);
        while let Some(frame) = next {
            sealer.seal(&frame, sealed)?;
            self.counters.sent_frames.add(1);
            next = if sealed.len() < MAX_FRAME_BYTES_PER_WRITE { frames.try_next() } else { None };
        }
        Ok(())
    }

    fn log_stream_error(&self, error: &PeerStreamError) {
        if let PeerStreamError::Rejected(reason) = error {
            self.context.reject_counters.count(*reason);
        }
        debug!(peer = self.peer.incarnation.0, address = %self.peer.address, %error, "link to cluster node down");
    }
}
