//! Tests of the server with Redis Cluster and with Redis Sentinel as its store.

use std::time::Duration;

use serde_json::json;

use super::passwords::run_and_collect_output;
use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::cluster::Cluster;
use crate::redis_server::node::Node;
use crate::redis_server::sentinel::{NAME, Service};

const POLICY: &str = "
rules:
  - { name: tenants, per: [tenant], limits: [3/h] }
  - { name: routes, per: [tenant, route], limits: [2/h] }
";

const LONG_REDIS_TIMEOUT_FLAGS: [&str; 2] = ["--redis-timeout", "30s"];

/// Starts two servers with the Redis at `address`. Asserts that the servers share the counters of several tenants, and
/// that the log names the store as `logged_address`.
fn assert_servers_share_counters(address: &str, logged_address: &str) {
    let servers = [(); 2].map(|()| {
        Server::start_with(POLICY, &[&["--store", address], &LONG_REDIS_TIMEOUT_FLAGS[..]].concat())
    });
    let clients = servers.each_ref().map(Client::new);
    for server in &servers {
        assert!(
            server.listening_log().ends_with(&format!("store={logged_address}")),
            "{}",
            server.listening_log()
        );
    }
    for tenant in ["acme", "bolt", "cog", "dynamo", "echo"] {
        let check = |nth: usize, route: &str| {
            let request = json!({"attributes": {"tenant": tenant, "route": route}});
            let response = clients[nth].check(&request);
            let json = response.json();
            assert_eq!(json["degraded"], false, "{json}");
            (response.status, json["rule"].as_str().unwrap().to_owned(), json["remaining"].as_u64())
        };
        // The binding limit has the smallest remaining share of its max.
        let (tenants, routes) = ("tenants".to_owned(), "routes".to_owned());
        assert_eq!(check(0, "/a"), (200, routes.clone(), Some(1)));
        assert_eq!(check(1, "/a"), (200, routes.clone(), Some(0)));
        assert_eq!(check(0, "/a"), (429, routes, Some(0)));
        assert_eq!(check(1, "/b"), (200, tenants.clone(), Some(0)));
        assert_eq!(check(0, "/b"), (429, tenants, Some(0)));
    }
}

#[test]
fn servers_share_counters_over_redis_cluster() {
    let cluster = Cluster::start();
    assert_servers_share_counters(&cluster.address(), &cluster.address());
}

#[test]
fn servers_share_counters_over_sentinel() {
    let service = Service::start();
    assert_servers_share_counters(&service.address(), &service.address());
}

/// Configures these Redis nodes to require a password from new connections.
fn require_password<'n>(nodes: impl Iterator<Item = &'n Node> + Clone, password: &str) {
    nodes.clone().for_each(|node| drop(node.command(&["CONFIG", "SET", "masterauth", password])));
    nodes.for_each(|node| drop(node.command(&["CONFIG", "SET", "requirepass", password])));
}

/// Runs a server with a valid and with an invalid Redis password, and asserts that the output of the server never
/// contains the password.
fn assert_passwords_are_hidden(address: &str, password: &str) {
    for (given_password, is_valid) in
        [(password.to_owned(), true), (format!("{password}-not"), false)]
    {
        let store = address.replacen("://", &format!("://:{given_password}@"), 1);
        let (is_connected, output) = run_and_collect_output(&store);
        assert_eq!(is_connected, is_valid, "{output}");
        assert!(!output.contains(password), "{output}");
        assert!(output.contains(&format!("store={address}")), "{output}");
    }
}

#[test]
fn cluster_password_is_never_logged() {
    let cluster = Cluster::start();
    require_password(cluster.nodes.iter(), "sesame");
    assert_passwords_are_hidden(&cluster.address(), "sesame");
}

#[test]
fn sentinel_password_is_never_logged() {
    let service = Service::start();
    for sentinel in &service.sentinels {
        sentinel.command(&["SENTINEL", "SET", NAME, "auth-pass", "sesame"]);
    }
    require_password([service.master(), service.replica()].into_iter(), "sesame");
    assert_passwords_are_hidden(&service.address(), "sesame");
}

#[test]
fn server_starts_with_unreachable_redis_nodes() {
    // The port is closed, and the host name does not resolve.
    for (store, warning) in [
        (
            "redis+cluster://127.0.0.1:1,no-such-host.invalid:1",
            "no node of the Redis Cluster returned the slot map",
        ),
        ("redis+sentinel://127.0.0.1:1,no-such-host.invalid:1/service", "circuit breaker opened"),
    ] {
        let server = Server::start_with(POLICY, &["--store", store, "--redis-timeout", "50ms"]);
        assert!(server.listening_log().ends_with(store), "{}", server.listening_log());
        let request = json!({"attributes": {"tenant": "acme", "route": "/a"}});
        let response = Client::new(&server).check(&request);
        assert_eq!((response.status, &response.json()["degraded"]), (200, &json!(true)));
        (0..6).for_each(|_| drop(Client::new(&server).check(&request)));
        if !server.startup_log().concat().contains(warning) {
            server.wait_for_log(warning);
        }
        assert_eq!(Client::new(&server).call("GET", "/readyz").json()["store"]["reachable"], false);
        server.send_signal("TERM");
        while server.next_log_line(Duration::from_secs(10)).is_some() {}
        assert_eq!(server.wait_for_exit_code(), Some(0));
    }
}
