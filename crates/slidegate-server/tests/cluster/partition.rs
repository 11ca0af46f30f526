//! Tests of network partitions between nodes. During a partition, the number of allowed units stays bounded. After it,
//! all nodes have equal counters.

use std::time::Duration;

use slidegate::clock::{Clock, SystemClock};

use crate::cluster::node::{
    Node, max_allowed_in_window, node_configs, start_nodes, wait_for_remaining, wait_until,
    wait_until_connected,
};
use crate::cluster::relay::RelayNetwork;

/// A policy with one rule per domain. The rules have different effects while a node does not respond (is silent). Under
/// the rule `bounded`, each other node allows at most `max_unsynced` more units. Under the rule `available`, the other
/// nodes do not wait for the silent node, and allow units up to the limit. The rule `soon` has a window that is shorter
/// than the partition.
const POLICY: &str = "
defaults: { algorithm: sliding_buckets }
rules:
  - { name: bounded, domain: bounded, per: [client], limits: [90/h], cluster: { max_unsynced: 5 } }
  - { name: available, domain: available, per: [client], limits: [90/h], cluster: { max_unsynced: 5, on_partition: available } }
  - { name: soon, domain: soon, per: [client], limits: [1000/s], cluster: { max_unsynced: 1 } }
";

/// Waits until `node` reports that exactly the nodes `silent_nodes` are silent.
fn wait_until_peers_are_silent(node: &Node, silent_nodes: &[&str]) {
    let members = || node.members_in_state("silent");
    wait_until("the nodes are silent", members, |silent| *silent == silent_nodes);
}

#[test]
fn allowed_units_stay_bounded_during_partition_then_nodes_converge() {
    let mut configs = node_configs::<3>(POLICY);
    let network = RelayNetwork::with_relays_for(&mut configs);
    let [a, b, c] = start_nodes(&configs);
    for domain in ["bounded", "available"] {
        assert_eq!(b.count_allowed(domain, 30), 30);
        wait_for_remaining(&[&a, &b, &c], domain, 60);
    }
    network.cut_links(&[&configs[0]], &[&configs[1], &configs[2]]);
    wait_until_peers_are_silent(&a, &["b", "c"]);
    wait_until_peers_are_silent(&b, &["a"]);
    wait_until_peers_are_silent(&c, &["a"]);
    assert_eq!(
        (&a.cluster_status()["majority"], &b.cluster_status()["majority"]),
        (&false.into(), &true.into())
    );

    // Each node allows max_unsynced units and no more.
    let bounded = [&a, &b, &c].map(|node| node.count_allowed("bounded", 20));
    assert_eq!(bounded, [5, 5, 5]);
    // Each side of the partition enforces the whole limit, starting from the counters before the partition.
    let by_side = [
        a.count_allowed("available", 100),
        b.count_allowed("available", 30) + c.count_allowed("available", 100),
    ];
    assert_eq!(by_side[0], 60);
    assert!((60..=max_allowed_in_window(60, 2, 5)).contains(&by_side[1]), "{by_side:?}");
    // Possible charges of the lost node have left the window: the majority no longer waits for it, the minority does.
    let majority = || [&b, &c].map(|node| node.count_allowed("soon", 30));
    wait_until("the majority continues", majority, |allowed| allowed == &[30, 30]);
    assert!(a.count_allowed("soon", 30) < 10, "the minority waits for the majority");

    network.restore_all_links();
    wait_until_connected(&[&a, &b, &c]);
    let nodes = [&a, &b, &c];
    wait_for_remaining(&nodes, "bounded", 90 - 30 - 15);
    wait_for_remaining(&nodes, "available", 0);
    let more: u64 = nodes.iter().map(|node| node.count_allowed("bounded", 100)).sum();
    assert!((90..=max_allowed_in_window(90, 3, 5)).contains(&(45 + more)), "{more}");
    wait_for_remaining(&nodes, "bounded", 0);
}

#[test]
fn short_link_failure_loses_no_charges() {
    let mut configs = node_configs::<2>(POLICY);
    let network = RelayNetwork::with_relays_for(&mut configs);
    let [a, b] = start_nodes(&configs);
    network.cut_links(&[&configs[0]], &[&configs[1]]);
    assert_eq!(a.count_allowed("bounded", 20), 5);
    network.restore_all_links();
    wait_for_remaining(&[&a, &b], "bounded", 85);
    assert_eq!(a.count_allowed("bounded", 20), 20);
    wait_for_remaining(&[&a, &b], "bounded", 65);
}

/// Cuts the link of two nodes, and lets each of them allow 20 units of a limit of 20 units. Then restores the link.
/// Returns `None` if this took so long that units may have left the window before the nodes exchanged them.
fn exceed_limit_during_partition() -> Option<[Node; 2]> {
    let limit = "{ max: 20, window: 8s, precision: 1s }";
    let policy = format!(
        "rules: [{{ name: a, per: [client], algorithm: sliding_buckets, limits: [{limit}], cluster: {{ max_unsynced: 20 }} }}]"
    );
    let mut configs = node_configs::<2>(&policy);
    let network = RelayNetwork::with_relays_for(&mut configs);
    let nodes = start_nodes(&configs);
    network.cut_links(&[&configs[0]], &[&configs[1]]);
    let clock = SystemClock::new();
    let latest = clock.now().after(Duration::from_secs(6));
    assert_eq!(nodes.each_ref().map(|node| node.count_allowed("default", 30)), [20, 20]);
    network.restore_all_links();
    wait_until_connected(&nodes.each_ref());
    (clock.now() < latest).then_some(nodes)
}

#[test]
fn units_allowed_above_limit_are_counted_after_partition() {
    let [a, b] = (0..5).find_map(|_| exceed_limit_during_partition()).expect("a faster machine");
    // The overshoot is reported when its window is over and the next update arrives.
    let reports = || {
        a.check("default");
        b.remaining_units("default");
        b.metric_sum("slidegate_cluster_overshoot_ratio_count", "")
    };
    wait_until("the overshoot is reported", reports, |reports| *reports > 0.0);
    assert_eq!(
        b.metric_sum("slidegate_cluster_overshoot_ratio_sum", ""),
        1.0,
        "the overshoot equals max"
    );
    let overshoot = b.cluster_status()["overshoot"].clone();
    let last_bucket = &overshoot[8];
    assert!(last_bucket["le"].is_null() && last_bucket["count"] == 1, "{overshoot}");
    assert_eq!(max_allowed_in_window(20, 2, 20), 40, "both nodes together reached the bound");
}
