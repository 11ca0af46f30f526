//! Tests of members that become silent. Other members wait for their acknowledgements for a limited time, and send them
//! the full state when they return.

use std::time::Duration;

use slidegate_cluster::membership::MembershipView;
use slidegate_cluster::message::Message;
use slidegate_cluster::pn_counter::Incarnation;
use slidegate_cluster::replicated_counters::FlushSeq;
use slidegate_cluster::replication::Liveness;

use crate::engine::map_counters::BUCKET_LAYOUT;
use crate::engine::test_cluster::{InFlightFrame, TestCluster};

/// The time for which acknowledgements of a silent member are required: the lifetime of a charge (20 s) plus the
/// maximum difference of clocks (2 s, and a second for the delay of messages).
const SILENT_MEMBER_REQUIREMENT_DURATION: Duration = Duration::from_secs(23);

/// Splits a cluster into two partitions, reports the change to every node, and drops all frames in flight.
fn partition_cluster(cluster: &mut TestCluster, first: &[u64], second: &[u64]) {
    for partition in [first, second] {
        for node in partition {
            let others: Vec<u64> = partition.iter().copied().filter(|peer| peer != node).collect();
            cluster.set_live_peers(*node, &others);
        }
    }
    cluster.network.clear();
}

/// Runs one interval and drops the frames between `partition` and the other nodes.
fn run_partitioned_interval(cluster: &mut TestCluster, partition: &[u64]) {
    cluster.run_interval();
    cluster
        .deliver_except(|frame| partition.contains(&frame.from) != partition.contains(&frame.to));
}

/// Runs intervals as [`run_partitioned_interval`] does, until a duration has passed.
fn run_partitioned_for(cluster: &mut TestCluster, partition: &[u64], duration: Duration) {
    let until = cluster.now.after(duration);
    while cluster.now <= until {
        run_partitioned_interval(cluster, partition);
    }
}

#[test]
fn majority_requires_silent_member_until_its_charges_expire() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    cluster.charge(1, 7);
    run_partitioned_interval(&mut cluster, &[1, 2]);
    let last_flush = cluster.status(1).flush;
    assert!(cluster.acknowledged_flush(1) < last_flush && cluster.status(1).is_majority);
    run_partitioned_for(
        &mut cluster,
        &[1, 2],
        SILENT_MEMBER_REQUIREMENT_DURATION - Duration::from_secs(1),
    );
    assert!(
        cluster.acknowledged_flush(1) < last_flush,
        "earlier charges of node 3 have not expired"
    );
    run_partitioned_for(&mut cluster, &[1, 2], Duration::from_secs(1));
    assert!(cluster.acknowledged_flush(1) >= last_flush);
}

#[test]
fn minority_flush_is_unacknowledged_until_partition_ends() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    cluster.charge(3, 7);
    run_partitioned_for(&mut cluster, &[1, 2], 3 * SILENT_MEMBER_REQUIREMENT_DURATION);
    assert!(!cluster.status(3).is_majority);
    cluster.tick(3);
    assert_eq!(
        cluster.acknowledged_flush(3),
        cluster.peer_status(3, 1).unwrap().acknowledged_flush
    );
    assert!(
        matches!(cluster.peer_status(3, 1).unwrap().liveness, Liveness::Silent(since) if since > 2 * SILENT_MEMBER_REQUIREMENT_DURATION)
    );
}

#[test]
fn half_containing_smallest_name_is_majority() {
    let mut cluster = TestCluster::with_nodes(4);
    partition_cluster(&mut cluster, &[2, 1], &[3, 4]);
    let majority: Vec<bool> = (1..=4).map(|node| cluster.status(node).is_majority).collect();
    assert_eq!(majority, [true, true, false, false]);
}

#[test]
fn node_that_changes_majority_requires_silent_member_again() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    run_partitioned_for(&mut cluster, &[1, 2], 2 * SILENT_MEMBER_REQUIREMENT_DURATION);
    // Node 1 moves to the partition of node 3. Node 2 may have charged units just before, based on acknowledgements of
    // node 1.
    partition_cluster(&mut cluster, &[2], &[1, 3]);
    cluster.set_live_peers(1, &[3]);
    cluster.set_live_peers(3, &[1]);
    cluster.network.clear();
    cluster.charge(3, 7);
    run_partitioned_for(&mut cluster, &[1, 3], Duration::from_secs(10));
    assert!(
        cluster.status(3).is_majority && cluster.acknowledged_flush(3) < cluster.status(3).flush
    );
    run_partitioned_for(&mut cluster, &[1, 3], SILENT_MEMBER_REQUIREMENT_DURATION);
    assert_eq!(
        cluster.acknowledged_flush(3),
        cluster.status(3).flush.max(cluster.acknowledged_flush(3))
    );
    assert!(
        cluster.peer_status(3, 2).unwrap().acknowledged_flush < cluster.status(3).flush,
        "node 2 has not acknowledged the charge"
    );
}

