//! Tests of the membership on the loopback interface: nodes discover each other, become silent and leave. Their
//! datagrams are authenticated. Tokio's clock is paused, and advances only while all tasks are idle.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, WallClock};
use slidegate_cluster::membership::{
    AdvertisedAddressError, JoinError, Membership, MembershipView, Settings, Sockets,
    has_other_seeds, incarnation, resolve_advertised,
};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{
    ClusterKey, DatagramOpener, DatagramSealer, RejectCounters, RejectReason,
};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

const LOOPBACK_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The unspecified address, with which a node listens on all interfaces.
const WILDCARD_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7_000);

/// Returns the key of all nodes.
fn test_key() -> ClusterKey {
    ClusterKey::new("a key for all of these tests").unwrap()
}

/// A node that takes part in gossip.
struct TestMember {
    membership: Membership,
    address: SocketAddr,
    reject_counters: Arc<RejectCounters>,
}

impl TestMember {
    /// Starts a node with the key of all tests.
    async fn join(name: &str, generation: u64, seeds: &[SocketAddr]) -> Self {
        Self::join_with_key(name, generation, seeds, test_key()).await
    }

    /// Starts a node with the given key.
    async fn join_with_key(
        name: &str,
        generation: u64,
        seeds: &[SocketAddr],
        key: ClusterKey,
    ) -> Self {
        let sockets = Sockets::bind(LOOPBACK_ADDRESS).await.unwrap();
        let (settings, reject_counters) =
            (member_settings(name, generation, sockets.address, seeds), Arc::default());
        let membership =
            Membership::join(settings, sockets.udp, &key, WallClock, Arc::clone(&reject_counters))
                .await;
        Self { membership: membership.unwrap(), address: sockets.address, reject_counters }
    }

    /// Waits until the membership view meets a condition. Returns the time that passed.
    async fn wait_until(
        &self,
        condition: &str,
        is_reached: impl FnMut(&MembershipView) -> bool,
    ) -> Duration {
        let (started_at, mut view) = (Instant::now(), self.membership.view());
        let result = timeout(Duration::from_secs(20), view.wait_for(is_reached)).await;
        assert!(result.is_ok(), "{condition}: {:?}", self.membership.view().borrow());
        started_at.elapsed()
    }

    /// Waits until exactly these other nodes are live. Returns the time that passed.
    async fn wait_until_live(&self, names: &[&str]) -> Duration {
        self.wait_until(&format!("{names:?} live"), |view| live_names(view) == names).await
    }
}

/// Returns the settings of a node.
fn member_settings(
    name: &str,
    generation: u64,
    advertise: SocketAddr,
    seeds: &[SocketAddr],
) -> Settings {
    let seeds = seeds.iter().map(SocketAddr::to_string).collect();
    Settings {
        name: name.to_owned(),
        generation,
        advertise,
        seeds,
        max_clock_skew: Duration::from_secs(2),
    }
}

/// Returns the names of the live nodes.
fn live_names(view: &MembershipView) -> Vec<&str> {
    view.live.iter().map(|member| &*member.name).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_find_each_other_through_one_seed() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let node2 = TestMember::join("two", 2, &[node1.address]).await;
    let node3 = TestMember::join("three", 3, &[node1.address]).await;
    node1.wait_until_live(&["three", "two"]).await;
    node2.wait_until_live(&["one", "three"]).await;
    node3.wait_until_live(&["one", "two"]).await;
    let view = node3.membership.view();
    let member = view.borrow().live[1].clone();
    assert_eq!((&*member.name, member.generation, member.address), ("two", 2, node2.address));
    assert_eq!(member.incarnation, node2.membership.incarnation());
    assert_eq!(member.incarnation, incarnation("two", 2));
    assert!(
        node1.membership.traffic().sent_bytes() > 0
            && node1.membership.traffic().received_bytes() > 0
    );
    assert!(
        node1.reject_counters.iter().all(|(_, count)| count == 0),
        "{:?}",
        node1.reject_counters
    );
}

