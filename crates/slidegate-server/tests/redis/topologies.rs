//! The server over several: a Cluster, and a service that Sentinels watch.

use std::time::Duration;

use serde_json::json;

use super::passwords::heard_and_told;
use crate::client::Client;
use crate::common::Server;
use crate::server::cluster::Cluster;
use crate::server::node::Node;
use crate::server::sentinel::{NAME, Service};

const POLICY: &str = "
rules:
  - { name: tenants, per: [tenant], limits: [3/h] }
  - { name: routes, per: [tenant, route], limits: [2/h] }
";

const PATIENT: [&str; 2] = ["--redis-timeout", "30s"];

/// Two servers count on from each other, for several tenants.
fn decide_together(address: &str, shown: &str) {
    let servers = [(); 2]
        .map(|()| Server::start_with(POLICY, &[&["--store", address], &PATIENT[..]].concat()));
    let clients = servers.each_ref().map(Client::of);
    for server in &servers {
        assert!(server.listening().ends_with(&format!("store={shown}")), "{}", server.listening());
    }
    for tenant in ["acme", "bolt", "cog", "dynamo", "echo"] {
        let ask = |nth: usize, route: &str| {
            let ask = json!({"attributes": {"tenant": tenant, "route": route}});
            let answer = clients[nth].check(&ask);
            let json = answer.json();
            assert_eq!(json["degraded"], false, "{json}");
            (answer.status, json["rule"].as_str().unwrap().to_owned(), json["remaining"].as_u64())
        };
        // The rule that has the least left, by its share.
        let (tenants, routes) = ("tenants".to_owned(), "routes".to_owned());
        assert_eq!(ask(0, "/a"), (200, routes.clone(), Some(1)));
        assert_eq!(ask(1, "/a"), (200, routes.clone(), Some(0)));
        assert_eq!(ask(0, "/a"), (429, routes, Some(0)));
        assert_eq!(ask(1, "/b"), (200, tenants.clone(), Some(0)));
        assert_eq!(ask(0, "/b"), (429, tenants, Some(0)));
    }
}

#[test]
fn servers_share_counters_over_redis_cluster() {
    let cluster = Cluster::start();
    decide_together(&cluster.address(), &cluster.address());
}

#[test]
fn servers_share_counters_over_sentinel() {
    let service = Service::start();
    decide_together(&service.address(), &service.address());
}

/// Whoever connects from now on has to say so.
fn guard<'n>(nodes: impl Iterator<Item = &'n Node> + Clone, password: &str) {
    nodes.clone().for_each(|node| drop(node.command(&["CONFIG", "SET", "masterauth", password])));
    nodes.for_each(|node| drop(node.command(&["CONFIG", "SET", "requirepass", password])));
}

/// With the right password and with a wrong one: it is used, and never told.
fn passwords_are_not_told(address: &str, password: &str) {
    for (given, is_right) in [(password.to_owned(), true), (format!("{password}-not"), false)] {
        let store = address.replacen("://", &format!("://:{given}@"), 1);
        let (is_heard, told) = heard_and_told(&store);
        assert_eq!(is_heard, is_right, "{told}");
        assert!(!told.contains(password), "{told}");
        assert!(told.contains(&format!("store={address}")), "{told}");
    }
}

#[test]
fn cluster_password_is_never_logged() {
    let cluster = Cluster::start();
    guard(cluster.nodes.iter(), "sesame");
    passwords_are_not_told(&cluster.address(), "sesame");
}

#[test]
fn sentinel_password_is_never_logged() {
    let service = Service::start();
    for sentinel in &service.sentinels {
        sentinel.command(&["SENTINEL", "SET", NAME, "auth-pass", "sesame"]);
    }
    guard([service.master(), service.replica()].into_iter(), "sesame");
    passwords_are_not_told(&service.address(), "sesame");
}

#[test]
fn server_starts_with_unreachable_redis_nodes() {
    // Nobody listens at the port, and nobody has the other's name.
    for store in [
        "redis+cluster://127.0.0.1:1,no-such-host.invalid:1",
        "redis+sentinel://127.0.0.1:1,no-such-host.invalid:1/service",
    ] {
        let server = Server::start_with(POLICY, &["--store", store, "--redis-timeout", "50ms"]);
        assert!(server.listening().ends_with(store), "{}", server.listening());
        let ask = json!({"attributes": {"tenant": "acme", "route": "/a"}});
        let answer = Client::of(&server).check(&ask);
        assert_eq!((answer.status, &answer.json()["degraded"]), (200, &json!(true)));
        (0..6).for_each(|_| drop(Client::of(&server).check(&ask)));
        if !server.starting().concat().contains("not asked") {
            server.wait_for_log("not asked");
        }
        assert_eq!(Client::of(&server).call("GET", "/readyz").json()["store"]["reachable"], false);
        server.signal("TERM");
        while server.next_log(Duration::from_secs(10)).is_some() {}
        assert_eq!(server.exit_code(), Some(0));
    }
}
