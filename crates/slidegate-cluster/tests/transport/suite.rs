//! Test cases that every transport must pass.

use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{LinkTraffic, MAX_FRAME_BYTES, Transport, TransportEvent};
use tokio::time::timeout;

use crate::transport::fixtures::TransportFixture;

/// The time without an event after which a test concludes that no event occurs.
const QUIET_PERIOD: Duration = Duration::from_millis(200);

/// Returns the event of a received frame.
fn frame_event(from: u64, frame: &'static [u8]) -> TransportEvent {
    TransportEvent::Frame { from: Incarnation(from), frame: Bytes::from_static(frame) }
}

/// Returns the event of a new link.
fn link_up_event(peer: &NodeInfo) -> TransportEvent {
    TransportEvent::LinkUp(peer.incarnation)
}

/// Waits for the next event that is not an introduction.
async fn next_event(transport: &mut impl Transport) -> TransportEvent {
    loop {
        match transport.next().await {
            TransportEvent::NodeIntroduced(_) => {}
            event => return event,
        }
    }
}

/// Returns `true` if no event other than introductions occurs.
async fn is_quiet(transport: &mut impl Transport) -> bool {
    timeout(QUIET_PERIOD, next_event(transport)).await.is_err()
}

/// Starts two nodes. The first has a link to the second, which is also returned as a peer.
async fn join_linked_nodes<C: TransportFixture>(
    fixture: &mut C,
) -> (C::Transport, C::Transport, NodeInfo) {
    let mut node1 = fixture.join(1, 1).await;
    let mut node2 = fixture.join(2, 2).await;
    let peer = fixture.peer(2).await;
    node1.set_peers(std::slice::from_ref(&peer));
    assert_eq!(node1.next().await, link_up_event(&peer));
    assert_eq!(node2.next().await, TransportEvent::NodeIntroduced(fixture.peer(1).await));
    (node1, node2, peer)
}

/// Returns the traffic between the transport and a node; zero if no traffic is recorded.
fn traffic_with_node(transport: &impl Transport, node: u64) -> LinkTraffic {
    let counts = transport.traffic().into_iter();
    counts
        .filter(|(peer, _)| *peer == Incarnation(node))
        .map(|(_, traffic)| traffic)
        .next()
        .unwrap_or_default()
}

pub async fn frames_arrive_unchanged_with_their_sender(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    for length in [1, 100, 4_096, MAX_FRAME_BYTES] {
        let sent = Bytes::from_iter((0..length).map(|nth| nth as u8));
        node1.send(peer.incarnation, sent.clone());
        assert_eq!(
            next_event(&mut node2).await,
            TransportEvent::Frame { from: Incarnation(1), frame: sent }
        );
    }
}

pub async fn frames_of_one_link_stay_in_order(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    for round in 0..20_u8 {
        let numbers = || (0..20).map(|nth| Bytes::from(vec![round, nth]));
        numbers().for_each(|number| node1.send(peer.incarnation, number));
        for number in numbers() {
            assert_eq!(
                next_event(&mut node2).await,
                TransportEvent::Frame { from: Incarnation(1), frame: number }
            );
        }
    }
}

pub async fn link_comes_up_when_peer_starts(fixture: &mut impl TransportFixture) {
    let mut node1 = fixture.join(1, 1).await;
    let peer = fixture.peer(2).await;
    node1.set_peers(std::slice::from_ref(&peer));
    assert!(is_quiet(&mut node1).await, "node 2 is not running");
    node1.send(peer.incarnation, Bytes::from_static(b"too early"));
    assert_eq!(traffic_with_node(&node1, 2).dropped_frames, 1);
    let mut node2 = fixture.join(2, 2).await;
    assert_eq!(next_event(&mut node1).await, link_up_event(&peer));
    node1.send(peer.incarnation, Bytes::from_static(b"in time"));
    assert_eq!(next_event(&mut node2).await, frame_event(1, b"in time"));
}

