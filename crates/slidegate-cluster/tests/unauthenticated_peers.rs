//! Tests of the TCP transport with clients that do not have the key, and with an attacker that changes or replays the
//! traffic between two nodes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{ClusterKey, PeerIdentity, RejectCounters, RejectReason, VERSION};
use slidegate_cluster::transport::tcp::{MAX_PENDING_HANDSHAKES, TcpTransport, Timing};
use slidegate_cluster::transport::{PeerAddress, Transport, TransportEvent};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

const LOOPBACK_ADDRESS: &str = "127.0.0.1:0";
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// Returns timeouts that are short enough for tests.
fn short_test_timeouts() -> Timing {
    Timing {
        handshake_timeout: Duration::from_millis(300),
        keepalive_interval: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(500),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(20),
        ..Timing::default()
    }
}

/// Returns timeouts that are short enough for tests, except for the handshake timeout, which is so long that no test
/// reaches it.
fn short_timeouts_except_handshake() -> Timing {
    Timing { handshake_timeout: 2 * TEST_TIMEOUT, ..short_test_timeouts() }
}

/// A TCP transport with its address.
struct TransportNode {
    transport: TcpTransport,
    peer: PeerAddress,
    reject_counters: Arc<RejectCounters>,
}

impl TransportNode {
    /// Starts a node with the key of all tests on loopback.
    async fn start(incarnation: u64, timing: Timing) -> Self {
        Self::start_with_key(LOOPBACK_ADDRESS, incarnation, "a key for all of these tests", timing)
            .await
    }

    /// Starts a node with the given listen address and key.
    async fn start_with_key(listen: &str, incarnation: u64, key: &str, timing: Timing) -> Self {
        let listener = TcpListener::bind(listen).await.unwrap();
        let peer = PeerAddress {
            incarnation: Incarnation(incarnation),
            address: listener.local_addr().unwrap(),
        };
        let identity =
            PeerIdentity { incarnation: peer.incarnation, name: format!("node-{incarnation}") };
        let (key, reject_counters) =
            (ClusterKey::new(key).unwrap(), Arc::new(RejectCounters::default()));
        let transport =
            TcpTransport::new(listener, key, identity, Arc::clone(&reject_counters), timing)
                .unwrap();
        Self { transport, peer, reject_counters }
    }

    /// Waits for the next event of the transport.
    async fn next(&mut self) -> TransportEvent {
        timeout(TEST_TIMEOUT, self.transport.next()).await.expect("no event within 30 s")
    }

    /// Waits until at least `count` frames or handshakes have been rejected for a reason.
    async fn wait_until_rejected(&self, reason: RejectReason, count: u64) {
        let wait = async {
            while self.reject_counters.get(reason) < count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(timeout(TEST_TIMEOUT, wait).await.is_ok(), "{:?}", self.reject_counters);
    }

    /// Connects to the node `other` at the address in `peer`, sends a frame, and waits until the frame has arrived.
    async fn connect_and_send_test_frame(&mut self, other: &mut Self, peer: PeerAddress) {
        self.transport.set_peers(&[peer]);
        assert_eq!(self.next().await, TransportEvent::LinkUp(peer.incarnation));
        self.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
        assert_eq!(other.next().await, hello_frame_event(self.peer.incarnation));
    }
}

/// Returns the event of a received `hello` frame.
fn hello_frame_event(from: Incarnation) -> TransportEvent {
    TransportEvent::Frame { from, frame: Bytes::from_static(b"hello") }
}

/// Waits until the other side has closed the connection.
async fn wait_until_closed(stream: &mut TcpStream) {
    let read = timeout(TEST_TIMEOUT, stream.read_to_end(&mut Vec::new()))
        .await
        .expect("the connection stays open");
    assert!(read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

/// A TCP relay between two nodes that can modify, record and pause the traffic.
struct TestRelay {
    address: SocketAddr,
    /// While `true`, nothing is forwarded and no connection is closed.
    is_paused: watch::Sender<bool>,
    /// The unmodified bytes that were sent to the target node.
    forwarded: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl TestRelay {
    /// Starts a relay that forwards connections to the address `to`, and applies `modify` to the bytes sent in this
    /// direction.
    async fn new(to: SocketAddr, mut modify: impl FnMut(&mut Vec<u8>) + Send + 'static) -> Self {
        let listener = TcpListener::bind(LOOPBACK_ADDRESS).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (is_paused, pause_receiver) = watch::channel(false);
        let (recorder, forwarded) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let to = TcpStream::connect(to).await.unwrap();
                let _ =
                    forward_connection(stream, to, &mut modify, pause_receiver.clone(), &recorder)
                        .await;
            }
        });
        Self { address, is_paused, forwarded }
    }
}

/// Forwards one connection. The relay handles one connection at a time, so others wait while it is paused.
async fn forward_connection(
    mut from: TcpStream,
    mut to: TcpStream,
    modify: &mut impl FnMut(&mut Vec<u8>),
    mut is_paused: watch::Receiver<bool>,
    recorder: &mpsc::UnboundedSender<Vec<u8>>,
) -> std::io::Result<()> {
    let (mut outbound, mut inbound) = (Vec::with_capacity(65_536), Vec::with_capacity(65_536));
    loop {
        if *is_paused.borrow() {
            let _ = is_paused.wait_for(|is_paused| !is_paused).await;
            return Ok(());
        }
        tokio::select! {
            read = from.read_buf(&mut outbound) => if read? == 0 { return Ok(()) },
            read = to.read_buf(&mut inbound) => if read? == 0 { return Ok(()) },
            _ = is_paused.changed() => continue,
        }
        let _ = recorder.send(outbound.clone());
        modify(&mut outbound);
        to.write_all(&outbound).await?;
        from.write_all(&inbound).await?;
        outbound.clear();
        inbound.clear();
    }
}

#[tokio::test]
async fn silent_client_is_disconnected() {
    let node = TransportNode::start(1, short_test_timeouts()).await;
    let mut client = TcpStream::connect(node.peer.address).await.unwrap();
    wait_until_closed(&mut client).await;
    assert_eq!(node.reject_counters.get(RejectReason::TooSlow), 1);
}

#[tokio::test]
async fn wrong_version_byte_is_rejected_immediately() {
    let node = TransportNode::start(1, short_timeouts_except_handshake()).await;
    for first_bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b"\n", &[VERSION + 1]] {
        let mut client = TcpStream::connect(node.peer.address).await.unwrap();
        client.write_all(first_bytes).await.unwrap();
        wait_until_closed(&mut client).await;
    }
    assert_eq!(node.reject_counters.get(RejectReason::WrongVersion), 4);
}

