//! Real nodes on the loopback interface discover each other, become silent and leave.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use slidegate::clock::DriftCorrectedClock;
use slidegate_cluster::membership::{
    AdvertisedAddressError, has_other_seeds, resolve_advertised_address,
};
use slidegate_cluster::{ClusterSettings, ClusterStatus, ClusterStore, StartError};
use tokio::time::{Instant, sleep, timeout};

const LOOPBACK_ADDRESS: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The unspecified address, with which a node listens on all interfaces.
const WILDCARD_ADDRESS: SocketAddr =
    SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::UNSPECIFIED), 7_000);

type Node = ClusterStore<Arc<DriftCorrectedClock>>;

/// Returns the settings of a node with a free port.
fn node_settings(name: &str, seeds: &[&Node]) -> ClusterSettings {
    ClusterSettings {
        listen: LOOPBACK_ADDRESS,
        advertise: None,
        seeds: seeds.iter().map(|seed| address_of(seed)).collect(),
        name: Some(name.to_owned()),
        credentials: None,
        secret: None,
        sync_interval: Duration::from_millis(50),
        sync_wait: Duration::ZERO,
        max_clock_skew: Duration::from_secs(2),
        max_keys: 1_000,
        max_memory: 1 << 20,
    }
}

async fn start_node(name: &str, seeds: &[&Node]) -> Node {
    ClusterStore::start(node_settings(name, seeds)).await.unwrap()
}

fn address_of(node: &Node) -> String {
    node.status().unwrap().address.clone().unwrap()
}

/// Waits until the status of a node meets a condition. Returns the time that passed.
async fn wait_until(
    node: &Node,
    condition: &str,
    is_reached: impl Fn(&ClusterStatus) -> bool,
) -> Duration {
    let started_at = Instant::now();
    let wait = async {
        while !is_reached(&node.status().unwrap()) {
            sleep(Duration::from_millis(10)).await;
        }
    };
    let reached = timeout(Duration::from_secs(30), wait).await;
    assert!(reached.is_ok(), "{condition}: {:?}", node.status());
    started_at.elapsed()
}

/// Returns the names of the members, and `?` after the names of silent ones.
fn members(status: &ClusterStatus) -> Vec<String> {
    let mark = |state| if state == "alive" { "" } else { "?" };
    let members = status.members.iter();
    members.map(|member| format!("{}{}", member.name, mark(member.state))).collect()
}

async fn wait_for_members(node: &Node, expected: &[&str]) -> Duration {
    wait_until(node, &format!("{expected:?}"), |status| members(status) == expected).await
}

#[tokio::test]
async fn nodes_find_each_other_through_one_seed() {
    let one = start_node("one", &[]).await;
    let two = start_node("two", &[&one]).await;
    let three = start_node("three", &[&one]).await;
    wait_for_members(&one, &["three", "two"]).await;
    wait_for_members(&two, &["one", "three"]).await;
    wait_for_members(&three, &["one", "two"]).await;
    for node in [&one, &two, &three] {
        wait_until(node, "joined", |status| !status.joining && status.majority).await;
        let refused = &node.status().unwrap().refused;
        assert!(refused.values().all(|count| *count == 0), "{refused:?}");
    }
    let status = three.status().unwrap();
    assert_eq!(status.members[1].address, Some(address_of(&two)));
    assert!(status.sent_bytes > 0 && status.received_bytes > 0);
    wait_until(&three, "clocks are measured", |status| {
        let offset = |ms: Option<i64>| ms.is_some_and(|ms| ms.abs() < 1_000);
        status.members.iter().all(|member| offset(member.clock_offset_ms))
    })
    .await;
}

#[tokio::test]
async fn node_finds_others_through_name_with_its_own_address() {
    let one = start_node("one", &[]).await;
    let port = |address: String| address.rsplit_once(':').unwrap().1.to_owned();
    let seed = format!("localhost:{}", port(address_of(&one)));
    let settings = ClusterSettings { seeds: vec![seed], ..node_settings("two", &[]) };
    let two = ClusterStore::start(settings).await.unwrap();
    wait_for_members(&two, &["one"]).await;
}

