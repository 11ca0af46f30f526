//! Tests that nodes learn of charges to a nearly used limit before the replication interval ends.

use std::time::Duration;

use quanta::Instant;

use crate::cluster::node::{
    NodeConfig, node_configs, policy_with_max, start_nodes, wait_for_remaining,
};

/// Much longer than an update needs.
const SYNC_INTERVAL: Duration = Duration::from_secs(10);

#[test]
fn charges_to_nearly_used_limit_are_sent_early() {
    let configs = node_configs::<2>(&policy_with_max(80, 80))
        .map(|config| NodeConfig { sync_interval: "10s", ..config });
    let [charged, other] = start_nodes(&configs);
    assert_eq!(charged.count_allowed("default", 75), 75);
    let start = Instant::now();
    for remaining in (0..5).rev() {
        assert!(charged.check("default").allowed);
        wait_for_remaining(&[&other], "default", remaining);
    }
    let elapsed = start.elapsed();
    // At the end of intervals, the five updates would take four intervals or more.
    assert!(elapsed < 3 * SYNC_INTERVAL, "{elapsed:?}");
}
