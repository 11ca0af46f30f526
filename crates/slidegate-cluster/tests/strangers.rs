//! What reaches a node's port over TCP and is no node, and what somebody between two nodes can do.
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

const LOOPBACK: &str = "127.0.0.1:0";
const PATIENCE: Duration = Duration::from_secs(30);

/// So quick that a test may wait for it.
fn quick() -> Timing {
    Timing {
        handshake_timeout: Duration::from_millis(300),
        keepalive_interval: Duration::from_millis(50),
        idle_timeout: Duration::from_millis(500),
        initial_backoff: Duration::from_millis(5),
        max_backoff: Duration::from_millis(20),
        ..Timing::default()
    }
}

/// With more time for handshakes than a test has.
fn patient() -> Timing {
    Timing { handshake_timeout: 2 * PATIENCE, ..quick() }
}

struct Node {
    transport: TcpTransport,
    peer: PeerAddress,
    reject_counters: Arc<RejectCounters>,
}

impl Node {
    async fn start(incarnation: u64, timing: Timing) -> Self {
        Self::start_at(LOOPBACK, incarnation, "a key for all of these tests", timing).await
    }

    async fn start_at(listen: &str, incarnation: u64, key: &str, timing: Timing) -> Self {
        let listener = TcpListener::bind(listen).await.unwrap();
        let peer = PeerAddress {
            incarnation: Incarnation(incarnation),
            address: listener.local_addr().unwrap(),
        };
        let me =
            PeerIdentity { incarnation: peer.incarnation, name: format!("node-{incarnation}") };
        let (key, reject_counters) =
            (ClusterKey::new(key).unwrap(), Arc::new(RejectCounters::default()));
        let transport =
            TcpTransport::new(listener, key, me, Arc::clone(&reject_counters), timing).unwrap();
        Self { transport, peer, reject_counters }
    }

    async fn next(&mut self) -> TransportEvent {
        timeout(PATIENCE, self.transport.next()).await.expect("nothing happens")
    }

    async fn until_refused(&self, refusal: RejectReason, times: u64) {
        let counted = async {
            while self.reject_counters.get(refusal) < times {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(timeout(PATIENCE, counted).await.is_ok(), "{:?}", self.reject_counters);
    }

    /// Calls the other, and is heard.
    async fn reaches(&mut self, other: &mut Self, peer: PeerAddress) {
        self.transport.set_peers(&[peer]);
        assert_eq!(self.next().await, TransportEvent::LinkUp(peer.incarnation));
        self.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
        assert_eq!(other.next().await, hello(self.peer.incarnation));
    }
}

fn hello(from: Incarnation) -> TransportEvent {
    TransportEvent::Frame { from, frame: Bytes::from_static(b"hello") }
}

/// Waits until the other side has closed the connection.
async fn closed(stream: &mut TcpStream) {
    let read = timeout(PATIENCE, stream.read_to_end(&mut Vec::new())).await.expect("it stays open");
    assert!(read.is_ok() || read.is_err_and(|error| error.kind() == ErrorKind::ConnectionReset));
}

/// Somebody between two nodes.
struct Between {
    address: SocketAddr,
    /// While it is set, nothing passes, and nothing is closed.
    held: watch::Sender<bool>,
    /// What passed towards the node.
    passed: mpsc::UnboundedReceiver<Vec<u8>>,
}

impl Between {
    /// Passes on what is sent to `to`, after it has changed it.
    async fn new(to: SocketAddr, mut change: impl FnMut(&mut Vec<u8>) + Send + 'static) -> Self {
        let listener = TcpListener::bind(LOOPBACK).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (held, hold) = watch::channel(false);
        let (tell, passed) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let to = TcpStream::connect(to).await.unwrap();
                let _ = pass(stream, to, &mut change, hold.clone(), &tell).await;
            }
        });
        Self { address, held, passed }
    }
}

/// One connection after the other: while one is held, others wait.
async fn pass(
    mut from: TcpStream,
    mut to: TcpStream,
    change: &mut impl FnMut(&mut Vec<u8>),
    mut hold: watch::Receiver<bool>,
    tell: &mpsc::UnboundedSender<Vec<u8>>,
) -> std::io::Result<()> {
    let (mut there, mut back) = (Vec::with_capacity(65_536), Vec::with_capacity(65_536));
    loop {
        if *hold.borrow() {
            let _ = hold.wait_for(|held| !held).await;
            return Ok(());
        }
        tokio::select! {
            read = from.read_buf(&mut there) => if read? == 0 { return Ok(()) },
            read = to.read_buf(&mut back) => if read? == 0 { return Ok(()) },
            _ = hold.changed() => continue,
        }
        let _ = tell.send(there.clone());
        change(&mut there);
        to.write_all(&there).await?;
        from.write_all(&back).await?;
        there.clear();
        back.clear();
    }
}

