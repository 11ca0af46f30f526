//! The promises.

use std::time::Duration;

use bytes::Bytes;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{
    LinkTraffic, MAX_FRAME, PeerAddress, Transport, TransportEvent,
};
use tokio::time::timeout;

use crate::carriers::Carrier;

/// Long enough for what must not happen to happen.
const A_WHILE: Duration = Duration::from_millis(200);

fn frame(from: u64, frame: &'static [u8]) -> TransportEvent {
    TransportEvent::Frame { from: Incarnation(from), frame: Bytes::from_static(frame) }
}

fn up(peer: PeerAddress) -> TransportEvent {
    TransportEvent::LinkUp(peer.incarnation)
}

/// Two nodes, of which the first has a link to the second.
async fn linked<C: Carrier>(carrier: &mut C) -> (C::Transport, C::Transport, PeerAddress) {
    let mut one = carrier.join(1, 1).await;
    let two = carrier.join(2, 2).await;
    let peer = carrier.peer(2).await;
    one.set_peers(&[peer]);
    assert_eq!(one.next().await, up(peer));
    (one, two, peer)
}

/// The traffic with a node, and nothing if none is known.
fn traffic(transport: &impl Transport, node: u64) -> LinkTraffic {
    let all = transport.traffic().into_iter();
    all.filter(|(of, _)| *of == Incarnation(node))
        .map(|(_, traffic)| traffic)
        .next()
        .unwrap_or_default()
}

pub async fn frames_arrive_whole_and_say_who_sent_them(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    for length in [1, 100, 4_096, MAX_FRAME] {
        let sent = Bytes::from_iter((0..length).map(|nth| nth as u8));
        one.send(peer.incarnation, sent.clone());
        assert_eq!(two.next().await, TransportEvent::Frame { from: Incarnation(1), frame: sent });
    }
}

pub async fn frames_keep_their_order_while_a_link_lasts(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    for round in 0..20_u8 {
        let numbers = || (0..20).map(|nth| Bytes::from(vec![round, nth]));
        numbers().for_each(|number| one.send(peer.incarnation, number));
        for number in numbers() {
            assert_eq!(
                two.next().await,
                TransportEvent::Frame { from: Incarnation(1), frame: number }
            );
        }
    }
}

pub async fn a_link_comes_up_once_the_peer_is_there(carrier: &mut impl Carrier) {
    let mut one = carrier.join(1, 1).await;
    let peer = carrier.peer(2).await;
    one.set_peers(&[peer]);
    assert!(timeout(A_WHILE, one.next()).await.is_err(), "nobody is there");
    one.send(peer.incarnation, Bytes::from_static(b"too early"));
    assert_eq!(traffic(&one, 2).dropped_frames, 1);
    let mut two = carrier.join(2, 2).await;
    assert_eq!(one.next().await, up(peer));
    one.send(peer.incarnation, Bytes::from_static(b"in time"));
    assert_eq!(two.next().await, frame(1, b"in time"));
}

pub async fn a_link_goes_down_and_comes_up_with_the_peer(carrier: &mut impl Carrier) {
    let (mut one, two, peer) = linked(carrier).await;
    drop(two);
    assert_eq!(one.next().await, TransportEvent::LinkDown(peer.incarnation));
    one.send(peer.incarnation, Bytes::from_static(b"to nobody"));
    let mut two = carrier.join(2, 2).await;
    assert_eq!(one.next().await, up(peer));
    one.send(peer.incarnation, Bytes::from_static(b"to somebody"));
    assert_eq!(two.next().await, frame(1, b"to somebody"), "what was sent without a link is gone");
}

pub async fn a_restarted_peer_is_another_one(carrier: &mut impl Carrier) {
    let (mut one, two, peer) = linked(carrier).await;
    drop(two);
    let mut two = carrier.join(2, 22).await;
    assert_eq!(one.next().await, TransportEvent::LinkDown(peer.incarnation));
    assert!(timeout(A_WHILE, one.next()).await.is_err(), "that life of it is over");
    let peer = PeerAddress { incarnation: Incarnation(22), ..peer };
    one.set_peers(&[peer]);
    assert_eq!(one.next().await, up(peer));
    one.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, frame(1, b"hello"));
}