#[tokio::test]
async fn silent_node_is_detected_and_departed_node_is_removed() {
    let one = start_node("one", &[]).await;
    let two = start_node("two", &[&one]).await;
    let three = start_node("three", &[&one]).await;
    wait_for_members(&one, &["three", "two"]).await;
    wait_for_members(&two, &["one", "three"]).await;
    three.leave(Duration::from_secs(5)).await;
    wait_for_members(&one, &["two"]).await;
    wait_for_members(&two, &["one"]).await;
    // Without `leave`, the tasks of the node end with its runtime.
    let (address, runtime) = (address_of(&one), tokio::runtime::Runtime::new().unwrap());
    let settings = ClusterSettings { seeds: vec![address], ..node_settings("four", &[]) };
    let four = runtime.spawn(ClusterStore::start(settings)).await.unwrap();
    wait_for_members(&one, &["four", "two"]).await;
    runtime.shutdown_background();
    wait_for_members(&one, &["four?", "two"]).await;
    wait_for_members(&two, &["four?", "one"]).await;
    drop(four);
}

#[tokio::test]
async fn restarted_node_replaces_its_previous_incarnation() {
    let one = start_node("one", &[]).await;
    let first = start_node("two", &[&one]).await;
    wait_for_members(&one, &["two"]).await;
    let incarnation = |node: &Node| node.status().unwrap().members[0].incarnation.clone();
    let before = incarnation(&one);
    let second = start_node("two", &[&one]).await;
    wait_until(&one, "new incarnation", |status| status.members[0].incarnation > before).await;
    drop((first, second));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_nodes_join() {
    let mut nodes = vec![start_node("00", &[]).await];
    for number in 1..16 {
        nodes.push(start_node(&format!("{number:02}"), &[&nodes[0]]).await);
    }
    for node in &nodes {
        wait_until(node, "all joined", |status| {
            status.members.len() == 15
                && status.majority
                && status.members.iter().all(|member| member.state == "alive")
        })
        .await;
    }
}

#[tokio::test]
async fn node_name_of_invalid_length_is_rejected() {
    for name in ["", &"x".repeat(129)] {
        let result = ClusterStore::start(node_settings(name, &[])).await;
        assert!(matches!(result, Err(StartError::Name(bytes)) if bytes == name.len()));
    }
}

#[tokio::test]
async fn address_in_use_is_rejected() {
    let one = start_node("one", &[]).await;
    let listen = address_of(&one).parse().unwrap();
    let result = ClusterStore::start(ClusterSettings { listen, ..node_settings("two", &[]) }).await;
    assert!(matches!(result, Err(StartError::Listen { .. })));
}

#[tokio::test]
async fn advertised_address_defaults_to_listen_address() {
    let listen: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    assert_eq!(resolve_advertised_address(listen, None, &[]).await, Ok(listen));
    let advertised: SocketAddr = "192.0.2.7:8000".parse().unwrap();
    assert_eq!(
        resolve_advertised_address(WILDCARD_ADDRESS, Some(advertised), &[]).await,
        Ok(advertised)
    );
    let without_port: SocketAddr = "192.0.2.7:0".parse().unwrap();
    assert_eq!(
        resolve_advertised_address(WILDCARD_ADDRESS, Some(without_port), &[]).await,
        Ok("192.0.2.7:7000".parse().unwrap())
    );
    assert_eq!(
        resolve_advertised_address(listen, Some(WILDCARD_ADDRESS), &[]).await,
        Err(AdvertisedAddressError::Unspecified(WILDCARD_ADDRESS))
    );
}

#[tokio::test]
async fn wildcard_listener_advertises_address_towards_seeds() {
    let seeds = ["no port".to_owned(), "127.0.0.1:7001".to_owned()];
    assert_eq!(
        resolve_advertised_address(WILDCARD_ADDRESS, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let ipv6_wildcard: SocketAddr = "[::]:7000".parse().unwrap();
    assert_eq!(
        resolve_advertised_address(ipv6_wildcard, None, &seeds).await,
        Ok("127.0.0.1:7000".parse().unwrap())
    );
    let error = resolve_advertised_address(WILDCARD_ADDRESS, None, &seeds[..1]).await.unwrap_err();
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
