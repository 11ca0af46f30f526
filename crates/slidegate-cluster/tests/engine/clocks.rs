//! Clocks that differ by more than the limit.

use std::time::Duration;

use slidegate::Timestamp;
use slidegate_cluster::membership::MembershipView;
use slidegate_cluster::message::{Message, ack_frame};
use slidegate_cluster::replicated_counters::FlushSeq;

use crate::engine::test_cluster::TestCluster;

/// The difference of a clock that is outside the limit of 2 s, even if messages take a second.
const SKEW: Duration = Duration::from_secs(4);

#[test]
fn acknowledgement_with_other_time_is_not_applied() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.charge(1, 7);
    cluster.run_interval();
    for frame in cluster.intercept(|frame| frame.to == 2) {
        cluster.deliver(&frame);
    }
    let acks = cluster.intercept(|frame| frame.to == 1 && frame.is_ack());
    cluster.network.clear();
    let before = cluster.acknowledged_flush(1);
    let Message::Ack(ack) = acks.last().expect("an acknowledgement").message() else {
        unreachable!("only acknowledgements are intercepted");
    };
    let is_applied = |cluster: &mut TestCluster, sent_at| {
        cluster.receive(1, 2, &ack_frame(&ack, sent_at));
        cluster.acknowledged_flush(1) > before
    };
    let now = cluster.now;
    assert!(!is_applied(&mut cluster, now.after(SKEW)), "ahead");
    let behind = Timestamp::from_micros(now.as_micros() - SKEW.as_micros() as u64);
    assert!(!is_applied(&mut cluster, behind), "behind");
    assert!(is_applied(&mut cluster, now), "the clocks agree");
}

#[test]
fn skewed_member_is_treated_like_silent_one() {
    let mut cluster = TestCluster::with_nodes(3);
    let skewed = |cluster: &TestCluster, live: &[u64], skewed: &[u64]| MembershipView {
        live: cluster.node_infos(live),
        skewed: cluster.node_infos(skewed),
        ..MembershipView::default()
    };
    for (node, live, out) in [(1, &[2][..], &[3][..]), (2, &[1], &[3]), (3, &[], &[1, 2])] {
        let view = skewed(&cluster, live, out);
        cluster.set_view(node, &view);
    }
    for node in [1, 3] {
        cluster.charge(node, 7);
    }
    cluster.synchronize();
    assert!(cluster.status(1).is_majority && !cluster.status(3).is_majority);
    assert!(cluster.acknowledged_flush(1) < cluster.status(1).flush, "node 3 may charge freely");
    let window = Duration::from_secs(60);
    cluster.now = cluster.now.after(window);
    cluster.synchronize();
    let acknowledged = cluster.acknowledged_flush(1);
    assert_eq!(acknowledged, cluster.status(1).flush, "the majority goes on after a window");
    let acknowledged = cluster.acknowledged_flush(3);
    assert_ne!(acknowledged, FlushSeq::MAX, "the skewed node does not");
}

#[test]
fn cluster_forms_although_one_clock_is_wrong() {
    let mut cluster = TestCluster::new();
    (1..=3).for_each(|node| cluster.start_node(node, crate::engine::test_cluster::node_name(node)));
    for (node, live, skewed) in [(1, &[2][..], &[3][..]), (2, &[1], &[3]), (3, &[], &[1, 2])] {
        let (live, skewed) = (cluster.node_infos(live), cluster.node_infos(skewed));
        cluster.set_view(node, &MembershipView { live, skewed, ..MembershipView::default() });
    }
    cluster.now = cluster.now.after(Duration::from_secs(10));
    cluster.synchronize();
    let majorities = [1, 2, 3].map(|node| cluster.status(node).is_majority);
    assert_eq!(majorities, [true, true, false]);
}

#[test]
fn joiner_with_skewed_clock_starts_no_cluster() {
    let mut cluster = TestCluster::with_nodes(2);
    cluster.start_node(3, "c");
    let skewed = cluster.node_infos(&[1, 2]);
    cluster.set_view(3, &MembershipView { skewed, ..MembershipView::default() });
    cluster.now = cluster.now.after(Duration::from_secs(60));
    cluster.charge(3, 7);
    cluster.synchronize();
    let status = cluster.status(3);
    assert!(!status.is_settled && !status.is_majority && status.members.len() == 2);
    assert_ne!(cluster.acknowledged_flush(3), FlushSeq::MAX);
}