#[tokio::test]
async fn who_says_nothing_is_sent_away() {
    let node = Node::start(1, quick()).await;
    let mut silent = TcpStream::connect(node.peer.address).await.unwrap();
    closed(&mut silent).await;
    assert_eq!(node.reject_counters.get(RejectReason::TooSlow), 1);
}

#[tokio::test]
async fn who_speaks_another_language_is_sent_away_at_its_first_byte() {
    let node = Node::start(1, patient()).await;
    for words in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\x16\x03\x01", b"\n", &[VERSION + 1]] {
        let mut stranger = TcpStream::connect(node.peer.address).await.unwrap();
        stranger.write_all(words).await.unwrap();
        closed(&mut stranger).await;
    }
    assert_eq!(node.reject_counters.get(RejectReason::WrongVersion), 4);
}

#[tokio::test]
async fn who_stops_within_its_greeting_is_counted() {
    let node = Node::start(1, patient()).await;
    let mut stranger = TcpStream::connect(node.peer.address).await.unwrap();
    stranger.write_all(&[VERSION, 1, 2, 3]).await.unwrap();
    stranger.shutdown().await.unwrap();
    closed(&mut stranger).await;
    assert_eq!(node.reject_counters.get(RejectReason::Truncated), 1);
}

#[tokio::test]
async fn strangers_who_wait_do_not_keep_nodes_out() {
    let (mut one, mut two) = (Node::start(1, patient()).await, Node::start(2, patient()).await);
    let mut strangers = Vec::new();
    for _ in 0..3 * MAX_PENDING_HANDSHAKES {
        strangers.push(TcpStream::connect(two.peer.address).await.unwrap());
    }
    let peer = two.peer;
    one.reaches(&mut two, peer).await;
    two.until_refused(RejectReason::Crowded, 2 * MAX_PENDING_HANDSHAKES as u64).await;
    for longest in &mut strangers[..MAX_PENDING_HANDSHAKES] {
        closed(longest).await;
    }
}

#[tokio::test]
async fn a_node_with_another_key_gets_no_link() {
    let mut one = Node::start_at(LOOPBACK, 1, "a key that nobody else has got", quick()).await;
    let mut two = Node::start(2, quick()).await;
    one.transport.set_peers(&[two.peer]);
    two.transport.set_peers(&[one.peer]);
    two.until_refused(RejectReason::WrongMac, 3).await;
    one.until_refused(RejectReason::WrongMac, 3).await;
    for node in [&mut one, &mut two] {
        assert!(timeout(Duration::from_millis(50), node.transport.next()).await.is_err());
    }
}

#[tokio::test]
async fn another_node_than_the_one_that_was_called_gets_no_link() {
    let (mut one, two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    one.transport.set_peers(&[PeerAddress { incarnation: Incarnation(3), ..two.peer }]);
    one.until_refused(RejectReason::WrongNode, 2).await;
    assert!(timeout(Duration::from_millis(50), one.transport.next()).await.is_err());
}

#[tokio::test]
async fn a_node_that_calls_itself_is_not_heard() {
    let mut one = Node::start(1, quick()).await;
    one.transport.set_peers(&[PeerAddress { incarnation: Incarnation(2), ..one.peer }]);
    one.until_refused(RejectReason::Reflected, 2).await;
    assert!(timeout(Duration::from_millis(50), one.transport.next()).await.is_err());
}

#[tokio::test]
async fn a_cut_link_is_noticed_and_a_healed_one_found() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let between = Between::new(two.peer.address, |_| {}).await;
    let peer = PeerAddress { address: between.address, ..two.peer };
    one.reaches(&mut two, peer).await;
    between.held.send_replace(true);
    assert_eq!(one.next().await, TransportEvent::LinkDown(peer.incarnation));
    between.held.send_replace(false);
    assert_eq!(one.next().await, TransportEvent::LinkUp(peer.incarnation));
    one.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, hello(one.peer.incarnation));
}

