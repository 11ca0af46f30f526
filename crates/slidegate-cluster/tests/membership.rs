//! Nodes that find each other on loopback, over sealed datagrams. Time is paused: it goes on when nothing else does.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failed test may panic")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate::{Clock, WallClock};
use slidegate_cluster::membership::{
    AddressError, JoinError, Membership, MembershipView, Settings, Sockets, has_other_seeds,
    incarnation, resolve_advertised,
};
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::seal::{
    ClusterKey, DatagramOpener, DatagramSealer, RejectCounters, RejectReason,
};
use tokio::net::UdpSocket;
use tokio::time::{Instant, timeout};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const ANYWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7_000);

fn key() -> ClusterKey {
    ClusterKey::new("a key for all of these tests").unwrap()
}

struct Node {
    membership: Membership,
    address: SocketAddr,
    reject_counters: Arc<RejectCounters>,
}

impl Node {
    async fn join(name: &str, generation: u64, seeds: &[SocketAddr]) -> Self {
        Self::join_with(name, generation, seeds, key()).await
    }

    async fn join_with(name: &str, generation: u64, seeds: &[SocketAddr], key: ClusterKey) -> Self {
        let sockets = Sockets::bind(LOOPBACK).await.unwrap();
        let (settings, reject_counters) =
            (settings(name, generation, sockets.address, seeds), Arc::default());
        let membership =
            Membership::join(settings, sockets.udp, &key, WallClock, Arc::clone(&reject_counters))
                .await;
        Self { membership: membership.unwrap(), address: sockets.address, reject_counters }
    }

    /// Waits until the roll is so. Returns how long that took.
    async fn until(&self, what: &str, so: impl FnMut(&MembershipView) -> bool) -> Duration {
        let (began, mut roll) = (Instant::now(), self.membership.view());
        let waited = timeout(Duration::from_secs(20), roll.wait_for(so)).await;
        assert!(waited.is_ok(), "{what}: {:?}", self.membership.view().borrow());
        began.elapsed()
    }

    async fn until_live(&self, names: &[&str]) -> Duration {
        self.until(&format!("{names:?} live"), |roll| live(roll) == names).await
    }
}

fn settings(name: &str, generation: u64, advertise: SocketAddr, seeds: &[SocketAddr]) -> Settings {
    let seeds = seeds.iter().map(SocketAddr::to_string).collect();
    Settings {
        name: name.to_owned(),
        generation,
        advertise,
        seeds,
        max_clock_skew: Duration::from_secs(2),
    }
}

fn live(roll: &MembershipView) -> Vec<&str> {
    roll.live.iter().map(|member| &*member.name).collect()
}

#[tokio::test(start_paused = true)]
async fn nodes_find_each_other_by_a_seed_and_agree_who_each_is() {
    let one = Node::join("one", 1, &[]).await;
    let two = Node::join("two", 2, &[one.address]).await;
    let three = Node::join("three", 3, &[one.address]).await;
    one.until_live(&["three", "two"]).await;
    two.until_live(&["one", "three"]).await;
    three.until_live(&["one", "two"]).await;
    let roll = three.membership.view();
    let member = roll.borrow().live[1].clone();
    assert_eq!((&*member.name, member.generation, member.address), ("two", 2, two.address));
    assert_eq!(member.incarnation, two.membership.incarnation());
    assert_eq!(member.incarnation, incarnation("two", 2));
    assert!(
        one.membership.traffic().sent_bytes() > 0 && one.membership.traffic().received_bytes() > 0
    );
    assert!(one.reject_counters.iter().all(|(_, count)| count == 0), "{:?}", one.reject_counters);
}

