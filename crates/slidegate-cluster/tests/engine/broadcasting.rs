//! Tests that updates reach every node although frames are lost, repeated or late, and that each node respects its byte
//! budget.

use std::time::Duration;

use bytes::Bytes;
use slidegate::Timestamp;
use slidegate_cluster::message::{FrameBody, Position};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

use crate::engine::map_counters::BUCKET_LAYOUT;
use crate::engine::test_cluster::{REPLICATION_INTERVAL, TestCluster};

#[test]
fn charge_reaches_all_nodes_after_one_tick() {
    let mut cluster = TestCluster::with_nodes(3);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.deliver_all();
    assert!((1..=3).all(|node| cluster.counters(node).units(7) == 1));
}

#[test]
fn flush_sends_changes_immediately() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_on(1, |engine, counters, now| engine.flush(counters, now));
    cluster.deliver_all();
    assert_eq!(
        (cluster.counters(2).units(7), cluster.acknowledged_flush(1)),
        (1, cluster.status(1).flush)
    );
    cluster.run_on(1, |engine, counters, now| engine.flush(counters, now));
    assert!(cluster.network.is_empty(), "no changes since the last flush");
}

#[test]
fn lost_updates_are_sent_again() {
    let mut cluster = TestCluster::with_nodes(3);
    for key in 0..3 {
        cluster.charge(1, key);
        cluster.run_interval();
        cluster.deliver_except(|frame| frame.to == 2);
    }
    assert!(cluster.counters(2).units(0) == 0 && cluster.counters(3).units(2) == 1);
    (0..4).for_each(|_| {
        cluster.deliver_all();
        cluster.run_interval();
    });
    cluster.deliver_all();
    assert!(cluster.is_consistent() && cluster.acknowledged_flush(1) == cluster.status(1).flush);
}

#[test]
fn repeated_and_late_frames_change_nothing() {
    let mut cluster = TestCluster::with_nodes(3);
    let mut rng = fastrand::Rng::with_seed(5);
    let mut all = Vec::new();
    for _ in 0..30 {
        cluster.charge(rng.u64(1..=3), rng.u64(..5));
        cluster.run_interval();
        all.extend(cluster.network.iter().cloned());
        cluster.deliver_all();
    }
    let (counters, acknowledged_flush) = (cluster.counters(2).all(), cluster.acknowledged_flush(2));
    for _ in 0..3 {
        rng.shuffle(&mut all);
        all.iter().for_each(|frame| cluster.deliver(frame));
        cluster.network.clear();
    }
    assert!(cluster.is_consistent() && cluster.counters(2).all() == counters);
    assert_eq!(
        cluster.acknowledged_flush(2),
        acknowledged_flush,
        "replayed acknowledgements change nothing"
    );
}

#[test]
fn reordered_frames_need_no_new_epoch() {
    let mut cluster = TestCluster::with_nodes(2);
    for key in 0..5 {
        cluster.charge(1, key);
        cluster.run_on(1, |engine, counters, now| engine.flush(counters, now));
    }
    let epochs = cluster.peer_status(1, 2).unwrap().epochs;
    let frames = cluster.intercept(|_| true);
    frames.iter().rev().for_each(|frame| cluster.deliver(frame));
    cluster.deliver_all();
    assert!(cluster.is_consistent() && cluster.acknowledged_flush(1) == cluster.status(1).flush);
    assert_eq!(cluster.peer_status(1, 2).unwrap().epochs, epochs);
}

#[test]
fn link_up_resends_unacknowledged_updates() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.network.clear();
    cluster.run_on(1, |engine, counters, now| engine.on_link_up(counters, Incarnation(2), now));
    cluster.deliver_all();
    assert_eq!(cluster.counters(2).units(7), 1);
    cluster.run_on(1, |engine, counters, now| engine.on_link_up(counters, Incarnation(2), now));
    assert!(cluster.network.is_empty(), "no unacknowledged frames");
}

#[test]
fn unresponsive_peer_is_retried_with_backoff() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    let epochs = cluster.peer_status(1, 2).unwrap().epochs;
    for _ in 0..100 {
        cluster.run_interval();
        cluster.network.clear();
    }
    let new_epochs = cluster.peer_status(1, 2).unwrap().epochs - epochs;
    assert!((4..=9).contains(&new_epochs), "{new_epochs} new epochs in 100 intervals");
}

#[test]
fn initial_state_respects_byte_budget_and_completes() {
    let mut cluster = TestCluster::new();
    cluster.settings.interval_bytes = 200_000;
    cluster.start_node(1, "a");
    for key in 0..60_000 {
        cluster.charge(1, key << 20);
    }
    cluster.start_node(2, "b");
    cluster.set_all_live();
    let mut intervals = 0;
    while cluster.counters(2).all().len() < 60_000 {
        let bytes: usize = cluster.network.iter().map(|frame| frame.bytes.len()).sum();
        assert!(bytes <= 200_000 + 1_000, "{bytes} bytes");
        cluster.deliver_all();
        cluster.run_interval();
        intervals += 1;
        assert!(intervals < 8, "the transfer does not finish: it restarts repeatedly");
    }
    cluster.deliver_all();
    assert_eq!(cluster.peer_status(1, 2).unwrap().epochs, 1);
}

