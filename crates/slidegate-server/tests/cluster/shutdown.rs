//! Tests that the graceful shutdown of a cluster node loses no charges and does not delay the other nodes.

use crate::cluster::node::{
    NodeConfig, node_configs, policy_with_max, start_nodes, wait_for_remaining,
    wait_until_connected,
};
use crate::cluster::rolling_restart::{LOAD_MAX, LOAD_MAX_UNSYNCED, RollingRestartLoad};

#[test]
fn running_nodes_do_not_wait_for_gracefully_stopped_node() {
    let [a, b, c] = start_nodes(&node_configs::<3>(&policy_with_max(90, 5)));
    assert_eq!(b.count_allowed("default", 30), 30);
    b.stop_gracefully();
    wait_until_connected(&[&a, &c]);
    wait_for_remaining(&[&a, &c], "default", 60);
    assert_eq!(a.count_allowed("default", 40), 40, "far more than max_unsynced");
    wait_for_remaining(&[&a, &c], "default", 20);
    assert_eq!(a.members_in_state("silent"), [""; 0]);
}

#[test]
fn stopping_node_replicates_last_charges_before_exit() {
    // With this long interval, only the shutdown itself can have replicated the charges in time.
    let configs = node_configs::<2>(&policy_with_max(90, 80))
        .map(|config| NodeConfig { sync_interval: "5s", ..config });
    let [a, b] = start_nodes(&configs);
    assert_eq!(b.count_allowed("default", 40), 40);
    b.stop_gracefully();
    wait_for_remaining(&[&a], "default", 50);
}

#[test]
fn rolling_restart_loses_no_charges() {
    let configs = node_configs::<3>(&policy_with_max(LOAD_MAX, LOAD_MAX_UNSYNCED));
    let load = RollingRestartLoad::start(&configs);
    load.run_during(|| load.restart_nodes(&configs));
    load.assert_no_charge_is_lost();
}