#[tokio::test]
async fn truncated_hello_is_counted() {
    let node = TransportNode::start(1, short_timeouts_except_handshake()).await;
    let mut client = TcpStream::connect(node.peer.address).await.unwrap();
    client.write_all(&[VERSION, 1, 2, 3]).await.unwrap();
    client.shutdown().await.unwrap();
    wait_until_closed(&mut client).await;
    assert_eq!(node.reject_counters.get(RejectReason::Truncated), 1);
}

#[tokio::test]
async fn pending_unauthenticated_clients_do_not_block_nodes() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_timeouts_except_handshake()).await,
        TransportNode::start(2, short_timeouts_except_handshake()).await,
    );
    let mut clients = Vec::new();
    for _ in 0..3 * MAX_PENDING_HANDSHAKES {
        clients.push(TcpStream::connect(node2.peer.address).await.unwrap());
    }
    let peer = node2.peer;
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    node2.wait_until_rejected(RejectReason::Crowded, 2 * MAX_PENDING_HANDSHAKES as u64).await;
    for client in &mut clients[..MAX_PENDING_HANDSHAKES] {
        wait_until_closed(client).await;
    }
}

#[tokio::test]
async fn node_with_other_key_gets_no_link() {
    let mut node1 = TransportNode::start_with_key(
        LOOPBACK_ADDRESS,
        1,
        "a key that no other node has",
        short_test_timeouts(),
    )
    .await;
    let mut node2 = TransportNode::start(2, short_test_timeouts()).await;
    node1.transport.set_peers(&[node2.peer]);
    node2.transport.set_peers(&[node1.peer]);
    node2.wait_until_rejected(RejectReason::WrongMac, 3).await;
    node1.wait_until_rejected(RejectReason::WrongMac, 3).await;
    for node in [&mut node1, &mut node2] {
        assert!(timeout(Duration::from_millis(50), node.transport.next()).await.is_err());
    }
}

#[tokio::test]
async fn unexpected_incarnation_gets_no_link() {
    let (mut node1, node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    node1.transport.set_peers(&[PeerAddress { incarnation: Incarnation(3), ..node2.peer }]);
    node1.wait_until_rejected(RejectReason::WrongNode, 2).await;
    assert!(timeout(Duration::from_millis(50), node1.transport.next()).await.is_err());
}

#[tokio::test]
async fn connection_to_self_is_rejected() {
    let mut node1 = TransportNode::start(1, short_test_timeouts()).await;
    node1.transport.set_peers(&[PeerAddress { incarnation: Incarnation(2), ..node1.peer }]);
    node1.wait_until_rejected(RejectReason::Reflected, 2).await;
    assert!(timeout(Duration::from_millis(50), node1.transport.next()).await.is_err());
}

#[tokio::test]
async fn broken_link_is_detected_and_reestablished() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let relay = TestRelay::new(node2.peer.address, |_| {}).await;
    let peer = PeerAddress { address: relay.address, ..node2.peer };
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    relay.is_paused.send_replace(true);
    assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
    relay.is_paused.send_replace(false);
    assert_eq!(node1.next().await, TransportEvent::LinkUp(peer.incarnation));
    node1.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(node2.next().await, hello_frame_event(node1.peer.incarnation));
}

