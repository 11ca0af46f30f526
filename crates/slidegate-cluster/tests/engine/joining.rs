//! Tests of nodes that join, restart or leave. The tests check when a joining node becomes settled, and which members
//! must acknowledge its flushes.

use std::time::Duration;

use slidegate_cluster::replicated_counters::FlushSeq;

use crate::engine::test_cluster::{TestCluster, node_name};

#[test]
fn joining_node_waits_for_state_of_settled_member() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(3, "c");
    assert_eq!(cluster.acknowledged_flush(3), 0, "node 3 has no peers yet");
    assert!(cluster.status(3).is_joining && cluster.nodes[&3].progress.load().nodes >= 2);
    cluster.set_all_live();
    cluster.deliver_except(|frame| frame.to == 3);
    assert!(cluster.status(3).is_joining);
    cluster.synchronize();
    assert!(!cluster.status(3).is_joining && cluster.status(3).is_settled);
}

#[test]
fn joined_node_needs_acknowledgements_of_all_members() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.start_node(4, "d");
    cluster.charge(4, 7);
    // Node 4 sees node 1 only, and only node 1 sees node 4.
    cluster.set_live_peers(4, &[1]);
    cluster.set_live_peers(1, &[2, 3, 4]);
    for _ in 0..4 {
        cluster.deliver_except(|frame| frame.from + frame.to != 5);
        cluster.run_interval();
    }
    assert!(!cluster.status(4).is_joining, "node 4 has received the member list");
    assert!(
        cluster.status(4).flush > 0 && cluster.acknowledged_flush(4) == 0,
        "nodes 2 and 3 have not acknowledged"
    );
    assert_eq!(cluster.status(4).members.len(), 3, "node 4 has the members of node 1");
    assert!(!cluster.status(4).is_settled);
    cluster.set_all_live();
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(4), cluster.status(4).flush);
    assert!(cluster.status(4).is_settled);
}

#[test]
fn earlier_flushes_do_not_wait_for_joining_node() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.deliver_all();
    let last_flush = cluster.status(1).flush;
    cluster.start_node(3, "c");
    cluster.set_live_peers(1, &[2, 3]);
    assert_eq!(cluster.acknowledged_flush(1), last_flush);
    cluster.charge(1, 8);
    cluster.run_interval();
    cluster.deliver_except(|frame| frame.to == 3);
    assert_eq!(cluster.acknowledged_flush(1), last_flush, "later flushes wait for node 3");
}

#[test]
fn joining_node_receives_counters_of_dead_node() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    cluster.run_interval();
    cluster.deliver_all();
    cluster.kill_node(3);
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    cluster.synchronize();
    cluster.start_node(4, "d");
    cluster.set_live_peers(1, &[2, 4]);
    cluster.set_live_peers(2, &[1, 4]);
    cluster.set_live_peers(4, &[1, 2]);
    cluster.synchronize();
    assert_eq!(cluster.counters(4).units(7), 1);
    assert_eq!(cluster.status(4).members.len(), 3, "the dead node is a silent member");
}

/// Checks two nodes that join at the same time: node 3 through node 1, and node 4 through node 2. Nodes 3 and 4 do not
/// know each other at first.
#[test]
fn concurrently_joining_nodes_require_mutual_acknowledgements() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(3, "c");
    cluster.start_node(4, "d");
    cluster.charge(3, 7);
    cluster.charge(4, 7);
    cluster.set_live_peers(3, &[1, 2]);
    cluster.set_live_peers(4, &[1, 2]);
    cluster.set_live_peers(1, &[2, 3]);
    cluster.set_live_peers(2, &[1, 4]);
    cluster.synchronize();
    assert!(
        [3, 4].iter().all(|joiner| cluster.acknowledged_flush(*joiner) == 0),
        "each joining node is unknown to one member"
    );
    cluster.set_live_peers(1, &[2, 3, 4]);
    cluster.set_live_peers(2, &[1, 3, 4]);
    cluster.synchronize();
    let is_acknowledged = |joiner: u64| cluster.acknowledged_flush(joiner) > 0;
    assert!(!(is_acknowledged(3) && is_acknowledged(4)), "nodes 3 and 4 do not see each other");
    cluster.set_all_live();
    cluster.synchronize();
    assert!(
        cluster.is_consistent()
            && (1..=4).all(|node| cluster.acknowledged_flush(node) == cluster.status(node).flush)
    );
}

#[test]
fn joining_nodes_without_settled_member_keep_joining() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(3, "c");
    cluster.start_node(4, "d");
    cluster.set_live_peers(3, &[4]);
    cluster.set_live_peers(4, &[3]);
    for _ in 0..4 {
        cluster.deliver_except(|frame| frame.from < 3 || frame.to < 3);
        cluster.run_interval();
    }
    assert!(cluster.status(3).is_joining && cluster.status(4).is_joining);
}

#[test]
fn node_that_finds_no_peers_starts_own_cluster() {
    let mut cluster = TestCluster::new();
    cluster.start_node(1, "a");
    cluster.kill_node(1);
    let started_at = cluster.now;
    // Node 1 starts with the addresses of other nodes, but none of them runs.
    cluster.start_node(9, "x");
    cluster.start_node(1, "a");
    cluster.kill_node(9);
    assert_eq!(cluster.acknowledged_flush(1), 0);
    while cluster.now < started_at.after(Duration::from_secs(5)) {
        assert!(cluster.status(1).is_joining);
        cluster.run_interval();
    }
    assert!(!cluster.status(1).is_joining && cluster.acknowledged_flush(1) == FlushSeq::MAX);
    assert!(cluster.nodes[&1].progress.load().has_no_peers());
}

