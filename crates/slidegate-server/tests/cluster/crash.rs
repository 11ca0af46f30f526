//! Tests that the counters of a cluster survive when a node crashes or pauses.

use crate::cluster::node::{
    Node, max_allowed_in_window, node_configs, start_nodes, wait_for_remaining, wait_until,
    wait_until_connected,
};

/// A policy with one rule per domain. The rules have different effects while a node does not respond (is silent). Under
/// the rule `bounded`, each other node allows at most `max_unsynced` more units. Under the rule `available`, the other
/// nodes do not wait for the silent node, and allow units up to the limit.
const POLICY: &str = "
defaults: { algorithm: sliding_buckets }
rules:
  - { name: bounded, domain: bounded, per: [client], limits: [90/h], cluster: { max_unsynced: 5 } }
  - { name: available, domain: available, per: [client], limits: [90/h], cluster: { max_unsynced: 5, on_partition: available } }
";

const TESTED_DOMAINS: [&str; 2] = ["bounded", "available"];

/// Waits until each of `nodes` reports that `silent_node`, and no other node, is silent.
fn wait_until_nodes_report_silent_node(nodes: &[&Node], silent_node: &str) {
    for node in nodes {
        let members = || node.members_in_state("silent");
        wait_until("the node is silent", members, |silent| *silent == [silent_node]);
    }
}

#[test]
fn replicated_charges_survive_node_crash() {
    let configs = node_configs::<3>(POLICY);
    let [a, b, c] = start_nodes(&configs);
    for domain in TESTED_DOMAINS {
        assert_eq!(b.count_allowed(domain, 30), 30);
        wait_for_remaining(&[&a, &b, &c], domain, 60);
    }
    let before = b.cluster_status()["incarnation"].clone();
    drop(b);
    wait_until_nodes_report_silent_node(&[&a, &c], "b");
    assert_eq!(a.metric_sum("slidegate_cluster_members", r#"state="silent""#), 1.0);
    // The killed node may have allowed more than it replicated: the others stop at max_unsynced units each.
    let bounded = a.count_allowed("bounded", 20) + c.count_allowed("bounded", 20);
    assert_eq!(bounded, 10);
    assert!(a.metric_sum("slidegate_cluster_unsynced_denials_total", "") > 0.0);
    // With `on_partition: available` they continue.
    let available = a.count_allowed("available", 20) + c.count_allowed("available", 20);
    assert_eq!(available, 40);
    wait_for_remaining(&[&a, &c], "bounded", 50);
    wait_for_remaining(&[&a, &c], "available", 20);

    let b = configs[1].start();
    wait_until_connected(&[&a, &b, &c]);
    assert_ne!(b.cluster_status()["incarnation"], before);
    wait_for_remaining(&[&b], "bounded", 50);
    wait_for_remaining(&[&b], "available", 20);
    let nodes = [&a, &b, &c];
    for (domain, left, allowed) in [("bounded", 50, 40), ("available", 20, 70)] {
        let more: u64 = nodes.iter().map(|node| node.count_allowed(domain, 100)).sum();
        let max = max_allowed_in_window(90, 4, 5) - allowed;
        assert!((left..=max).contains(&more), "{domain}: {more}");
        wait_for_remaining(&nodes, domain, 0);
    }
}

#[test]
fn resumed_node_receives_charges_made_during_pause() {
    let configs = node_configs::<3>(POLICY);
    let [a, b, c] = start_nodes(&configs);
    assert_eq!(b.count_allowed("bounded", 30), 30);
    wait_for_remaining(&[&a, &b, &c], "bounded", 60);
    b.pause();
    // The others wait for acknowledgements of `b`, both before and after it counts as silent.
    assert_eq!(a.count_allowed("bounded", 20), 5);
    wait_until_nodes_report_silent_node(&[&a, &c], "b");
    assert_eq!(c.count_allowed("bounded", 20), 5);
    b.resume();
    // The resumed node does not know yet that it was paused.
    let ahead = b.count_allowed("bounded", 5);
    wait_until_connected(&[&a, &b, &c]);
    let nodes = [&a, &b, &c];
    wait_for_remaining(&nodes, "bounded", 60 - 10 - ahead);
    let more: u64 = nodes.iter().map(|node| node.count_allowed("bounded", 100)).sum();
    let allowed = 30 + 10 + ahead + more;
    assert!((90..=max_allowed_in_window(90, 3, 5)).contains(&allowed), "{allowed}");
    wait_for_remaining(&nodes, "bounded", 0);
}