#[test]
fn changed_counters_use_at_most_half_of_byte_budget() {
    let mut cluster = TestCluster::new();
    cluster.settings.interval_bytes = 200_000;
    cluster.start_node(1, "a");
    cluster.start_node(2, "b");
    cluster.set_all_live();
    cluster.synchronize();
    for key in 0..20_000 {
        cluster.charge(1, key << 20);
    }
    for _ in 0..5 {
        cluster.run_interval();
        let bytes: usize = cluster.network.iter().map(|frame| frame.bytes.len()).sum();
        assert!(bytes <= 110_000, "{bytes} bytes, above half of the budget");
        cluster.deliver_all();
    }
    assert!(cluster.is_consistent());
}

#[test]
fn single_node_cluster_sends_no_flush() {
    let mut cluster = TestCluster::new();
    cluster.start_node(1, "a");
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.run_on(1, |engine, counters, now| engine.flush(counters, now));
    assert!(cluster.network.is_empty() && cluster.nodes[&1].progress.load().has_no_peers());
    assert_eq!(cluster.status(1).flush, 0);
    let mut unsent = Vec::new();
    let mut visit = |update| unsent.push(update);
    cluster.counters(1).visit_counters_changed_since(0, false, cluster.now, &mut visit);
    assert_eq!(unsent.len(), 1, "the change is still marked as unsent");
}

#[test]
fn idle_cluster_sends_nothing() {
    let mut cluster = TestCluster::with_nodes(3);
    for _ in 0..100 {
        cluster.run_interval();
        assert!(cluster.network.is_empty());
    }
}

#[test]
fn updates_far_in_future_are_rejected_and_counted() {
    let mut cluster = TestCluster::with_nodes(2);
    // The limit of clocks, and a second for the delay of messages.
    let max_difference = Duration::from_secs(3);
    let lifetime = Duration::from_micros(BUCKET_LAYOUT.unit_lifetime_us());
    let latest = BUCKET_LAYOUT.bucket(cluster.now.after(max_difference).after(lifetime));
    let update = |key, bucket| CounterUpdate {
        key,
        layout: BUCKET_LAYOUT,
        incarnation: Incarnation(2),
        bucket,
        units: PnCounter { charged: 1, removed: 0 },
    };
    let updates = [update(1, latest), update(2, latest + 1), update(3, u64::MAX)];
    let frame =
        FrameBody::from_updates(&updates)[0].to_frame(Position { epoch: 90, seq: 1 }, cluster.now);
    cluster.receive(1, 2, &frame);
    assert_eq!([1, 2, 3].map(|key| cluster.counters(1).units(key)), [1, 0, 0]);
    assert_eq!(cluster.peer_status(1, 2).unwrap().rejected_updates, 2);
}

#[test]
fn malformed_frame_is_counted_and_ignored() {
    let mut cluster = TestCluster::with_nodes(2);
    let before = cluster.status(1);
    for (from, frame) in [(2, &[9, 9][..]), (2, b"hello"), (77, &[1, 1, 1])] {
        cluster.receive(1, from, &Bytes::from_static(frame));
    }
    let after = cluster.status(1);
    assert_eq!((after.members[0].rejected_frames, after.rejected_frames), (2, 1));
    assert_eq!(after.members[0].acknowledged_flush, before.members[0].acknowledged_flush);
    assert!(cluster.network.is_empty());
}

#[test]
fn lost_charges_of_local_incarnation_come_back() {
    let mut cluster = TestCluster::with_nodes(2);
    let update = CounterUpdate {
        key: 7,
        layout: BUCKET_LAYOUT,
        incarnation: Incarnation(1),
        bucket: BUCKET_LAYOUT.bucket(cluster.now),
        units: PnCounter { charged: 1_000, removed: 0 },
    };
    let frame =
        FrameBody::from_updates(&[update])[0].to_frame(Position { epoch: 90, seq: 1 }, cluster.now);
    cluster.receive(1, 2, &frame);
    cluster.receive(1, 1, &frame);
    assert_eq!(cluster.counters(1).units(7), 1_000);
}

#[test]
fn status_reports_member_lag() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    let sent_at = cluster.now;
    cluster.network.clear();
    cluster.charge(1, 8);
    cluster.run_interval();
    cluster.network.clear();
    let lag = Duration::from_micros(cluster.now.as_micros() - sent_at.as_micros());
    assert_eq!(
        (cluster.peer_status(1, 2).unwrap().lag, lag),
        (REPLICATION_INTERVAL, REPLICATION_INTERVAL)
    );
    cluster.synchronize();
    assert_eq!(cluster.peer_status(1, 2).unwrap().lag, Duration::ZERO);
    let (sent, received) =
        (cluster.peer_status(1, 2).unwrap().sent, cluster.peer_status(2, 1).unwrap().received);
    assert!(received.frames < sent.frames && received.bytes < sent.bytes, "some frames were lost");
    assert!(cluster.now > Timestamp::default());
}