#[test]
fn nodes_started_together_become_settled() {
    let mut cluster = TestCluster::new();
    cluster.start_node(9, "x");
    (1..=3).for_each(|nth| cluster.start_node(nth, node_name(nth)));
    cluster.kill_node(9);
    (1..=3).for_each(|nth| cluster.charge(nth, 7));
    cluster.set_all_live();
    for _ in 0..30 {
        cluster.run_interval();
        cluster.deliver_all();
    }
    for node in 1..=3 {
        assert!(cluster.status(node).is_settled && cluster.status(node).is_majority);
        assert_eq!(
            (cluster.counters(node).units(7), cluster.acknowledged_flush(node)),
            (3, cluster.status(node).flush)
        );
    }
}

#[test]
fn nodes_of_merging_clusters_require_mutual_acknowledgements() {
    let mut cluster = TestCluster::with_nodes(1);
    let mut other = TestCluster::new();
    other.start_node(2, "b");
    cluster.nodes.append(&mut other.nodes);
    (1..=2).for_each(|node| cluster.charge(node, 7));
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    let deliver_without_acks = |cluster: &mut TestCluster| {
        cluster.deliver_except(crate::engine::test_cluster::InFlightFrame::is_ack)
    };
    deliver_without_acks(&mut cluster);
    (1..=2).for_each(|node| {
        cluster.charge(node, 8);
        cluster.tick(node);
    });
    assert!([1, 2].iter().all(|node| cluster.acknowledged_flush(*node) == 0));
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.acknowledged_flush(1) == cluster.status(1).flush);
}

#[test]
fn restarted_node_replaces_its_previous_incarnation() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    cluster.run_interval();
    cluster.deliver_except(|frame| frame.to == 2);
    cluster.kill_node(3);
    cluster.start_node(13, "c");
    cluster.set_live_peers(1, &[2, 13]);
    cluster.set_live_peers(2, &[1, 13]);
    cluster.set_live_peers(13, &[1, 2]);
    assert!(cluster.peer_status(1, 3).is_none() && cluster.status(1).members.len() == 2);
    cluster.synchronize();
    assert!(
        cluster.is_consistent() && cluster.counters(13).units(7) == 1,
        "the charge of the previous incarnation is kept"
    );
    // The failure detector may still report the previous incarnation as alive.
    cluster.set_live_peers(1, &[2, 3, 13]);
    assert!(cluster.peer_status(1, 3).is_none() && cluster.peer_status(1, 13).is_some());
}

/// The clock of a node was set back between its two starts, and the others notice the restart one after the other.
#[test]
fn roster_with_older_incarnation_replaces_newer_one() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(13, "c");
    cluster.set_all_live();
    cluster.synchronize();
    cluster.kill_node(13);
    cluster.start_node(3, "c");
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(3, &[2]);
    cluster.set_departed_peer(2, 13, &[1, 3]);
    cluster.synchronize();
    cluster.set_departed_peer(1, 13, &[2, 3]);
    cluster.synchronize();
    for node in [1, 2] {
        assert!(cluster.peer_status(node, 13).is_none(), "{node}");
        assert!(cluster.peer_status(node, 3).is_some(), "{node}");
    }
}

#[test]
fn departed_member_need_not_acknowledge() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    cluster.run_on(3, |engine, counters, now| engine.flush(counters, now));
    cluster.deliver_all();
    cluster.kill_node(3);
    cluster.set_departed_peer(1, 3, &[2]);
    cluster.set_departed_peer(2, 3, &[1]);
    for node in [1, 2] {
        assert!(cluster.peer_status(node, 3).is_none() && cluster.counters(node).units(7) == 1);
    }
    // A late list still reports node 3 as alive.
    cluster.set_live_peers(1, &[2, 3]);
    cluster.set_live_peers(2, &[1, 3]);
    cluster.charge(1, 8);
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
    assert!(cluster.peer_status(1, 3).is_none());
}

#[test]
fn departure_is_relayed_to_other_members() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.kill_node(3);
    cluster.set_departed_peer(1, 3, &[2]);
    cluster.deliver_all();
    assert!(cluster.peer_status(2, 3).is_none());
    cluster.start_node(4, "d");
    cluster.set_live_peers(4, &[2]);
    cluster.set_live_peers(2, &[1, 4]);
    cluster.synchronize();
    cluster.set_live_peers(4, &[2, 3]);
    assert!(cluster.peer_status(4, 3).is_none(), "a departed member is not added again");
}

#[test]
fn joiner_known_only_from_roster_need_not_acknowledge() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(3, "c");
    cluster.set_live_peers(3, &[2]);
    cluster.set_live_peers(2, &[1, 3]);
    cluster.synchronize();
    assert!(cluster.peer_status(1, 3).is_some(), "node 3 is known from the roster of node 2");
    cluster.charge(1, 7);
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
    assert_eq!(cluster.acknowledged_flush(3), 0, "node 3 has no acknowledgements either");
    cluster.charge(1, 8);
    cluster.tick(1);
    let last_flush = cluster.status(1).flush;
    cluster.set_all_live();
    assert!(
        cluster.peer_status(1, 3).unwrap().acknowledged_flush >= last_flush,
        "earlier flushes do not wait for node 3"
    );
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.acknowledged_flush(3) == cluster.status(3).flush);
}
