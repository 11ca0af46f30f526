//! Tests that a connection to Redis that is closed between two requests changes no decision, and that the log and the
//! metrics name a connection that is lost during a call.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::cluster::{Cluster, SHARDS};
use crate::redis_server::sentinel::Service;
use crate::redis_server::{Redis, wait_until};

const POLICY: &str = "
rules:
  - { name: open, domain: open, per: [id], limits: [10000/h], on_store_error: allow }
  - { name: shut, domain: shut, per: [id], limits: [10000/h], on_store_error: deny }
  - { name: tokens, domain: tokens, per: [id], limits: [1000000/h], cost: tokens, on_store_error: deny }
";

/// Starts a server with this store, and waits until it has connected. A first connection that is closed would be an error in
/// the log.
fn start_server(address: &str) -> (Server, Client) {
    let flags = ["--store", address, "--redis-timeout", "10s", "--deny-cache-ttl", "0s"];
    let server = Server::start_with_admin(POLICY, &flags);
    let client = Client::new(&server);
    assert_eq!(Client::with_address(server.admin_address()).call("GET", "/readyz").status, 200);
    (server, client)
}

/// Asserts that Redis serves a check, a check with an idempotency key, a settlement and the readiness probe, each after the
/// connections of the server were closed.
fn assert_served_after_each_close(server: &Server, client: &Client, close: impl Fn()) {
    let close = || {
        close();
        thread::sleep(Duration::from_millis(50));
    };
    let post = |path: &str, body: &Value| {
        close();
        let response = client.post(path, body.to_string());
        assert_eq!(response.status, 200, "{path} {body}: {}", response.body);
        response.json()
    };
    for nth in 0..10 {
        for domain in ["open", "shut"] {
            let body = json!({"domain": domain, "attributes": {"id": "ann"}});
            let response = post("/v1/check", &body);
            assert_eq!(response["degraded"], false, "{response}");
            assert_eq!(response["remaining"], 9_999 - nth, "{response}");
        }
        let body = json!({
            "domain": "tokens", "attributes": {"id": "ann"}, "costs": {"tokens": 70},
            "idempotency_key": nth.to_string(),
        });
        let reserved = post("/v1/reserve", &body);
        assert_eq!(reserved["degraded"], false, "{reserved}");
        let body = json!({"reservation": reserved["reservation"], "costs": {"tokens": 50}});
        post("/v1/settle", &body);
        let body = json!({"domain": "tokens", "attributes": {"id": "ann"}});
        assert_eq!(post("/v1/peek", &body)["remaining"], 1_000_000 - 50 * (nth + 1));
        close();
        let admin = Client::with_address(server.admin_address());
        assert_eq!(admin.call("GET", "/readyz").status, 200);
    }
    let metrics = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    for class in ["unavailable", "connection_lost", "timed_out", "breaker_open"] {
        let none = format!("slidegate_store_errors_total{{store=\"redis\",class=\"{class}\"}} 0\n");
        assert!(metrics.contains(&none), "{class}: {metrics}");
    }
}

#[test]
fn closed_connection_to_redis_changes_no_response() {
    let redis = Redis::start();
    let (server, client) = start_server(&redis.address());
    assert_served_after_each_close(&server, &client, || redis.close_client_connections());
    assert_eq!(server.next_log_line(Duration::from_millis(100)), None);
}

#[test]
fn closed_connection_to_sentinel_master_changes_no_response() {
    let service = Service::start();
    let (server, client) = start_server(&service.address());
    assert_served_after_each_close(&server, &client, || {
        service.master().close_client_connections();
    });
}

#[test]
fn closed_connections_to_cluster_change_no_response() {
    let cluster = Cluster::start();
    let (server, client) = start_server(&cluster.address());
    assert_served_after_each_close(&server, &client, || {
        for node in &cluster.nodes[..SHARDS] {
            node.close_client_connections();
        }
    });
}

#[test]
fn log_and_metrics_name_connection_lost_during_call() {
    let redis = Redis::start();
    let (server, client) = start_server(&redis.address());
    let body = json!({"domain": "open", "attributes": {"id": "ann"}});
    assert_eq!(client.check(&body).json()["degraded"], false);
    // Redis has received the call, and executes no script.
    redis.command(&["CLIENT", "PAUSE", "60000", "WRITE"]);
    thread::scope(|scope| {
        let check = scope.spawn(|| client.check(&body).json());
        wait_until("Redis has received the call", || {
            let clients: String = redis.try_command(&["CLIENT", "LIST"]).unwrap();
            clients.lines().any(|line| line.contains("flags=b"))
        });
        redis.close_client_connections();
        assert_eq!(check.join().unwrap()["degraded"], true);
    });
    redis.command(&["CLIENT", "UNPAUSE"]);
    assert_eq!(client.check(&body).json()["degraded"], false);
    server.wait_for_log("class=\"connection_lost\"");
    let metrics = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    let lost = "slidegate_store_errors_total{store=\"redis\",class=\"connection_lost\"} 1\n";
    assert!(metrics.contains(lost), "{metrics}");
}
