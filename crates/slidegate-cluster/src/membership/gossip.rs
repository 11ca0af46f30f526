//! Transport for `chitchat` that sends and receives authenticated gossip datagrams.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chitchat::transport::{Socket, Transport};
use chitchat::{ChitchatMessage, Deserializable, Serializable};
use slidegate::Clock;
use tokio::net::UdpSocket;
use tokio::time::sleep;
use tracing::debug;

use crate::seal::{DatagramOpener, DatagramSealer, MAX_DATAGRAM, RejectCounters, RejectReason};

/// Pause after an error of the gossip socket.
const PAUSE_AFTER_SOCKET_ERROR: Duration = Duration::from_millis(50);

/// Number of gossip bytes sent and received, including the bytes that authenticate each datagram. Rejected datagrams
/// are counted only by [`RejectCounters`].
#[derive(Debug, Default)]
pub struct GossipTraffic {
    sent_bytes: AtomicU64,
    received_bytes: AtomicU64,
}

impl GossipTraffic {
    /// Returns the number of gossip bytes sent.
    pub fn sent_bytes(&self) -> u64 {
        self.sent_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of gossip bytes received in accepted datagrams.
    pub fn received_bytes(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

/// A UDP socket with the keys to authenticate each sent datagram and to verify each received datagram.
pub(super) struct AuthenticatedUdpSocket {
    pub(super) socket: UdpSocket,
    pub(super) sealer: DatagramSealer,
    pub(super) opener: DatagramOpener,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reject_counters: Arc<RejectCounters>,
    pub(super) traffic: Arc<GossipTraffic>,
}

/// A transport for `chitchat` that returns an already bound socket when it is opened for the first time. Further calls
/// fail.
pub(super) struct SingleSocketTransport(Mutex<Option<AuthenticatedUdpSocket>>);

impl SingleSocketTransport {
    pub(super) const fn new(sealed: AuthenticatedUdpSocket) -> Self {
        Self(Mutex::new(Some(sealed)))
    }
}

#[async_trait]
impl Transport for SingleSocketTransport {
    async fn open(&self, _: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let sealed = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        let sealed =
            sealed.ok_or_else(|| anyhow::anyhow!("the gossip socket is already in use"))?;
        Ok(Box::new(GossipSocket {
            sealed,
            payload: Vec::new(),
            outgoing: Vec::new(),
            incoming: vec![0; MAX_DATAGRAM],
        }))
    }
}

/// The gossip socket that `chitchat` uses, with buffers for the datagrams.
struct GossipSocket {
    sealed: AuthenticatedUdpSocket,
    payload: Vec<u8>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

#[async_trait]
impl Socket for GossipSocket {
    /// Sends a datagram. Datagrams that cannot be sent are dropped, since `chitchat` would log an error in each round.
    async fn send(&mut self, to: SocketAddr, message: ChitchatMessage) -> anyhow::Result<()> {
        self.payload.clear();
        message.serialize(&mut self.payload);
        let AuthenticatedUdpSocket { socket, sealer, clock, reject_counters, traffic, .. } =
            &mut self.sealed;
        if let Err(reason) = sealer.seal(clock.now(), &self.payload, &mut self.outgoing) {
            reject_counters.count(reason);
            return Ok(());
        }
        match socket.send_to(&self.outgoing, to).await {
            Ok(sent) => _ = traffic.sent_bytes.fetch_add(sent as u64, Ordering::Relaxed),
            Err(error) => debug!(%to, %error, "gossip datagram not sent"),
        }
        Ok(())
    }

    async fn recv(&mut self) -> anyhow::Result<(SocketAddr, ChitchatMessage)> {
        loop {
            match self.sealed.socket.recv_from(&mut self.incoming).await {
                Ok((length, from)) => match self.verify_and_decode_received_datagram(length) {
                    Ok(message) => return Ok((from, message)),
                    Err(reason) => self.sealed.reject_counters.count(reason),
                },
                Err(error) => self.pause_after_error(&error).await,
            }
        }
    }
}

impl GossipSocket {
    fn verify_and_decode_received_datagram(
        &mut self,
        length: usize,
    ) -> Result<ChitchatMessage, RejectReason> {
        let datagram = self.incoming.get(..length).unwrap_or_default();
        let opened = self.sealed.opener.open(self.sealed.clock.now(), datagram)?;
        self.sealed.traffic.received_bytes.fetch_add(length as u64, Ordering::Relaxed);
        let mut payload = opened.payload;
        let message =
            ChitchatMessage::deserialize(&mut payload).map_err(|_| RejectReason::Malformed)?;
        if payload.is_empty() { Ok(message) } else { Err(RejectReason::Malformed) }
    }

    /// Waits after a socket error instead of returning the error, which would end the gossip task. The network may
    /// recover at any time, but an ended task does not.
    async fn pause_after_error(&self, error: &io::Error) {
        debug!(%error, "gossip datagram not received");
        sleep(PAUSE_AFTER_SOCKET_ERROR).await;
    }
}
