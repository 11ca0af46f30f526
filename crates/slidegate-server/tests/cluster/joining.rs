//! Tests that nodes find each other through their seed addresses, and share their counters.

use std::thread;

use crate::cluster::node::{
    Node, max_allowed_in_window, node_configs, policy_with_max, start_nodes, unused_address,
    wait_for_remaining, wait_until, wait_until_connected,
};
use crate::common::Server;
use crate::http::client::Client;

#[test]
fn three_servers_join_and_share_one_limit() {
    let (max, max_unsynced) = (300, 10);
    let nodes = start_nodes(&node_configs::<3>(&policy_with_max(max, max_unsynced)));
    // Sends requests to a node until it has no units left.
    let exhaust = |node: &Node| {
        let mut allowed = 0;
        loop {
            let outcome = node.check("default");
            allowed += u64::from(outcome.allowed);
            if !outcome.allowed && node.remaining_units("default") == 0 {
                return allowed;
            }
        }
    };
    let allowed: u64 = thread::scope(|scope| {
        let threads = nodes.each_ref().map(|node| scope.spawn(|| exhaust(node)));
        threads.map(|thread| thread.join().unwrap()).into_iter().sum()
    });
    assert!((max..=max_allowed_in_window(max, 3, max_unsynced)).contains(&allowed), "{allowed}");
    wait_for_remaining(&nodes.each_ref(), "default", 0);
    for node in &nodes {
        let alive = node.metric_sum("slidegate_cluster_members", r#"state="alive""#);
        assert_eq!((alive, node.metric_sum("slidegate_cluster_members", "silent")), (3.0, 0.0));
        assert!(node.metric_sum("slidegate_cluster_sent_bytes_total", "") > 0.0);
        assert!(node.metric_sum("slidegate_cluster_received_bytes_total", "") > 0.0);
        assert_eq!(node.metric_sum("slidegate_keys", ""), 1.0);
    }
}

#[test]
fn one_node_can_use_all_units_of_small_limit() {
    let policy =
        "rules: [{ name: shared, per: [client], algorithm: sliding_buckets, limits: [6/h] }]";
    let nodes = start_nodes(&node_configs::<3>(policy));
    // After the first request, the peers must acknowledge each request before the next one is allowed.
    let left: Vec<u64> = (0..6).map(|_| nodes[1].check("default").remaining).collect();
    assert_eq!(left, [5, 4, 3, 2, 1, 0]);
    wait_for_remaining(&nodes.each_ref(), "default", 0);
    assert!(nodes.iter().all(|node| !node.check("default").allowed));
    assert_eq!(nodes[1].metric_sum("slidegate_cluster_unsynced_denials_total", ""), 0.0);
}

#[test]
fn single_node_forms_cluster() {
    let flags =
        ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0", "--cluster-node-name", "only"];
    let server = Server::start_with_admin(&policy_with_max(50, 1), &flags);
    assert!(server.listening_log().contains("store=cluster://"), "{}", server.listening_log());
    let node = Node::new(server);
    assert_eq!(node.count_allowed("default", 60), 50, "a single node waits for no peer");
    let status = node.cluster_status();
    assert_eq!((&status["name"], &status["joining"]), (&"only".into(), &false.into()));
    assert_eq!(status["members"], serde_json::json!([]));
    assert_eq!(node.metric_sum("slidegate_cluster_members", r#"state="alive""#), 1.0);
}

#[test]
fn host_name_is_accepted_as_seed_address() {
    let common = ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];
    let start_server = |more: &[&str]| {
        Node::new(Server::start_with_admin(&policy_with_max(9, 1), &[&common[..], more].concat()))
    };
    let first = start_server(&[]);
    let address = first.cluster_status()["address"].as_str().unwrap().to_owned();
    let (_, port) = address.rsplit_once(':').unwrap();
    let second = start_server(&["--cluster-seeds", &format!("localhost:{port}")]);
    wait_until_connected(&[&first, &second]);
    assert_eq!(second.members_in_state("alive"), [address], "the address is the default name");
}

#[test]
fn node_that_finds_no_cluster_is_ready_later_with_warning() {
    let seed = unused_address().to_string();
    let flags = ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0", "--cluster-seeds"];
    let flags = [&flags[..], &[&seed]].concat();
    let server = Server::start_with_admin(&policy_with_max(9, 1), &flags);
    let readyz = || Client::with_address(server.admin_address()).call("GET", "/readyz");
    let joining = readyz();
    assert_eq!((joining.status, &joining.json()["store"]["joining"]), (503, &true.into()));
    server.wait_for_log("no other cluster node has responded");
    wait_until("the node is ready", || readyz().status, |status| *status == 200);
}

#[test]
fn cluster_status_without_cluster_store_is_404() {
    let server = Server::start_with_admin(&policy_with_max(9, 1), &[]);
    let admin = Client::with_address(server.admin_address());
    let response = admin.call("GET", "/v1/cluster");
    assert_eq!(response.status, 404);
    let detail = response.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("the store is `memory`") && detail.contains("cluster://"), "{detail}");
    assert_eq!(admin.call("POST", "/v1/cluster").status, 405);
}

#[test]
fn seed_nodes_started_simultaneously_form_one_cluster() {
    let configs = node_configs::<3>(&policy_with_max(90, 5));
    let nodes = thread::scope(|scope| {
        configs
            .each_ref()
            .map(|config| scope.spawn(|| config.start()))
            .map(|node| node.join().unwrap())
    });
    // The nodes do not know the charges of each other yet.
    let allowed: u64 = nodes.iter().map(|node| node.count_allowed("default", 20)).sum();
    wait_until_connected(&nodes.each_ref());
    wait_for_remaining(&nodes.each_ref(), "default", 90 - allowed);
    assert!(allowed <= 3 * 5, "{allowed}");
}

#[test]
fn late_joining_node_receives_all_counters() {
    let [first, second, third] = node_configs::<3>(&policy_with_max(100, 50));
    let [first, second] = start_nodes(&[first, second]);
    assert_eq!(first.count_allowed("default", 30) + second.count_allowed("default", 30), 60);
    wait_for_remaining(&[&first, &second], "default", 40);
    let third = third.start();
    wait_until_connected(&[&first, &second, &third]);
    assert_eq!(third.remaining_units("default"), 40, "the node has joined, so it has all counters");
    let lag = || third.cluster_status()["members"][0]["lag_ms"].as_u64();
    wait_until("the third node has replicated everything", lag, |lag| *lag == Some(0));
}