pub async fn peers_that_are_left_out_are_not_spoken_of(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    one.set_peers(&[]);
    one.send(peer.incarnation, Bytes::from_static(b"to nobody"));
    assert!(timeout(A_WHILE, two.next()).await.is_err(), "it is no peer");
    drop(two);
    assert!(timeout(A_WHILE, one.next()).await.is_err());
    let mut two = carrier.join(2, 2).await;
    one.set_peers(&[peer, peer]);
    assert_eq!(one.next().await, up(peer));
    one.set_peers(&[peer]);
    one.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, frame(1, b"hello"), "the same peers again change nothing");
    assert!(timeout(A_WHILE, one.next()).await.is_err());
}

pub async fn who_is_no_peer_is_heard_but_not_told(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    one.send(peer.incarnation, Bytes::from_static(b"hello"));
    assert_eq!(two.next().await, frame(1, b"hello"));
    two.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert!(timeout(A_WHILE, one.next()).await.is_err());
    two.set_peers(&[carrier.peer(1).await]);
    assert_eq!(two.next().await, TransportEvent::LinkUp(Incarnation(1)));
    two.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert_eq!(one.next().await, frame(2, b"hello"));
}

pub async fn a_node_is_no_peer_of_itself(carrier: &mut impl Carrier) {
    let mut one = carrier.join(1, 1).await;
    one.set_peers(&[carrier.peer(1).await]);
    one.send(Incarnation(1), Bytes::from_static(b"hello"));
    assert!(timeout(A_WHILE, one.next()).await.is_err());
}

pub async fn a_frame_too_long_is_dropped_and_nothing_else(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    one.send(peer.incarnation, Bytes::from_static(b"before"));
    one.send(peer.incarnation, Bytes::from(vec![7; MAX_FRAME + 1]));
    one.send(peer.incarnation, Bytes::from_static(b"behind"));
    assert_eq!(two.next().await, frame(1, b"before"));
    assert_eq!(two.next().await, frame(1, b"behind"));
    assert_eq!(traffic(&one, 2).dropped_frames, 1);
}

pub async fn a_peer_that_does_not_read_makes_frames_be_dropped_and_nobody_wait(
    carrier: &mut impl Carrier,
) {
    const SENT: u64 = 20_000;
    let (mut one, mut two, peer) = linked(carrier).await;
    let long = Bytes::from(vec![7; MAX_FRAME]);
    for nth in 0..SENT {
        one.send(peer.incarnation, long.clone());
        if nth % 16 == 0 {
            tokio::task::yield_now().await;
        }
    }
    let mut read = 0;
    while let Ok(event) = timeout(A_WHILE, two.next()).await {
        assert_eq!(event, TransportEvent::Frame { from: Incarnation(1), frame: long.clone() });
        read += 1;
    }
    let sent = traffic(&one, 2);
    assert!(read > 0 && read < SENT / 4, "{read} of {SENT} were kept somewhere");
    assert!(sent.dropped_frames > 0 || sent.sent_frames == SENT, "{sent:?}");
    one.send(peer.incarnation, Bytes::from_static(b"now"));
    assert_eq!(two.next().await, frame(1, b"now"), "once it reads, all is well");
}

pub async fn what_comes_is_not_lost_with_a_dropped_future(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    for nth in 0..20_u8 {
        one.send(peer.incarnation, Bytes::from(vec![nth; 30_000]));
        let arrived = loop {
            // Polled once and dropped, until it is ready.
            if let Ok(arrived) = timeout(Duration::ZERO, two.next()).await {
                break arrived;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!(
            arrived,
            TransportEvent::Frame { from: Incarnation(1), frame: Bytes::from(vec![nth; 30_000]) }
        );
    }
}

pub async fn traffic_is_counted_for_each_node(carrier: &mut impl Carrier) {
    let (mut one, mut two, peer) = linked(carrier).await;
    for _ in 0..3 {
        one.send(peer.incarnation, Bytes::from_static(b"hello"));
        assert_eq!(two.next().await, frame(1, b"hello"));
    }
    let (sent, received) = (traffic(&one, 2), traffic(&two, 1));
    assert_eq!((sent.sent_frames, received.received_frames), (3, 3));
    assert_eq!((sent.received_frames, received.sent_frames), (0, 0));
    assert!(sent.sent_bytes >= 15 && received.received_bytes >= 15, "{sent:?} {received:?}");
    assert_eq!((traffic(&one, 1), traffic(&two, 2)), Default::default());
    one.set_peers(&[]);
    while traffic(&one, 2) != LinkTraffic::default() {
        // Who is no peer any more is forgotten, as soon as the link is closed.
        tokio::task::yield_now().await;
    }
}
