//! Nodes of the TCP transport on loopback.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::credentials::NodeTls;
use slidegate_cluster::membership::listen_on;
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::tcp::{TcpTransport, TransportTiming};
use slidegate_cluster::transport::{RejectCounters, RejectReason, Transport, TransportEvent};
use slidegate_cluster::{Certificates, Credentials};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::hostile_peers::certificates::shared_key;
use crate::hostile_peers::log::Log;

pub const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of times that a test repeats a rejected connection.
pub const REPEATS: u64 = 3;

/// Returns timeouts that are short enough for tests.
pub fn short_test_timeouts() -> TransportTiming {
    TransportTiming {
        handshake_timeout: Duration::from_secs(1),
        keepalive_interval: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(500),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(20),
        ..TransportTiming::default()
    }
}

/// Returns timeouts that are short enough for tests, except for the handshake timeout, which is so long that no test
/// reaches it.
pub fn short_timeouts_except_handshake() -> TransportTiming {
    TransportTiming { handshake_timeout: 2 * TEST_TIMEOUT, ..short_test_timeouts() }
}

/// A TCP transport with its address.
pub struct TransportNode {
    pub transport: TcpTransport,
    pub info: NodeInfo,
    pub reject_counters: Arc<RejectCounters>,
}

impl TransportNode {
    /// Starts a node with the key of all tests on loopback.
    pub async fn start(incarnation: u64, timing: TransportTiming) -> Self {
        Self::start_at("127.0.0.1:0", &test_key(), incarnation, timing)
    }

    /// Starts a node with certificates on loopback.
    pub async fn start_with_certificates(
        certificates: &Certificates,
        incarnation: u64,
        timing: TransportTiming,
    ) -> Self {
        let credentials = Credentials::Certificates(certificates.clone());
        Self::start_at("127.0.0.1:0", &credentials, incarnation, timing)
    }

    /// Starts a node with the given listen address and credentials.
    pub fn start_at(
        listen: &str,
        credentials: &Credentials,
        incarnation: u64,
        timing: TransportTiming,
    ) -> Self {
        let listener = listen_on(listen.parse().unwrap()).unwrap();
        let info = NodeInfo {
            incarnation: Incarnation(incarnation),
            name: format!("node-{incarnation}").into(),
            address: Some(listener.local_addr().unwrap()),
        };
        let tls = NodeTls::new(credentials).unwrap();
        let reject_counters = Arc::new(RejectCounters::default());
        let counters = Arc::clone(&reject_counters);
        let transport = TcpTransport::new(listener, tls, info.clone(), counters, timing).unwrap();
        Self { transport, info, reject_counters }
    }

    pub fn address(&self) -> SocketAddr {
        self.info.address.unwrap()
    }

    /// Returns this node as a peer that is reached at another address, for example of a relay.
    pub fn info_at(&self, address: SocketAddr) -> NodeInfo {
        NodeInfo { address: Some(address), ..self.info.clone() }
    }

    /// Waits for the next event of the transport that is not an introduction.
    pub async fn next(&mut self) -> TransportEvent {
        let next = async {
            loop {
                match self.transport.next().await {
                    TransportEvent::NodeIntroduced(_) => {}
                    event => return event,
                }
            }
        };
        timeout(TEST_TIMEOUT, next).await.expect("no event within 30 s")
    }

    /// Returns `true` if no event occurs for a short time.
    pub async fn is_quiet(&mut self) -> bool {
        timeout(Duration::from_millis(50), self.next()).await.is_err()
    }

    /// Waits until at least `count` connections have been rejected for a reason.
    pub async fn wait_until_rejected(&self, reason: RejectReason, count: u64) {
        let wait = async {
            while self.reject_counters.get(reason) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = timeout(TEST_TIMEOUT, wait).await;
        assert!(waited.is_ok(), "no {reason}: {:?}", self.reject_counters);
    }

    /// Waits until [`REPEATS`] connections have been rejected. Checks that there is no other reason, and that one
    /// warning is logged.
    pub async fn check_only_rejections(&self, reason: RejectReason, log: &Log) {
        self.wait_until_rejected(reason, REPEATS).await;
        let reasons = self.reject_counters.iter().filter(|(_, count)| *count > 0);
        let reasons: Vec<_> = reasons.map(|(reason, _)| reason).collect();
        let warnings = log.take_warnings();
        assert_eq!(reasons, [reason], "{warnings:?}");
        assert_eq!(warnings.len(), 1, "{warnings:?}");
    }

    /// Connects to the node `other` at the address in `peer`, sends a frame, and waits until the frame has arrived.
    pub async fn connect_and_send_test_frame(&mut self, other: &mut Self, peer: &NodeInfo) {
        self.transport.set_peers(std::slice::from_ref(peer));
        assert_eq!(self.next().await, TransportEvent::LinkUp(peer.incarnation));
        self.send_test_frame(other).await;
    }

    /// Sends a frame on the link to the node `other`, and waits until it has arrived.
    pub async fn send_test_frame(&mut self, other: &mut Self) {
        self.transport.send(other.info.incarnation, Bytes::from_static(b"hello"));
        let (from, frame) = (self.info.incarnation, Bytes::from_static(b"hello"));
        assert_eq!(other.next().await, TransportEvent::Frame { from, frame });
    }
}

/// Returns the credentials of nodes in tests that do not depend on them.
pub fn test_key() -> Credentials {
    shared_key("a key for all of these tests")
}

/// Starts two nodes with the key of all tests.
pub async fn start_two_nodes() -> (TransportNode, TransportNode) {
    let start = |incarnation| TransportNode::start(incarnation, short_test_timeouts());
    (start(1).await, start(2).await)
}

/// Waits until the other side has closed the connection.
pub async fn wait_until_closed(stream: &mut (impl AsyncRead + Unpin)) {
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new()))
        .await
        .expect("the connection stays open");
    let is_aborted = |error: std::io::Error| {
        matches!(
            error.kind(),
            ErrorKind::ConnectionReset | ErrorKind::InvalidData | ErrorKind::UnexpectedEof
        )
    };
    assert!(read.is_ok() || read.is_err_and(is_aborted));
}