#[test]
fn joining_nodes_do_not_form_majority() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    for (nth, name) in [(4, "d"), (5, "e"), (6, "f")] {
        cluster.start_node(nth, name);
    }
    let minority = [3, 4, 5, 6];
    for node in minority {
        let others: Vec<u64> = minority.into_iter().filter(|other| *other != node).collect();
        cluster.set_live_peers(node, &others);
    }
    run_partitioned_for(&mut cluster, &minority, 2 * SILENT_MEMBER_REQUIREMENT_DURATION);
    assert!(
        minority
            .iter()
            .all(|node| !cluster.status(*node).is_majority
                && cluster.status(*node).members.len() == 5)
    );
    assert!(
        minority[1..]
            .iter()
            .all(|node| !cluster.status(*node).is_joining && !cluster.status(*node).is_settled)
    );
}

#[test]
fn restarted_node_becomes_settled_while_another_is_dead() {
    let mut cluster = TestCluster::with_nodes(5);
    cluster.kill_node(5);
    cluster.kill_node(4);
    cluster.start_node(14, "d");
    cluster.set_all_live();
    cluster.synchronize();
    assert!(cluster.status(14).is_settled, "a majority has acknowledged the restarted node");
    assert!([1, 2, 3, 14].iter().all(|node| cluster.status(*node).is_majority));
}

#[test]
fn survivors_exchange_counters_of_dead_node() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    cluster.run_interval();
    cluster.deliver_except(|frame| frame.to == 2);
    cluster.kill_node(3);
    assert_eq!((cluster.counters(1).units(7), cluster.counters(2).units(7)), (1, 0));
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    cluster.run_interval();
    // The first frames between the survivors are lost, too.
    cluster.network.clear();
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.counters(2).units(7) == 1);
}

#[test]
fn late_frame_of_dead_node_is_forwarded() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    cluster.run_interval();
    let late_frames = cluster.intercept(|frame| frame.from == 3 && frame.to == 1);
    cluster.network.clear();
    cluster.kill_node(3);
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    cluster.synchronize();
    late_frames.iter().for_each(|frame| cluster.deliver(frame));
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.counters(2).units(7) == 1);
}

/// Checks that updates that arrive from a silent member are merged, but not acknowledged.
#[test]
fn silent_member_is_not_acknowledged_before_catching_up() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    // Node 3 has not noticed the partition: it sees nodes 1 and 2, and they receive its frames.
    cluster.set_live_peers(3, &[1, 2]);
    cluster.network.clear();
    cluster.charge(1, 7);
    cluster.charge(3, 7);
    cluster.run_interval();
    cluster.deliver_all();
    assert!(
        cluster.counters(1).units(7) == 2 && cluster.counters(3).units(7) == 1,
        "updates of node 3 arrive, but node 3 receives none"
    );
    assert!(cluster.acknowledged_flush(3) < cluster.status(3).flush);
    cluster.set_all_live();
    let is_update_to_node_3 =
        |frame: &InFlightFrame| frame.to == 3 && matches!(frame.message(), Message::Updates(_));
    let late_frames = cluster.intercept(is_update_to_node_3);
    assert!(!late_frames.is_empty());
    cluster.deliver_all();
    cluster.run_interval();
    cluster.deliver_except(is_update_to_node_3);
    assert!(
        cluster.acknowledged_flush(3) < cluster.status(3).flush,
        "the updates to node 3 have not arrived"
    );
    late_frames.iter().for_each(|frame| cluster.deliver(frame));
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.acknowledged_flush(3) == cluster.status(3).flush);
}

#[test]
fn returning_member_receives_roster_with_added_members() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    cluster.start_node(4, "d");
    cluster.set_live_peers(1, &[2, 4]);
    cluster.set_live_peers(2, &[1, 4]);
    cluster.set_live_peers(4, &[1, 2]);
    cluster.charge(4, 7);
    run_partitioned_for(&mut cluster, &[1, 2, 4], Duration::from_secs(2));
    cluster.kill_node(4);
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    run_partitioned_for(&mut cluster, &[1, 2], Duration::from_secs(2));
    cluster.set_all_live();
    cluster.synchronize();
    assert_eq!(cluster.counters(3).units(7), 1);
    assert!(cluster.peer_status(3, 4).is_some(), "node 3 has the members of the others");
}