pub async fn link_follows_stop_and_restart_of_peer(fixture: &mut impl TransportFixture) {
    let (mut node1, node2, peer) = join_linked_nodes(fixture).await;
    drop(node2);
    assert_eq!(next_event(&mut node1).await, TransportEvent::LinkDown(peer.incarnation));
    node1.send(peer.incarnation, Bytes::from_static(b"without link"));
    let mut node2 = fixture.join(2, 2).await;
    assert_eq!(next_event(&mut node1).await, link_up_event(&peer));
    node1.send(peer.incarnation, Bytes::from_static(b"with link"));
    assert_eq!(
        next_event(&mut node2).await,
        frame_event(1, b"with link"),
        "a frame sent without a link is dropped"
    );
}

pub async fn restarted_peer_is_new_incarnation(fixture: &mut impl TransportFixture) {
    let (mut node1, node2, peer) = join_linked_nodes(fixture).await;
    drop(node2);
    let mut node2 = fixture.join(2, 22).await;
    assert_eq!(next_event(&mut node1).await, TransportEvent::LinkDown(peer.incarnation));
    assert!(is_quiet(&mut node1).await, "the previous incarnation is not running");
    let peer = fixture.node_info(2, 22).await;
    node1.set_peers(std::slice::from_ref(&peer));
    assert_eq!(next_event(&mut node1).await, link_up_event(&peer));
    node1.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(next_event(&mut node2).await, frame_event(1, b"hello"));
}

pub async fn removed_peer_causes_no_events(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    node1.set_peers(&[]);
    node1.send(peer.incarnation, Bytes::from_static(b"without link"));
    assert!(is_quiet(&mut node2).await, "node 2 is not a peer");
    drop(node2);
    assert!(is_quiet(&mut node1).await);
    let mut node2 = fixture.join(2, 2).await;
    node1.set_peers(&[peer.clone(), peer.clone()]);
    assert_eq!(next_event(&mut node1).await, link_up_event(&peer));
    node1.set_peers(std::slice::from_ref(&peer));
    node1.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(
        next_event(&mut node2).await,
        frame_event(1, b"hello"),
        "setting the same peers again changes nothing"
    );
    assert!(is_quiet(&mut node1).await);
}

pub async fn introduced_nodes_meet_without_link(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2) = (fixture.join(1, 1).await, fixture.join(2, 2).await);
    node1.introduce_local_node(fixture.address(2).await);
    assert_eq!(node1.next().await, TransportEvent::NodeIntroduced(fixture.peer(2).await));
    assert_eq!(node2.next().await, TransportEvent::NodeIntroduced(fixture.peer(1).await));
    node1.send(Incarnation(2), Bytes::from_static(b"without link"));
    node2.send(Incarnation(1), Bytes::from_static(b"without link"));
    assert!(timeout(QUIET_PERIOD, node1.next()).await.is_err());
    assert!(timeout(QUIET_PERIOD, node2.next()).await.is_err());
}

pub async fn introduction_keeps_open_link(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    node1.introduce_local_node(fixture.address(2).await);
    assert_eq!(node1.next().await, TransportEvent::NodeIntroduced(peer.clone()));
    assert_eq!(node2.next().await, TransportEvent::NodeIntroduced(fixture.peer(1).await));
    assert!(is_quiet(&mut node1).await, "the link stays up");
    node1.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(node2.next().await, frame_event(1, b"hello"));
}

pub async fn introduction_without_other_node_causes_no_event(fixture: &mut impl TransportFixture) {
    let mut node1 = fixture.join(1, 1).await;
    for node in [1, 2] {
        node1.introduce_local_node(fixture.address(node).await);
    }
    assert!(timeout(QUIET_PERIOD, node1.next()).await.is_err());
}

