use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chitchat::{DeletionStatus, VersionedValue};
use slidegate::WallClock;
use tokio::time::timeout;

use super::view::{KnownNode, build_membership_view, resolve_seeds_while_alone};
use super::*;

#[test]
fn incarnation_depends_on_name_and_generation() {
    let of = |name, generation| incarnation(name, generation).0;
    // Nodes of other builds must compute the same value. This one was computed independently.
    assert_eq!(of("node-1", 1), 0x1359);
    assert!(of("node-1", 2) > of("node-1", 1), "a later generation");
    assert_ne!(of("node-1", 1), of("node-2", 1));
}

fn chitchat_id(name: &str, generation: u64) -> ChitchatId {
    ChitchatId::new(name, generation, SocketAddr::from((Ipv4Addr::LOCALHOST, 1)))
}

/// Returns two lists: the live nodes and the departed nodes, as seen by the node with name `own` and generation 5. Each
/// element of `all` is the name of a node, its generation, whether it is live, and whether it announces its departure.
/// Each entry of a result list is a name followed by a generation.
fn build_view_with_node_names(all: &[(&str, u64, bool, bool)]) -> [Vec<String>; 2] {
    let ids: Vec<_> =
        all.iter().map(|(name, generation, ..)| chitchat_id(name, *generation)).collect();
    let known = all.iter().zip(&ids).map(|((.., live, leaving), node)| KnownNode {
        node,
        is_live: *live,
        is_leaving: *leaving,
    });
    let view = build_membership_view(known, &chitchat_id("own", 5));
    [view.live, view.left].map(|members| {
        members.iter().map(|one| format!("{}{}", one.name, one.generation)).collect()
    })
}

/// Flags of a live node: it is live, and does not announce its departure.
const LIVE_NODE_FLAGS: (bool, bool) = (true, false);

/// Flags of a silent node: it is not live, and does not announce its departure.
const SILENT_NODE_FLAGS: (bool, bool) = (false, false);

/// Returns an element of the list for [`build_view_with_node_names`]. The flags are: whether the node is live, and
/// whether it announces its departure.
fn known_node_with_flags(
    name: &str,
    generation: u64,
    (live, leaving): (bool, bool),
) -> (&str, u64, bool, bool) {
    (name, generation, live, leaving)
}

#[test]
fn node_without_heartbeats_or_departure_announcement_is_silent() {
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("a", 1, LIVE_NODE_FLAGS),
        known_node_with_flags("b", 1, SILENT_NODE_FLAGS),
        known_node_with_flags("c", 1, (true, true)),
        known_node_with_flags("d", 1, (false, true)),
    ]);
    assert_eq!(live, ["a1"]);
    assert_eq!(left, ["c1", "d1"]);
}

#[test]
fn newer_incarnation_replaces_older_ones() {
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("a", 1, LIVE_NODE_FLAGS),
        known_node_with_flags("a", 3, LIVE_NODE_FLAGS),
        known_node_with_flags("a", 2, SILENT_NODE_FLAGS),
    ]);
    assert_eq!((live, left), (vec!["a3".to_owned()], vec!["a2".to_owned(), "a1".to_owned()]));
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("a", 1, SILENT_NODE_FLAGS),
        known_node_with_flags("a", 2, SILENT_NODE_FLAGS),
    ]);
    assert_eq!((live, left), (vec![], vec!["a1".to_owned()]), "the newer one is silent");
}

#[test]
fn live_incarnation_replaces_newer_silent_one() {
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("a", 1, LIVE_NODE_FLAGS),
        known_node_with_flags("a", 2, SILENT_NODE_FLAGS),
    ]);
    assert_eq!((live, left), (vec!["a1".to_owned()], vec!["a2".to_owned()]));
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("a", 1, LIVE_NODE_FLAGS),
        known_node_with_flags("a", 2, (true, true)),
    ]);
    assert_eq!((live, left), (vec!["a1".to_owned()], vec!["a2".to_owned()]));
}

#[test]
fn newer_live_node_with_own_name_is_member() {
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("own", 4, LIVE_NODE_FLAGS),
        known_node_with_flags("own", 3, SILENT_NODE_FLAGS),
    ]);
    assert_eq!((live, left), (vec![], vec!["own3".to_owned(), "own4".to_owned()]));
    let [live, left] = build_view_with_node_names(&[
        known_node_with_flags("own", 4, SILENT_NODE_FLAGS),
        known_node_with_flags("own", 6, LIVE_NODE_FLAGS),
    ]);
    assert_eq!((live, left), (vec!["own6".to_owned()], vec!["own4".to_owned()]));
    let [live, left] =
        build_view_with_node_names(&[known_node_with_flags("own", 6, SILENT_NODE_FLAGS)]);
    assert_eq!(
        (live, left),
        (vec![], vec!["own6".to_owned()]),
        "the clock of this node was set back"
    );
}

async fn start_member(name: &str) -> (Membership, SocketAddr) {
    let sockets = Sockets::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await.unwrap();
    let settings = Settings {
        name: name.to_owned(),
        generation: 1,
        advertise: sockets.address,
        seeds: Vec::new(),
        max_clock_skew: Duration::from_secs(2),
    };
    let (key, reject_counters) = (ClusterKey::for_loopback(), Arc::default());
    (
        Membership::join(settings, sockets.udp, &key, WallClock, reject_counters).await.unwrap(),
        sockets.address,
    )
}

#[tokio::test(start_paused = true)]
async fn lone_node_resolves_seeds_again() {
    let ((one, own), (_two, other)) = (start_member("one").await, start_member("two").await);
    let gossip = Arc::clone(&one.tasks.as_ref().unwrap().gossip);
    let names = vec![format!("localhost:{}", own.port()), format!("localhost:{}", other.port())];
    let _seeking = resolve_seeds_while_alone(gossip, names, own, one.view());
    let mut view = one.view();
    let found = timeout(Duration::from_secs(5), view.wait_for(|view| !view.live.is_empty())).await;
    assert_eq!(&*found.unwrap().unwrap().live[0].name, "two");
}

#[tokio::test(start_paused = true)]
async fn departure_of_silent_node_spreads_by_gossip() {
    let (one, _) = start_member("one").await;
    let gossip = &one.tasks.as_ref().unwrap().gossip;
    let add_leaving_node = |chitchat: &mut chitchat::Chitchat| {
        let value =
            VersionedValue { value: "yes".to_owned(), version: 1, status: DeletionStatus::Set };
        let values = [(LEAVING_KEY_IN_GOSSIP_STATE.to_owned(), value)];
        chitchat.reset_node_state_if_update(&chitchat_id("two", 1), values.into_iter(), 1, 0);
    };
    tokio::time::sleep(Duration::from_secs(1)).await;
    gossip.with_chitchat(add_leaving_node).await;
    let mut view = one.view();
    let left = timeout(Duration::from_secs(5), view.wait_for(|view| !view.left.is_empty())).await;
    assert_eq!(&*left.unwrap().unwrap().left[0].name, "two");
}

#[tokio::test(start_paused = true)]
async fn membership_view_receiver_closes_when_gossip_task_ends() {
    let (one, _) = start_member("one").await;
    one.tasks.as_ref().unwrap().gossip.initiate_shutdown().unwrap();
    let mut view = one.view();
    let ended = async { while view.changed().await.is_ok() {} };
    assert!(timeout(Duration::from_secs(5), ended).await.is_ok());
}
