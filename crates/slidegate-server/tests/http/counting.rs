//! Tests that the server allows exactly as many requests as a limit permits, also if many clients send requests at the
//! same time.

use std::net::SocketAddr;
use std::sync::Barrier;
use std::thread;

use serde_json::json;

use crate::common::Server;
use crate::http::client::Client;

const CONNECTION_COUNT: usize = 50;
const REQUEST_COUNT: usize = 2_000;

/// Sends 2,000 requests with the same key over 50 concurrent connections, and returns the number of allowed requests.
fn send_requests_and_count_allowed(address: SocketAddr, key: &str) -> usize {
    let start = &Barrier::new(CONNECTION_COUNT);
    let send_requests = move || {
        let client = Client::with_address(address);
        let request = json!({"attributes": {"key": key}});
        start.wait();
        let statuses = (0..REQUEST_COUNT / CONNECTION_COUNT).map(|_| client.check(&request).status);
        statuses.filter(|status| *status == 200).count()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTION_COUNT).map(|_| scope.spawn(send_requests)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

fn assert_exactly_100_allowed(algorithm: &str) {
    let limits = "per: [key], limits: [100/min]";
    let policy = format!("rules: [{{ name: storm, {limits}, algorithm: {algorithm} }}]");
    let server = Server::start(&policy);
    for round in 0..10 {
        let allowed = send_requests_and_count_allowed(server.address(), &format!("round-{round}"));
        assert_eq!(allowed, 100, "in round {round}");
    }
}

#[test]
fn sliding_log_allows_exactly_max_across_connections() {
    assert_exactly_100_allowed("sliding_log");
}

#[test]
fn sliding_buckets_allow_exactly_max_across_connections() {
    assert_exactly_100_allowed("sliding_buckets");
}

/// Sends 3,000 requests of 100 clients within one window. A few clients send most of the requests. Each decision must
/// match the number of earlier requests of the same client.
#[test]
fn every_decision_matches_request_count() {
    const MAX_PER_CLIENT: u64 = 20;
    let policy = "rules: [{ name: per-ip, per: [ip], limits: [20/h], algorithm: sliding_log }]";
    let server = Server::start(policy);
    let client = Client::new(&server);
    let mut request_counts = [0_u64; 100];
    let mut random = 1_u64;
    for nth in 0..3_000 {
        random =
            random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        // The square of a random fraction is usually small, so a few clients send most requests.
        let fraction = random >> 44;
        let client_id = ((fraction * fraction * 100) >> 40) as usize;
        request_counts[client_id] += 1;
        let response = client.check(&json!({"attributes": {"ip": format!("10.0.0.{client_id}")}}));
        let found = (response.status, response.json()["remaining"].as_u64());
        let status = if request_counts[client_id] <= MAX_PER_CLIENT { 200 } else { 429 };
        assert_eq!(
            found,
            (status, Some(MAX_PER_CLIENT.saturating_sub(request_counts[client_id]))),
            "request {nth} of {client_id}"
        );
    }
    let limited_clients = request_counts.iter().filter(|count| **count > MAX_PER_CLIENT).count();
    assert!(
        (10..90).contains(&limited_clients),
        "unsuitable test pattern: {limited_clients} clients are above the limit"
    );
}

#[test]
fn host_and_address_spellings_share_counter() {
    let server = Server::start(
        "
rules:
  - { name: api, when: { host: api.example.com }, limits: [3/h], algorithm: sliding_log }
  - { name: per-ip, when: { ip: '::ffff:192.0.2.0/120' }, per: [ip], limits: [3/h], algorithm: sliding_log }
",
    );
    let client = Client::new(&server);
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