#[tokio::test]
async fn link_reconnects_after_modified_frame() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let mut remaining_changes = 3;
    let relay = TestRelay::new(node2.peer.address, move |outbound| {
        if let Some(index) = outbound
            .windows(3)
            .position(|window| window == b"bad")
            .filter(|_| remaining_changes > 0)
        {
            remaining_changes -= 1;
            outbound[index] = b'm';
        }
    });
    let peer = PeerAddress { address: relay.await.address, ..node2.peer };
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    for _ in 0..3 {
        node1.transport.send(peer.incarnation, Bytes::from_static(b"bad"));
        assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
        assert_eq!(node1.next().await, TransportEvent::LinkUp(peer.incarnation));
    }
    node1.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(
        node2.next().await,
        hello_frame_event(node1.peer.incarnation),
        "no modified frame was delivered"
    );
    assert_eq!(node2.reject_counters.get(RejectReason::WrongMac), 3);
}

#[tokio::test]
async fn replayed_stream_is_rejected() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let mut relay = TestRelay::new(node2.peer.address, |_| {}).await;
    let peer = PeerAddress { address: relay.address, ..node2.peer };
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    let mut recorded = Vec::new();
    while let Ok(bytes) = relay.forwarded.try_recv() {
        recorded.extend(bytes);
    }
    assert!(recorded.windows(5).any(|window| window == b"hello"));
    let mut client = TcpStream::connect(node2.peer.address).await.unwrap();
    client.write_all(&recorded).await.unwrap();
    wait_until_closed(&mut client).await;
    assert_eq!(node2.reject_counters.get(RejectReason::WrongMac), 1);
    node1.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(
        node2.next().await,
        hello_frame_event(node1.peer.incarnation),
        "the link still works"
    );
    assert!(timeout(Duration::from_millis(50), node2.transport.next()).await.is_err());
}

#[tokio::test]
async fn reconnected_node_replaces_its_older_stream() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let peer = node2.peer;
    for _ in 0..5 {
        node1.connect_and_send_test_frame(&mut node2, peer).await;
        node1.transport.set_peers(&[]);
    }
    node1.connect_and_send_test_frame(&mut node2, peer).await;
}

#[tokio::test]
async fn connections_originate_from_listen_address() {
    let listener = TcpListener::bind(LOOPBACK_ADDRESS).await.unwrap();
    let mut node1 = TransportNode::start_with_key(
        "127.0.0.2:0",
        1,
        "a key for all of these tests",
        short_test_timeouts(),
    )
    .await;
    let peer = PeerAddress { incarnation: Incarnation(2), address: listener.local_addr().unwrap() };
    node1.transport.set_peers(&[peer]);
    let (_, from) = timeout(TEST_TIMEOUT, listener.accept()).await.unwrap().unwrap();
    assert_eq!(from.ip(), node1.peer.address.ip());
}

#[tokio::test]
async fn idle_link_stays_up() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let peer = node2.peer;
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    assert!(timeout(3 * short_test_timeouts().idle_timeout, node1.transport.next()).await.is_err());
    node1.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(node2.next().await, hello_frame_event(node1.peer.incarnation));
}

#[tokio::test]
async fn stream_without_keepalives_is_closed() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let relay = TestRelay::new(node2.peer.address, |_| {}).await;
    let peer = PeerAddress { address: relay.address, ..node2.peer };
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    relay.is_paused.send_replace(true);
    let wait_until_dropped = async {
        while !node2.transport.traffic().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(TEST_TIMEOUT, wait_until_dropped).await.is_ok(), "the stream was not closed");
}

#[tokio::test]
async fn only_one_stream_per_incarnation_is_kept() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let (mut duplicate, peer) = (TransportNode::start(1, short_test_timeouts()).await, node2.peer);
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    duplicate.connect_and_send_test_frame(&mut node2, peer).await;
    assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
}

#[tokio::test]
async fn removed_link_causes_no_link_up_event() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    node1.transport.set_peers(&[node2.peer]);
    while node2.transport.traffic().iter().all(|(_, traffic)| traffic.received_bytes == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node1.transport.set_peers(&[]);
    let peer = node2.peer;
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    assert!(timeout(Duration::from_millis(50), node1.transport.next()).await.is_err());
}

#[tokio::test]
async fn peer_with_new_address_is_redialed() {
    let (mut node1, mut node2) = (
        TransportNode::start(1, short_test_timeouts()).await,
        TransportNode::start(2, short_test_timeouts()).await,
    );
    let relay = TestRelay::new(node2.peer.address, |_| {}).await;
    let peer = PeerAddress { address: relay.address, ..node2.peer };
    node1.connect_and_send_test_frame(&mut node2, peer).await;
    let peer = node2.peer;
    node1.connect_and_send_test_frame(&mut node2, peer).await;
}