#[tokio::test(start_paused = true)]
async fn a_node_may_be_its_own_seed() {
    let sockets = Sockets::bind(LOOPBACK).await.unwrap();
    let settings = settings("one", 1, sockets.address, &[sockets.address]);
    let one =
        Membership::join(settings, sockets.udp, &key(), WallClock, Arc::default()).await.unwrap();
    let two = Node::join("two", 1, &[sockets.address]).await;
    two.until_live(&["one"]).await;
    assert_eq!(live(&one.view().borrow()), ["two"]);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_falls_silent_is_missed_within_seconds_and_has_not_left() {
    for others in 1..=4 {
        let one = Node::join("one", 1, &[]).await;
        let mut all = Vec::new();
        for nth in 0..others {
            all.push(Node::join(&format!("other-{nth}"), 1, &[one.address]).await);
        }
        one.until("all live", |roll| roll.live.len() == others).await;
        tokio::time::sleep(Duration::from_secs(10)).await;
        drop(all.pop());
        let missed = one.until("one is missed", |roll| roll.live.len() == others - 1).await;
        assert!((2..=5).contains(&missed.as_secs()), "missed after {missed:?} among {others}");
        assert!(one.membership.view().borrow().left.is_empty());
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_that_leaves_says_so() {
    let one = Node::join("one", 1, &[]).await;
    let two = Node::join("two", 1, &[one.address]).await;
    let three = Node::join("three", 1, &[one.address]).await;
    for node in [&one, &three] {
        node.until("two others", |roll| roll.live.len() == 2).await;
    }
    two.membership.leave().await;
    for node in [&one, &three] {
        let told = node
            .until("it left", |roll| roll.left.iter().any(|member| &*member.name == "two"))
            .await;
        assert_eq!(told, Duration::ZERO, "it stayed until that was told");
        assert_eq!(node.membership.view().borrow().live.len(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn who_joins_later_hears_of_those_who_left() {
    let one = Node::join("one", 1, &[]).await;
    let two = Node::join("two", 1, &[one.address]).await;
    one.until_live(&["two"]).await;
    two.until_live(&["one"]).await;
    two.membership.leave().await;
    let three = Node::join("three", 1, &[one.address]).await;
    three.until("it left", |roll| live(roll) == ["one"] && roll.left.len() == 1).await;
}

#[tokio::test(start_paused = true)]
async fn a_restarted_node_replaces_its_earlier_life_at_once() {
    let one = Node::join("one", 1, &[]).await;
    let two = Node::join("two", 1, &[one.address]).await;
    one.until_live(&["two"]).await;
    drop(two);
    let _two = Node::join("two", 2, &[one.address]).await;
    let noticed = one
        .until("it is replaced", |roll| roll.live.iter().any(|member| member.generation == 2))
        .await;
    assert!(noticed < Duration::from_secs(2), "after {noticed:?}");
    let roll = one.membership.view().borrow().clone();
    assert_eq!(
        roll.left.iter().map(|member| member.incarnation).collect::<Vec<_>>(),
        [incarnation("two", 1)]
    );
    assert_eq!(roll.live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_node_that_restarts_with_its_clock_put_back_is_found_once_its_earlier_life_is_missed() {
    let one = Node::join("one", 1, &[]).await;
    let two = Node::join("two", 9, &[one.address]).await;
    one.until_live(&["two"]).await;
    drop(two);
    let _two = Node::join("two", 2, &[one.address]).await;
    one.until("it is replaced", |roll| roll.live.iter().any(|member| member.generation == 2)).await;
    assert_eq!(one.membership.view().borrow().left[0].generation, 9);
}

#[tokio::test(start_paused = true)]
async fn whoever_has_another_key_is_not_found_and_counted() {
    let one = Node::join("one", 1, &[]).await;
    let other = ClusterKey::new("a key that nobody else has got").unwrap();
    let stranger = Node::join_with("two", 1, &[one.address], other).await;
    let three = Node::join("three", 1, &[one.address]).await;
    one.until_live(&["three"]).await;
    three.until_live(&["one"]).await;
    while one.reject_counters.get(RejectReason::WrongMac) < 3 {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(stranger.membership.view().borrow().live.is_empty());
    assert_eq!(one.membership.view().borrow().live.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn what_was_heard_already_is_not_heard_again() {
    let one = Node::join("one", 1, &[]).await;
    let between = UdpSocket::bind(LOOPBACK).await.unwrap();
    let _two = Node::join("two", 1, &[between.local_addr().unwrap()]).await;
    let mut datagram = vec![0; 65_536];
    let (length, _) = between.recv_from(&mut datagram).await.unwrap();
    datagram.truncate(length);
    between.send_to(&datagram, one.address).await.unwrap();
    let mut answer = [0; 2_048];
    between.recv_from(&mut answer).await.unwrap();
    between.send_to(&datagram, one.address).await.unwrap();
    datagram[length / 2] ^= 1;
    between.send_to(&datagram, one.address).await.unwrap();
    for junk in [&b""[..], b"\x01", b"GET / HTTP/1.1\r\n\r\n", &[1; 49], &[1; 5_000]] {
        between.send_to(junk, one.address).await.unwrap();
    }
    let count = |refusal| one.reject_counters.get(refusal);
    while RejectReason::ALL.map(count).iter().sum::<u64>() < 7 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!((count(RejectReason::Replayed), count(RejectReason::WrongMac)), (1, 3));
    assert_eq!((count(RejectReason::Truncated), count(RejectReason::WrongVersion)), (2, 1));
    let three = Node::join("three", 1, &[one.address]).await;
    three.until("it still answers", |roll| live(roll).contains(&"one")).await;
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_what_no_node_says_is_counted() {
    let one = Node::join("one", 1, &[]).await;
    let between = UdpSocket::bind(LOOPBACK).await.unwrap();
    let _two = Node::join("two", 1, &[between.local_addr().unwrap()]).await;
    let mut datagram = vec![0; 65_536];
    let (length, _) = between.recv_from(&mut datagram).await.unwrap();
    let mut opener = DatagramOpener::new(&key(), Incarnation(0), Duration::ZERO);
    let payload = opener.open(WallClock.now(), &datagram[..length]).unwrap().payload;
    let mut sealer = DatagramSealer::new(&key(), Incarnation(3));
    for payload in [&b""[..], b"hello", &[payload, b"and more"].concat(), payload] {
        let mut sealed = Vec::new();
        sealer.seal(WallClock.now(), payload, &mut sealed).unwrap();
        between.send_to(&sealed, one.address).await.unwrap();
    }
    between.recv_from(&mut datagram).await.expect("only the last one is answered");
    assert_eq!(one.reject_counters.iter().map(|(_, count)| count).sum::<u64>(), 3);
    assert_eq!(one.reject_counters.get(RejectReason::Malformed), 3);
}

#[tokio::test(start_paused = true)]
async fn a_name_that_does_not_fit_is_refused() {
    for name in ["", &"x".repeat(256)] {
        let sockets = Sockets::bind(LOOPBACK).await.unwrap();
        let settings = settings(name, 1, sockets.address, &[]);
        let joined =
            Membership::join(settings, sockets.udp, &key(), WallClock, Arc::default()).await;
        assert!(matches!(joined, Err(JoinError::Name(bytes)) if bytes == name.len()));
    }
}

#[tokio::test]
async fn both_sockets_have_one_port() {
    let sockets = Sockets::bind(LOOPBACK).await.unwrap();
    assert_eq!(sockets.udp.local_addr().unwrap(), sockets.address);
    assert_eq!(sockets.tcp.local_addr().unwrap(), sockets.address);
    assert!(Sockets::bind(sockets.address).await.is_err(), "it is in use");
}

#[tokio::test]
async fn a_node_is_reached_where_it_says_or_where_it_listens() {
    let listen: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    assert_eq!(resolve_advertised(listen, None, &[]).await, Ok(listen));
    let given: SocketAddr = "192.0.2.7:8000".parse().unwrap();
    assert_eq!(resolve_advertised(ANYWHERE, Some(given), &[]).await, Ok(given));
    let without_port: SocketAddr = "192.0.2.7:0".parse().unwrap();
    assert_eq!(
        resolve_advertised(ANYWHERE, Some(without_port), &[]).await,
        Ok("192.0.2.7:7000".parse().unwrap())
    );
    assert_eq!(
        resolve_advertised(listen, Some(ANYWHERE), &[]).await,
        Err(AddressError::Unspecified(ANYWHERE))
    );
}

#[tokio::test]
async fn a_node_that_listens_everywhere_is_reached_on_the_way_to_its_seeds() {
    let seeds = ["no port".to_owned(), "127.0.0.1:7001".to_owned()];
    assert_eq!(
        resolve_advertised(ANYWHERE, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let everywhere: SocketAddr = "[::]:7000".parse().unwrap();
    assert_eq!(
        resolve_advertised(everywhere, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let error = resolve_advertised(ANYWHERE, None, &seeds[..1]).await.unwrap_err();
    assert_eq!(error, AddressError::Unknown(ANYWHERE));
    assert!(error.to_string().contains("advertise it"), "{error}");
}

#[tokio::test]
async fn seeds_that_are_this_node_are_no_others() {
    let own: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let names = |seeds: &[&str]| seeds.iter().map(|seed| (*seed).to_owned()).collect::<Vec<_>>();
    assert!(!has_other_seeds(&[], own).await);
    assert!(!has_other_seeds(&names(&["127.0.0.1:7000"]), own).await);
    assert!(has_other_seeds(&names(&["127.0.0.1:7000", "127.0.0.1:7001"]), own).await);
    assert!(has_other_seeds(&names(&["no port"]), own).await, "it may resolve later");
}
