//! Nodes find each other, and count together.

use std::thread;

use crate::client::Client;
use crate::common::Server;
use crate::node::{Node, agree_on, bound, know_each_other, plans, rule, start, wait_until};

#[test]
fn three_servers_find_each_other_and_share_a_limit() {
    let (max, max_unsynced) = (300, 10);
    let nodes = start(&plans::<3>(&rule(max, max_unsynced)));
    // Each is asked until nothing is left there.
    let allowed_of = |node: &Node| {
        let mut allowed = 0;
        loop {
            let said = node.check("default");
            allowed += u64::from(said.allowed);
            if !said.allowed && node.remaining("default") == 0 {
                return allowed;
            }
        }
    };
    let allowed: u64 = thread::scope(|scope| {
        let asked = nodes.each_ref().map(|node| scope.spawn(|| allowed_of(node)));
        asked.map(|asked| asked.join().unwrap()).into_iter().sum()
    });
    assert!((max..=bound(max, 3, max_unsynced)).contains(&allowed), "{allowed}");
    agree_on(&nodes.each_ref(), "default", 0);
    for node in &nodes {
        let alive = node.metric("slidegate_cluster_members", r#"state="alive""#);
        assert_eq!((alive, node.metric("slidegate_cluster_members", "silent")), (3.0, 0.0));
        assert!(node.metric("slidegate_cluster_sent_bytes_total", "") > 0.0);
        assert!(node.metric("slidegate_cluster_received_bytes_total", "") > 0.0);
        assert_eq!(node.metric("slidegate_keys", ""), 1.0);
    }
}

#[test]
fn a_lone_client_of_a_small_limit_is_not_denied_for_nothing() {
    let policy =
        "rules: [{ name: shared, per: [client], algorithm: sliding_buckets, limits: [6/h] }]";
    let nodes = start(&plans::<3>(policy));
    // Of each request but the first the others have to know before the next.
    let left: Vec<u64> = (0..6).map(|_| nodes[1].check("default").remaining).collect();
    assert_eq!(left, [5, 4, 3, 2, 1, 0]);
    agree_on(&nodes.each_ref(), "default", 0);
    assert!(nodes.iter().all(|node| !node.check("default").allowed));
    assert_eq!(nodes[1].metric("slidegate_cluster_unsynced_denials_total", ""), 0.0);
}

#[test]
fn alone_a_node_is_a_cluster_of_one() {
    let flags =
        ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0", "--cluster-node-name", "only"];
    let server = Server::start_with_admin(&rule(50, 1), &flags);
    assert!(server.listening_log().contains("store=cluster://"), "{}", server.listening_log());
    let node = Node::of(server);
    assert_eq!(node.allows("default", 60), 50, "it waits for nobody");
    let status = node.status();
    assert_eq!((&status["name"], &status["joining"]), (&"only".into(), &false.into()));
    assert_eq!(status["members"], serde_json::json!([]));
    assert_eq!(node.metric("slidegate_cluster_members", r#"state="alive""#), 1.0);
}

#[test]
fn a_name_with_a_port_that_was_free_is_a_seed_too() {
    let common = ["--store", "cluster://", "--cluster-listen", "127.0.0.1:0"];
    let start = |more: &[&str]| {
        Node::of(Server::start_with_admin(&rule(9, 1), &[&common[..], more].concat()))
    };
    let first = start(&[]);
    let address = first.status()["address"].as_str().unwrap().to_owned();
    let (_, port) = address.rsplit_once(':').unwrap();
    let second = start(&["--cluster-seeds", &format!("localhost:{port}")]);
    know_each_other(&[&first, &second]);
    assert_eq!(second.others("alive"), [address], "without a name, its address is one");
}

#[test]
fn a_server_without_a_cluster_says_so() {
    let server = Server::start_with_admin(&rule(9, 1), &[]);
    let admin = Client::with_address(server.admin());
    let answer = admin.call("GET", "/v1/cluster");
    assert_eq!(answer.status, 404);
    let detail = answer.json()["detail"].as_str().unwrap().to_owned();
    assert!(detail.contains("the store is `memory`") && detail.contains("cluster://"), "{detail}");
    assert_eq!(admin.call("POST", "/v1/cluster").status, 405);
}

#[test]
fn servers_that_start_at_once_and_are_all_seeds_find_each_other() {
    let plans = plans::<3>(&rule(90, 5));
    let nodes = thread::scope(|scope| {
        plans.each_ref().map(|plan| scope.spawn(|| plan.start())).map(|node| node.join().unwrap())
    });
    // Nobody knows yet what others may have counted.
    let allowed: u64 = nodes.iter().map(|node| node.allows("default", 20)).sum();
    know_each_other(&nodes.each_ref());
    agree_on(&nodes.each_ref(), "default", 90 - allowed);
    assert!(allowed <= 3 * 5, "{allowed}");
}

#[test]
fn a_node_that_joins_late_is_told_all_that_counts() {
    let [first, second, third] = plans::<3>(&rule(100, 50));
    let [first, second] = start(&[first, second]);
    assert_eq!(first.allows("default", 30) + second.allows("default", 30), 60);
    agree_on(&[&first, &second], "default", 40);
    let third = third.start();
    know_each_other(&[&first, &second, &third]);
    assert_eq!(third.remaining("default"), 40, "before it knows the others it is joining");
    let lag = || third.status()["members"][0]["lag_ms"].as_u64();
    wait_until("it has told what it had to tell", lag, |lag| *lag == Some(0));
}
