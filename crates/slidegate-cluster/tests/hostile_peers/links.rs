//! Links between two nodes that are stopped, replaced or redirected.

use std::time::Duration;

use slidegate_cluster::node_info::NodeInfo;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::transport::{RejectReason, Transport, TransportEvent};
use tokio::net::TcpListener;
use tokio::time::timeout;

use crate::hostile_peers::fixtures::{
    TEST_TIMEOUT, TransportNode, short_test_timeouts, start_two_nodes, test_key,
};
use crate::hostile_peers::relay::TestRelay;

#[tokio::test]
async fn unexpected_incarnation_gets_no_link() {
    let (mut node1, node2) = start_two_nodes().await;
    node1.transport.set_peers(&[NodeInfo { incarnation: Incarnation(3), ..node2.info.clone() }]);
    node1.wait_until_rejected(RejectReason::WrongNode, 2).await;
    assert!(node1.is_quiet().await);
}

#[tokio::test]
async fn connection_to_self_is_rejected() {
    let mut node1 = TransportNode::start(1, short_test_timeouts()).await;
    node1.transport.set_peers(&[NodeInfo { incarnation: Incarnation(2), ..node1.info.clone() }]);
    node1.wait_until_rejected(RejectReason::Reflected, 2).await;
    assert!(node1.is_quiet().await);
}

#[tokio::test]
async fn broken_link_is_detected_and_reestablished() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    relay.is_paused.send_replace(true);
    assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
    relay.is_paused.send_replace(false);
    assert_eq!(node1.next().await, TransportEvent::LinkUp(peer.incarnation));
    node1.send_test_frame(&mut node2).await;
}

#[tokio::test]
async fn reconnected_node_replaces_its_older_stream() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let peer = node2.info.clone();
    for _ in 0..5 {
        node1.connect_and_send_test_frame(&mut node2, &peer).await;
        node1.transport.set_peers(&[]);
    }
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
}

#[tokio::test]
async fn connections_originate_from_listen_address() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut node1 = TransportNode::start_at("127.0.0.2:0", &test_key(), 1, short_test_timeouts());
    let address = Some(listener.local_addr().unwrap());
    let peer = NodeInfo { incarnation: Incarnation(2), name: "node-2".into(), address };
    node1.transport.set_peers(&[peer]);
    let (_, from) = timeout(TEST_TIMEOUT, listener.accept()).await.unwrap().unwrap();
    assert_eq!(from.ip(), node1.address().ip());
}

#[tokio::test]
async fn idle_link_stays_up() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let peer = node2.info.clone();
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    assert!(timeout(3 * short_test_timeouts().idle_timeout, node1.next()).await.is_err());
    node1.send_test_frame(&mut node2).await;
}

#[tokio::test]
async fn stream_without_keepalives_is_closed() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
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
    let (mut node1, mut node2) = start_two_nodes().await;
    let mut duplicate = TransportNode::start(1, short_test_timeouts()).await;
    let peer = node2.info.clone();
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    duplicate.connect_and_send_test_frame(&mut node2, &peer).await;
    assert_eq!(node1.next().await, TransportEvent::LinkDown(peer.incarnation));
}

#[tokio::test]
async fn removed_link_causes_no_link_up_event() {
    let (mut node1, mut node2) = start_two_nodes().await;
    node1.transport.set_peers(std::slice::from_ref(&node2.info));
    while node2.transport.traffic().iter().all(|(_, traffic)| traffic.received_bytes == 0) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    node1.transport.set_peers(&[]);
    let peer = node2.info.clone();
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    assert!(node1.is_quiet().await);
}

#[tokio::test]
async fn peer_with_new_address_is_redialed() {
    let (mut node1, mut node2) = start_two_nodes().await;
    let relay = TestRelay::new(node2.address()).await;
    let peer = node2.info_at(relay.address);
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
    let peer = node2.info.clone();
    node1.connect_and_send_test_frame(&mut node2, &peer).await;
}
