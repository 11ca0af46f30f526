//! Tests that only the node that made a reservation settles it, and that the other nodes reject it and count its units.

use serde_json::json;

use crate::cluster::authentication::key_file_flags;
use crate::cluster::node::{
    CLUSTER_KEY, Node, NodeConfig, node_configs, policy_with_max, start_nodes, wait_for_remaining,
};
use crate::common::TempFile;

/// Sends a body in the domain `default`, and returns the status and the response.
fn post(node: &Node, path: &str, body: &serde_json::Value) -> (u16, serde_json::Value) {
    let response = node.client().post(path, body.to_string());
    (response.status, response.json())
}

#[test]
fn only_reserving_node_settles_reservation() {
    let [reserving, other] = start_nodes(&node_configs::<2>(&policy_with_max(100, 100)));
    let estimate = json!({ "attributes": { "client": "alice" }, "cost": 40 });
    let (status, reserved) = post(&reserving, "/v1/reserve", &estimate);
    assert_eq!(status, 200, "{reserved}");
    wait_for_remaining(&[&reserving, &other], "default", 60);

    let settlement = json!({ "reservation": reserved["reservation"], "cost": 25 });
    let (status, problem) = post(&other, "/v1/settle", &settlement);
    assert_eq!(status, 421, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("made by another instance"), "{detail}");
    wait_for_remaining(&[&reserving, &other], "default", 60);

    for _ in 0..2 {
        assert_eq!(post(&reserving, "/v1/settle", &settlement).0, 200);
        wait_for_remaining(&[&reserving, &other], "default", 75);
    }
}

#[test]
fn reservation_is_recognized_after_key_change() {
    let policy = policy_with_max(100, 100);
    let [before, after] = node_configs::<2>(&policy);
    let keys = TempFile::new(".key", "another key that only the nodes of tests know\n");
    let secret = TempFile::new(".secret", CLUSTER_KEY);
    let after = NodeConfig { credentials: key_file_flags(&keys, &secret), ..after };
    let [before, after] = [before.start(), after.start()];
    let request = json!({ "attributes": { "client": "alice" }, "cost": 40 });
    let (_, reserved) = post(&before, "/v1/reserve", &request);
    let settlement = json!({ "reservation": reserved["reservation"], "cost": 25 });
    // Its token is valid, but only the node that made it can settle it.
    let (status, problem) = post(&after, "/v1/settle", &settlement);
    assert_eq!(status, 421, "{problem}");
    assert_eq!(post(&before, "/v1/settle", &settlement).0, 200);
}

#[test]
fn node_recognizes_only_calls_that_it_has_admitted() {
    let [first, other] = start_nodes(&node_configs::<2>(&policy_with_max(100, 100)));
    let call = json!({ "attributes": { "client": "alice" }, "cost": 10, "idempotency_key": "a" });
    for _ in 0..2 {
        assert_eq!(post(&first, "/v1/check", &call).0, 200);
        wait_for_remaining(&[&first, &other], "default", 90);
    }
    // The documents say that another node charges a repetition again.
    assert_eq!(post(&other, "/v1/check", &call).0, 200);
    wait_for_remaining(&[&first, &other], "default", 80);
}