pub async fn non_peer_can_send_but_not_receive(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    node1.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(next_event(&mut node2).await, frame_event(1, b"hello"));
    node2.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert!(is_quiet(&mut node1).await);
    node2.set_peers(&[fixture.peer(1).await]);
    assert_eq!(next_event(&mut node2).await, TransportEvent::LinkUp(Incarnation(1)));
    node2.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert_eq!(next_event(&mut node1).await, frame_event(2, b"hello"));
}

pub async fn node_is_not_its_own_peer(fixture: &mut impl TransportFixture) {
    let mut node1 = fixture.join(1, 1).await;
    node1.set_peers(&[fixture.peer(1).await]);
    node1.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert!(is_quiet(&mut node1).await);
}

pub async fn oversized_frame_alone_is_dropped(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    node1.send(peer.incarnation, Bytes::from_static(b"before"));
    node1.send(peer.incarnation, Bytes::from(vec![7; MAX_FRAME_BYTES + 1]));
    node1.send(peer.incarnation, Bytes::from_static(b"behind"));
    assert_eq!(next_event(&mut node2).await, frame_event(1, b"before"));
    assert_eq!(next_event(&mut node2).await, frame_event(1, b"behind"));
    assert_eq!(traffic_with_node(&node1, 2).dropped_frames, 1);
}

pub async fn slow_peer_drops_frames_without_blocking_sender(fixture: &mut impl TransportFixture) {
    const SENT_FRAME_COUNT: u64 = 20_000;
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    let frame_bytes = Bytes::from(vec![7; MAX_FRAME_BYTES]);
    for nth in 0..SENT_FRAME_COUNT {
        node1.send(peer.incarnation, frame_bytes.clone());
        if nth % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut received = 0;
    while let Ok(event) = timeout(QUIET_PERIOD, next_event(&mut node2)).await {
        assert_eq!(
            event,
            TransportEvent::Frame { from: Incarnation(1), frame: frame_bytes.clone() }
        );
        received += 1;
    }
    let sent = traffic_with_node(&node1, 2);
    assert!(
        received > 0 && received < SENT_FRAME_COUNT / 4,
        "{received} of {SENT_FRAME_COUNT} frames were buffered"
    );
    assert!(sent.dropped_frames > 0 || sent.sent_frames == SENT_FRAME_COUNT, "{sent:?}");
    node1.send(peer.incarnation, Bytes::from_static(b"now"));
    assert_eq!(
        next_event(&mut node2).await,
        frame_event(1, b"now"),
        "frames arrive again while the peer reads"
    );
}

pub async fn dropped_next_future_loses_no_frame(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    for nth in 0..20_u8 {
        node1.send(peer.incarnation, Bytes::from(vec![nth; 30_000]));
        let event = loop {
            // Each future is polled once and dropped.
            if let Ok(event) = timeout(Duration::ZERO, node2.next()).await {
                break event;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(
            event,
            TransportEvent::Frame { from: Incarnation(1), frame: Bytes::from(vec![nth; 30_000]) }
        );
    }
}

pub async fn traffic_is_counted_per_node(fixture: &mut impl TransportFixture) {
    let (mut node1, mut node2, peer) = join_linked_nodes(fixture).await;
    for _ in 0..3 {
        node1.send(peer.incarnation, Bytes::from_static(b"hello"));
        assert_eq!(next_event(&mut node2).await, frame_event(1, b"hello"));
    }
    let (sent, received) = (traffic_with_node(&node1, 2), traffic_with_node(&node2, 1));
    assert_eq!((sent.sent_frames, received.received_frames), (3, 3));
    assert_eq!((sent.received_frames, received.sent_frames), (0, 0));
    assert!(sent.sent_bytes >= 15 && received.received_bytes >= 15, "{sent:?} {received:?}");
    assert_eq!((traffic_with_node(&node1, 1), traffic_with_node(&node2, 2)), Default::default());
    node1.set_peers(&[]);
    while traffic_with_node(&node1, 2) != LinkTraffic::default() {
        // The traffic of a removed peer is discarded when its link is closed.
        tokio::task::yield_now().await;
    }
}