#[test]
fn returning_member_must_acknowledge_missed_flushes() {
    let mut cluster = TestCluster::with_nodes(3);
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    cluster.charge(1, 7);
    run_partitioned_for(&mut cluster, &[1, 2], 2 * SILENT_MEMBER_REQUIREMENT_DURATION);
    assert!(cluster.acknowledged_flush(1) >= cluster.status(1).flush);
    cluster.set_all_live();
    assert!(cluster.acknowledged_flush(1) < cluster.status(1).flush);
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
}

/// Returns a cluster of three settled nodes.
fn new_cluster_with_silent_timeout(min_silent_timeout: Duration) -> TestCluster {
    let mut cluster = TestCluster::new();
    cluster.settings.min_silent_timeout = min_silent_timeout;
    (1..=3).for_each(|nth| {
        cluster.start_node(nth, crate::engine::test_cluster::node_name(nth));
        cluster.set_all_live();
        cluster.synchronize();
    });
    cluster
}

#[test]
fn minority_forgets_no_member() {
    let mut cluster = new_cluster_with_silent_timeout(Duration::from_secs(60));
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    cluster.charge(3, 7);
    run_partitioned_for(&mut cluster, &[3], Duration::from_secs(600));
    assert_eq!(cluster.status(3).members.len(), 2);
    assert_ne!(cluster.acknowledged_flush(3), FlushSeq::MAX);
}

#[test]
fn member_is_remembered_for_longest_window() {
    let mut cluster = new_cluster_with_silent_timeout(Duration::from_secs(5));
    cluster.charge(1, 7);
    cluster.synchronize();
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    let window = Duration::from_micros(BUCKET_LAYOUT.unit_lifetime_us());
    run_partitioned_for(&mut cluster, &[1, 2], window);
    assert!(cluster.peer_status(1, 3).is_some(), "the charges of node 3 still count");
    // The limit of clocks, and a second for the delay of messages.
    run_partitioned_for(&mut cluster, &[1, 2], Duration::from_secs(4));
    assert!(cluster.peer_status(1, 3).is_none());
}

#[test]
fn counters_of_member_that_another_does_not_hear_are_relayed() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(3, 7);
    let relayed = MembershipView {
        live: cluster.node_infos(&[2, 3]),
        relayed: [Incarnation(3)].into(),
        ..MembershipView::default()
    };
    let is_lost = |frame: &InFlightFrame| [(3, 2), (2, 3)].contains(&(frame.from, frame.to));
    for key in [7, 8] {
        cluster.set_view(1, &relayed);
        for _ in 0..4 {
            cluster.run_interval();
            cluster.deliver_except(is_lost);
        }
        assert_eq!(cluster.counters(2).units(key), 1, "key {key}");
        let status = cluster.status(3);
        assert!(cluster.acknowledged_flush(3) < status.flush, "node 2 stays required");
        cluster.charge(3, 8);
    }
}

#[test]
fn member_removed_for_long_silence_can_return() {
    let mut cluster = new_cluster_with_silent_timeout(Duration::from_secs(60));
    partition_cluster(&mut cluster, &[1, 2], &[3]);
    run_partitioned_for(&mut cluster, &[1, 2], Duration::from_secs(61));
    assert!(cluster.peer_status(1, 3).is_none() && cluster.peer_status(2, 3).is_none());
    cluster.charge(1, 7);
    cluster.set_all_live();
    cluster.synchronize();
    assert!(cluster.is_consistent() && cluster.peer_status(1, 3).is_some());
    assert!((1..=3).all(|node| cluster.acknowledged_flush(node) == cluster.status(node).flush));
}

#[test]
fn status_reports_silent_members() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.set_live_peers(1, &[2]);
    cluster.run_interval();
    assert_eq!(cluster.peer_status(1, 2).unwrap().liveness, Liveness::Alive);
    assert_eq!(
        cluster.peer_status(1, 3).unwrap().liveness,
        Liveness::Silent(crate::engine::test_cluster::REPLICATION_INTERVAL)
    );
    assert_eq!(cluster.peer_status(1, 3).unwrap().node.incarnation, Incarnation(3));
    assert_eq!(BUCKET_LAYOUT.unit_lifetime_us(), 20_000_000);
}