#[tokio::test(start_paused = true)]
async fn node_can_be_its_own_seed() {
    let sockets = Sockets::bind(LOOPBACK_ADDRESS).await.unwrap();
    let settings = member_settings("one", 1, sockets.address, &[sockets.address]);
    let node1 = Membership::join(settings, sockets.udp, &test_key(), WallClock, Arc::default())
        .await
        .unwrap();
    let node2 = TestMember::join("two", 1, &[sockets.address]).await;
    node2.wait_until_live(&["one"]).await;
    assert_eq!(live_names(&node1.view().borrow()), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn silent_node_is_detected_within_five_seconds() {
    for other_count in 1..=4 {
        let node1 = TestMember::join("one", 1, &[]).await;
        let mut other_nodes = Vec::new();
        for nth in 0..other_count {
            other_nodes.push(TestMember::join(&format!("other-{nth}"), 1, &[node1.address]).await);
        }
        node1.wait_until("all nodes live", |view| view.live.len() == other_count).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(other_nodes.pop());
        let elapsed =
            node1.wait_until("one node is silent", |view| view.live.len() == other_count - 1).await;
        assert!(
            (2..=5).contains(&elapsed.as_secs()),
            "detected after {elapsed:?} among {other_count} nodes"
        );
        assert!(node1.membership.view().borrow().left.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn leaving_node_announces_departure() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let node2 = TestMember::join("two", 1, &[node1.address]).await;
    let node3 = TestMember::join("three", 1, &[node1.address]).await;
    for node in [&node1, &node3] {
        node.wait_until("two other nodes", |view| view.live.len() == 2).await;
    }
    node2.membership.leave().await;
    for node in [&node1, &node3] {
        let elapsed = node
            .wait_until("the departure is known", |view| {
                view.left.iter().any(|member| &*member.name == "two")
            })
            .await;
        assert_eq!(elapsed, Duration::ZERO, "leave returns after the announcement");
        assert_eq!(node.membership.view().borrow().live.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn joining_node_receives_earlier_departures() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let node2 = TestMember::join("two", 1, &[node1.address]).await;
    node1.wait_until_live(&["two"]).await;
    node2.wait_until_live(&["one"]).await;
    node2.membership.leave().await;
    let node3 = TestMember::join("three", 1, &[node1.address]).await;
    node3
        .wait_until("the departure is known", |view| {
            live_names(view) == ["one"] && view.left.len() == 1
        })
        .await;
}

#[tokio::test(start_paused = true)]
async fn restarted_node_replaces_previous_incarnation_immediately() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let node2 = TestMember::join("two", 1, &[node1.address]).await;
    node1.wait_until_live(&["two"]).await;
    drop(node2);
    let _node2 = TestMember::join("two", 2, &[node1.address]).await;
    let elapsed = node1
        .wait_until("the new incarnation is live", |view| {
            view.live.iter().any(|member| member.generation == 2)
        })
        .await;
    assert!(elapsed < Duration::from_secs(2), "after {elapsed:?}");
    let view = node1.membership.view().borrow().clone();
    assert_eq!(
        view.left.iter().map(|member| member.incarnation).collect::<Vec<_>>(),
        [incarnation("two", 1)]
    );
    assert_eq!(view.live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn node_restarted_with_lower_generation_replaces_silent_incarnation() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let node2 = TestMember::join("two", 9, &[node1.address]).await;
    node1.wait_until_live(&["two"]).await;
    drop(node2);
    let _node2 = TestMember::join("two", 2, &[node1.address]).await;
    node1
        .wait_until("the new incarnation is live", |view| {
            view.live.iter().any(|member| member.generation == 2)
        })
        .await;
    assert_eq!(node1.membership.view().borrow().left[0].generation, 9);
}

#[tokio::test(start_paused = true)]
async fn node_with_other_key_is_rejected_and_counted() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let other_key = ClusterKey::new("a key that no other node has").unwrap();
    let unauthenticated = TestMember::join_with_key("two", 1, &[node1.address], other_key).await;
    let node3 = TestMember::join("three", 1, &[node1.address]).await;
    node1.wait_until_live(&["three"]).await;
    node3.wait_until_live(&["one"]).await;
    while node1.reject_counters.get(RejectReason::WrongMac) < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(unauthenticated.membership.view().borrow().live.is_empty());
    assert_eq!(node1.membership.view().borrow().live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn replayed_and_malformed_datagrams_are_rejected() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let forwarder = UdpSocket::bind(LOOPBACK_ADDRESS).await.unwrap();
    let _node2 = TestMember::join("two", 1, &[forwarder.local_addr().unwrap()]).await;
    let mut datagram = vec![0; 65_536];
    let (length, _) = forwarder.recv_from(&mut datagram).await.unwrap();
    datagram.truncate(length);
    forwarder.send_to(&datagram, node1.address).await.unwrap();
    let mut reply = [0; 2_048];
    forwarder.recv_from(&mut reply).await.unwrap();
    forwarder.send_to(&datagram, node1.address).await.unwrap();
    datagram[length / 2] ^= 1;
    forwarder.send_to(&datagram, node1.address).await.unwrap();
    for payload in [&b""[..], b"\x01", b"GET / HTTP/1.1\r\n\r\n", &[1; 49], &[1; 5_000]] {
        forwarder.send_to(payload, node1.address).await.unwrap();
    }
    let count = |reason| node1.reject_counters.get(reason);
    while RejectReason::ALL.map(count).iter().sum::<u64>() < 7 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((count(RejectReason::Replayed), count(RejectReason::WrongMac)), (1, 3));
    assert_eq!((count(RejectReason::Truncated), count(RejectReason::WrongVersion)), (2, 1));
    let node3 = TestMember::join("three", 1, &[node1.address]).await;
    node3.wait_until("node `one` is live", |view| live_names(view).contains(&"one")).await;
}

#[tokio::test(start_paused = true)]
async fn malformed_payload_of_node_is_rejected_and_counted() {
    let node1 = TestMember::join("one", 1, &[]).await;
    let forwarder = UdpSocket::bind(LOOPBACK_ADDRESS).await.unwrap();
    let _node2 = TestMember::join("two", 1, &[forwarder.local_addr().unwrap()]).await;
    let mut datagram = vec![0; 65_536];
    let (length, _) = forwarder.recv_from(&mut datagram).await.unwrap();
    let mut opener = DatagramOpener::new(&test_key(), Incarnation(0), Duration::ZERO);
    let payload = opener.open(WallClock.now(), &datagram[..length]).unwrap().payload;
    let mut sealer = DatagramSealer::new(&test_key(), Incarnation(3));
    for payload in [&b""[..], b"hello", &[payload, b"extra"].concat(), payload] {
        let mut sealed = Vec::new();
        sealer.seal(WallClock.now(), payload, &mut sealed).unwrap();
        forwarder.send_to(&sealed, node1.address).await.unwrap();
    }
    forwarder.recv_from(&mut datagram).await.expect("no response to the valid payload");
    assert_eq!(node1.reject_counters.iter().map(|(_, count)| count).sum::<u64>(), 3);
    assert_eq!(node1.reject_counters.get(RejectReason::Malformed), 3);
}

#[tokio::test(start_paused = true)]
async fn node_name_of_invalid_length_is_rejected() {
    for name in ["", &"x".repeat(256)] {
        let sockets = Sockets::bind(LOOPBACK_ADDRESS).await.unwrap();
        let settings = member_settings(name, 1, sockets.address, &[]);
        let result =
            Membership::join(settings, sockets.udp, &test_key(), WallClock, Arc::default()).await;
        assert!(matches!(result, Err(JoinError::Name(bytes)) if bytes == name.len()));
    }
}

#[tokio::test]
async fn tcp_and_udp_share_one_port() {
    let sockets = Sockets::bind(LOOPBACK_ADDRESS).await.unwrap();
    assert_eq!(sockets.udp.local_addr().unwrap(), sockets.address);
    assert_eq!(sockets.tcp.local_addr().unwrap(), sockets.address);
    assert!(Sockets::bind(sockets.address).await.is_err(), "the port is in use");
}

#[tokio::test]
async fn advertised_address_defaults_to_listen_address() {
    let listen: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    assert_eq!(resolve_advertised(listen, None, &[]).await, Ok(listen));
    let advertised: SocketAddr = "192.0.2.7:8000".parse().unwrap();
    assert_eq!(resolve_advertised(WILDCARD_ADDRESS, Some(advertised), &[]).await, Ok(advertised));
    let without_port: SocketAddr = "192.0.2.7:0".parse().unwrap();
    assert_eq!(
        resolve_advertised(WILDCARD_ADDRESS, Some(without_port), &[]).await,
        Ok("192.0.2.7:7000".parse().unwrap())
    );
    assert_eq!(
        resolve_advertised(listen, Some(WILDCARD_ADDRESS), &[]).await,
        Err(AdvertisedAddressError::Unspecified(WILDCARD_ADDRESS))
    );
}

#[tokio::test]
async fn wildcard_listener_advertises_address_towards_seeds() {
    let seeds = ["no port".to_owned(), "127.0.0.1:7001".to_owned()];
    assert_eq!(
        resolve_advertised(WILDCARD_ADDRESS, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let ipv6_wildcard: SocketAddr = "[::]:7000".parse().unwrap();
    assert_eq!(
        resolve_advertised(ipv6_wildcard, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let error = resolve_advertised(WILDCARD_ADDRESS, None, &seeds[..1]).await.unwrap_err();
    assert_eq!(error, AdvertisedAddressError::Unknown(WILDCARD_ADDRESS));
    assert!(error.to_string().contains("advertise it"), "{error}");
}

#[tokio::test]
async fn own_address_does_not_count_as_other_seed() {
    let local: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let to_strings =
        |seeds: &[&str]| seeds.iter().map(|seed| (*seed).to_owned()).collect::<Vec<_>>();
    assert!(!has_other_seeds(&[], local).await);
    assert!(!has_other_seeds(&to_strings(&["127.0.0.1:7000"]), local).await);
    assert!(has_other_seeds(&to_strings(&["127.0.0.1:7000", "127.0.0.1:7001"]), local).await);
    assert!(has_other_seeds(&to_strings(&["no port"]), local).await, "it may resolve later");
}
