//! As many pass as the policy says, whoever asks at the same time.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;

use serde_json::json;

use crate::client::Client;
use crate::common::Server;

const CONNECTIONS: usize = 50;
const REQUESTS: usize = 2_000;

/// How many of 2,000 requests pass that 50 connections send at the same time.
fn allowed_of_a_storm(address: SocketAddr, key: &str) -> usize {
    let start = &Barrier::new(CONNECTIONS);
    let storm = move || {
        let client = Client::at(address);
        let ask = json!({"attributes": {"key": key}});
        start.wait();
        let statuses = (0..REQUESTS / CONNECTIONS).map(|_| client.check(&ask).status);
        statuses.filter(|status| *status == 200).count()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS).map(|_| scope.spawn(storm)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

fn assert_exactly_100_pass(algorithm: &str) {
    let limits = "per: [key], limits: [100/min]";
    let policy = format!("rules: [{{ name: storm, {limits}, algorithm: {algorithm} }}]");
    let server = Server::start(&policy);
    for round in 0..10 {
        let allowed = allowed_of_a_storm(server.address(), &format!("round-{round}"));
        assert_eq!(allowed, 100, "in round {round}");
    }
}

#[test]
fn a_sliding_log_lets_exactly_its_max_pass_on_50_connections() {
    assert_exactly_100_pass("sliding_log");
}

#[test]
fn sliding_buckets_let_exactly_their_max_pass_on_50_connections() {
    assert_exactly_100_pass("sliding_buckets");
}

/// 3,000 requests of 100 clients within an hour: few of them ask often, many seldom.
#[test]
fn every_decision_is_that_of_a_plain_count() {
    const MAX: u64 = 20;
    let policy = "rules: [{ name: per-ip, per: [ip], limits: [20/h], algorithm: sliding_log }]";
    let server = Server::start(policy);
    let client = Client::of(&server);
    let mut seen = [0_u64; 100];
    let mut random = 1_u64;
    for nth in 0..3_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The square of a fraction below 1 is mostly small.
        let fraction = random >> 44;
        let who = ((fraction * fraction * 100) >> 40) as usize;
        seen[who] += 1;
        let answer = client.check(&json!({"attributes": {"ip": format!("10.0.0.{who}")}}));
        let found = (answer.status, answer.json()["remaining"].as_u64());
        let status = if seen[who] <= MAX { 200 } else { 429 };
        assert_eq!(found, (status, Some(MAX.saturating_sub(seen[who]))), "request {nth} of {who}");
    }
    let busy = seen.iter().filter(|count| **count > MAX).count();
    assert!((10..90).contains(&busy), "the pattern shows nothing: {busy} clients over the limit");
}

#[test]
fn every_spelling_of_host_or_address_has_one_count() {
    let server = Server::start(
        "
rules:
  - { name: api, when: { host: api.example.com }, limits: [3/h], algorithm: sliding_log }
  - { name: per-ip, when: { ip: '::ffff:192.0.2.0/120' }, per: [ip], limits: [3/h], algorithm: sliding_log }
",
    );
    let client = Client::of(&server);
    let status =
        |name: &str, value: &str| client.check(&json!({"attributes": {name: value}})).status;
    let hosts = ["API.example.com", "api.example.com:80", "api.example.com.", "api.example.com"];
    assert_eq!(hosts.map(|host| status("host", host)), [200, 200, 200, 429]);
    assert_eq!(status("host", "other.example"), 200);
    let addresses = ["::ffff:c000:207", "::ffff:192.0.2.7", "0:0::FFFF:C000:0207", "192.0.2.7"];
    assert_eq!(addresses.map(|ip| status("ip", ip)), [200, 200, 200, 429]);
    assert_eq!(status("ip", "192.0.2.8"), 200);
    let peek = client.post("/v1/peek", r#"{"attributes":{"host":"Api.Example.com:1"}}"#);
    assert_eq!(peek.json()["allowed"], json!(false));
}