#[tokio::test]
async fn a_frame_that_was_changed_ends_the_link_and_another_is_made() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let mut left = 3;
    let between = Between::new(two.peer.address, move |there| {
        if let Some(at) = there.windows(3).position(|some| some == b"bad").filter(|_| left > 0) {
            left -= 1;
            there[at] = b'm';
        }
    });
    let peer = PeerAddress { address: between.await.address, ..two.peer };
    one.reaches(&mut two, peer).await;
    for _ in 0..3 {
        one.transport.send(peer.incarnation, Bytes::from_static(b"bad"));
        assert_eq!(one.next().await, TransportEvent::LinkDown(peer.incarnation));
        assert_eq!(one.next().await, TransportEvent::LinkUp(peer.incarnation));
    }
    one.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, hello(one.peer.incarnation), "of the others nothing was heard");
    assert_eq!(two.reject_counters.get(RejectReason::WrongMac), 3);
}

#[tokio::test]
async fn a_stream_that_is_repeated_says_nothing() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let mut between = Between::new(two.peer.address, |_| {}).await;
    let peer = PeerAddress { address: between.address, ..two.peer };
    one.reaches(&mut two, peer).await;
    let mut heard = Vec::new();
    while let Ok(more) = between.passed.try_recv() {
        heard.extend(more);
    }
    assert!(heard.windows(5).any(|some| some == b"hello"));
    let mut stranger = TcpStream::connect(two.peer.address).await.unwrap();
    stranger.write_all(&heard).await.unwrap();
    closed(&mut stranger).await;
    assert_eq!(two.reject_counters.get(RejectReason::WrongMac), 1);
    one.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, hello(one.peer.incarnation), "the link is as it was");
    assert!(timeout(Duration::from_millis(50), two.transport.next()).await.is_err());
}

#[tokio::test]
async fn a_node_that_dials_again_is_heard_on_its_newest_stream() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let peer = two.peer;
    for _ in 0..5 {
        one.reaches(&mut two, peer).await;
        one.transport.set_peers(&[]);
    }
    one.reaches(&mut two, peer).await;
}

#[tokio::test]
async fn connections_come_from_the_address_that_the_node_listens_on() {
    let called = TcpListener::bind(LOOPBACK).await.unwrap();
    let mut one = Node::start_at("127.0.0.2:0", 1, "a key for all of these tests", quick()).await;
    let peer = PeerAddress { incarnation: Incarnation(2), address: called.local_addr().unwrap() };
    one.transport.set_peers(&[peer]);
    let (_, from) = timeout(PATIENCE, called.accept()).await.unwrap().unwrap();
    assert_eq!(from.ip(), one.peer.address.ip());
}

#[tokio::test]
async fn a_link_over_which_nothing_is_said_stays_up() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let peer = two.peer;
    one.reaches(&mut two, peer).await;
    assert!(timeout(3 * quick().idle_timeout, one.transport.next()).await.is_err());
    one.transport.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, hello(one.peer.incarnation));
}

#[tokio::test]
async fn a_stream_over_which_no_life_is_heard_is_given_up() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let between = Between::new(two.peer.address, |_| {}).await;
    let peer = PeerAddress { address: between.address, ..two.peer };
    one.reaches(&mut two, peer).await;
    between.held.send_replace(true);
    let given_up = async {
        while !two.transport.traffic().is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(timeout(PATIENCE, given_up).await.is_ok(), "nobody has closed it");
}

#[tokio::test]
async fn of_each_incarnation_one_stream_is_heard() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let (mut twin, peer) = (Node::start(1, quick()).await, two.peer);
    one.reaches(&mut two, peer).await;
    twin.reaches(&mut two, peer).await;
    assert_eq!(one.next().await, TransportEvent::LinkDown(peer.incarnation));
}

#[tokio::test]
async fn a_link_that_was_given_up_before_it_was_spoken_of_is_not_spoken_of() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    one.transport.set_peers(&[two.peer]);
    while two.transport.traffic().iter().all(|(_, traffic)| traffic.received_bytes == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    one.transport.set_peers(&[]);
    let peer = two.peer;
    one.reaches(&mut two, peer).await;
    assert!(timeout(Duration::from_millis(50), one.transport.next()).await.is_err());
}

#[tokio::test]
async fn a_peer_that_has_moved_is_dialled_where_it_is() {
    let (mut one, mut two) = (Node::start(1, quick()).await, Node::start(2, quick()).await);
    let between = Between::new(two.peer.address, |_| {}).await;
    let peer = PeerAddress { address: between.address, ..two.peer };
    one.reaches(&mut two, peer).await;
    let peer = two.peer;
    one.reaches(&mut two, peer).await;
}
