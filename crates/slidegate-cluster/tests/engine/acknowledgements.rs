//! Tests of acknowledgements. An acknowledgement confirms received updates, and an engine applies it only after all
//! earlier frames of its sender have arrived.

use slidegate_cluster::message::{Ack, Message, Position, ack_frame};

use crate::engine::test_cluster::{InFlightFrame, TestCluster};

#[test]
fn flush_is_acknowledged_after_all_members_received_updates() {
    let mut cluster = TestCluster::with_nodes(3);
    let flush_before = cluster.acknowledged_flush(1);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.deliver_except(|frame| frame.to == 3);
    assert_eq!(
        cluster.acknowledged_flush(1),
        flush_before,
        "only one of two peers has received the charge"
    );
    (0..4).for_each(|_| cluster.run_interval());
    cluster.deliver_all();
    assert!(
        cluster.acknowledged_flush(1) > flush_before
            && cluster.acknowledged_flush(1) == cluster.status(1).flush
    );
}

/// Returns a cluster of two nodes and the undelivered frames of node 2, which has sent these frames before it
/// acknowledged a charge of node 1.
fn new_cluster_with_early_acknowledgement() -> (TestCluster, Vec<InFlightFrame>) {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(2, 8);
    cluster.run_interval();
    let undelivered = cluster.intercept(|frame| frame.from == 2);
    assert_eq!(undelivered.len(), 1);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.deliver_all();
    assert_eq!(cluster.counters(2).units(7), 1, "node 2 has received the charge");
    (cluster, undelivered)
}

#[test]
fn acknowledgement_waits_for_earlier_frames_of_sender() {
    let (mut cluster, undelivered) = new_cluster_with_early_acknowledgement();
    assert!(
        cluster.acknowledged_flush(1) < cluster.status(1).flush,
        "an earlier frame of node 2 is missing"
    );
    undelivered.iter().for_each(|frame| cluster.deliver(frame));
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
}

#[test]
fn lost_updates_arrive_in_later_epoch() {
    let (mut cluster, _lost) = new_cluster_with_early_acknowledgement();
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
    assert_eq!(cluster.counters(1).units(8), 1);
}

#[test]
fn acknowledgement_of_unsent_position_is_ignored() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    let sent = cluster.intercept(|frame| frame.from == 1);
    let Message::Updates(update_frame) = sent[0].message() else { panic!("{sent:?}") };
    let unsent_seq = Position { seq: update_frame.position.seq + 1, ..update_frame.position };
    let unsent_epoch = Position { epoch: update_frame.position.epoch + 1, ..update_frame.position };
    let flush_before = cluster.acknowledged_flush(1);
    for received in [unsent_seq, unsent_epoch, Position { seq: u64::MAX, ..update_frame.position }]
    {
        let ack = ack_frame(&Ack { received, sent: Position { epoch: 1, seq: 1 } }, cluster.now);
        cluster.receive(1, 2, &ack);
    }
    assert_eq!(cluster.acknowledged_flush(1), flush_before);
}

#[test]
fn lost_acknowledgement_is_sent_again() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    cluster.deliver_except(InFlightFrame::is_ack);
    assert!(
        cluster.acknowledged_flush(1) < cluster.status(1).flush
            && cluster.counters(2).units(7) == 1
    );
    cluster.synchronize();
    assert_eq!(cluster.acknowledged_flush(1), cluster.status(1).flush);
}

#[test]
fn acknowledgement_waits_for_initial_state_of_sender() {
    let mut cluster = TestCluster::new();
    cluster.start_node(1, "a");
    cluster.charge(1, 7);
    cluster.start_node(2, "b");
    cluster.charge(2, 7);
    cluster.set_live_peers(1, &[2]);
    cluster.set_live_peers(2, &[1]);
    // The initial state of node 1 is delayed.
    let initial_frames = cluster.intercept(|frame| frame.from == 1);
    cluster.deliver_all();
    let acks = cluster.peer_status(2, 1).unwrap().received.frames;
    assert!(acks > 0 && cluster.acknowledged_flush(2) == 0, "node 2 lacks the counters of node 1");
    initial_frames.iter().for_each(|frame| cluster.deliver(frame));
    cluster.synchronize();
    assert_eq!(
        (cluster.counters(2).units(7), cluster.acknowledged_flush(2)),
        (2, cluster.status(2).flush)
    );
}
