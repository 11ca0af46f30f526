//! Tests that servers with the same Redis recognize repeated calls, and settle each other's reservations.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};
use crate::redis_server::Redis;

const POLICY: &str = "
rules:
  - { name: rate, per: [client], limits: [100/h], cost: 1 }
  - { name: tokens, per: [client], limits: [10000/h, 90000/d], cost: tokens }
";

const TOKEN_KEY: [&str; 2] = ["--token-key", "a key of all instances"];

fn start_server(redis: &Redis, flags: &[&str]) -> Server {
    let address = redis.address();
    let timeout = ["--redis-timeout", "30s"];
    let timeout = if flags.contains(&timeout[0]) { &[][..] } else { &timeout };
    Server::start_with_admin(POLICY, &[&["--store", &address], timeout, flags].concat())
}

fn post(client: &Client, path: &str, body: &Value) -> HttpResponse {
    client.post(path, body.to_string())
}

/// Returns the units of each limit that remain: requests, tokens per hour and tokens per day.
fn remaining(client: &Client) -> Vec<u64> {
    let peek = post(client, "/v1/peek", &json!({"attributes": {"client": "ann"}})).json();
    assert_eq!(peek["degraded"], false);
    let limits = peek["limits"].as_array().unwrap().clone();
    limits.iter().map(|limit| limit["remaining"].as_u64().unwrap()).collect()
}

#[test]
fn servers_recognize_each_others_calls() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| start_server(&redis, &[]));
    let clients = [Client::new(&servers[0]), Client::new(&servers[1])];
    let body =
        json!({"attributes": {"client": "ann"}, "costs": {"tokens": 70}, "idempotency_key": "a"});
    let first = post(&clients[0], "/v1/check", &body);
    assert_eq!(first.status, 200);
    for client in &clients {
        let again = post(client, "/v1/check", &body);
        assert_eq!((again.status, again.json()), (200, first.json()));
        let other = json!({"attributes": {"client": "bob"}, "idempotency_key": "a"});
        assert_eq!(post(client, "/v1/check", &other).status, 422);
    }
    assert_eq!(remaining(&clients[0]), [99, 9_930, 89_930]);
    let metrics = Client::with_address(servers[1].admin_address()).call("GET", "/metrics").body;
    assert!(metrics.contains("\nslidegate_repeated_calls_total 1\n"), "{metrics}");
    redis.assert_all_expire();
}

#[test]
fn own_token_key_is_a_warning_at_first_reservation() {
    let redis = Redis::start();
    let warning = "set the same --token-key-file on all instances";
    let server = start_server(&redis, &["--expected-instances", "2"]);
    let client = Client::new(&server);
    let body = json!({"attributes": {"client": "ann"}});
    assert_eq!(post(&client, "/v1/check", &body).status, 200);
    assert_eq!(server.startup_log().iter().filter(|line| line.contains(warning)).count(), 0);
    assert!(server.next_log_line(Duration::ZERO).is_none(), "a check makes no token");
    let reserve = || assert_eq!(post(&client, "/v1/reserve", &body).status, 200);
    reserve();
    server.wait_for_log(warning);
    reserve();
    server.send_signal("TERM");
    let rest = std::iter::from_fn(|| server.next_log_line(Duration::from_secs(30)));
    assert!(rest.into_iter().all(|line| !line.contains(warning)));
}

#[test]
fn settlement_without_redis_counts_as_outage() {
    let mut redis = Redis::start();
    let server = start_server(&redis, &["--redis-timeout", "100ms"]);
    let client = Client::new(&server);
    let reserved = post(
        &client,
        "/v1/reserve",
        &json!({"attributes": {"client": "ann"}, "costs": {"tokens": 7}}),
    )
    .json();
    redis.kill();
    let settlement = json!({"reservation": reserved["reservation"], "costs": {"tokens": 1}});
    assert_eq!(post(&client, "/v1/settle", &settlement).status, 503);
    let metrics = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    for line in [r#"result="store_unavailable"} 1"#, r#"result="error"} 0"#] {
        let line = format!(r#"slidegate_requests_total{{protocol="http",{line}"#);
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
}

#[test]
fn servers_settle_each_others_reservations_once() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| start_server(&redis, &TOKEN_KEY));
    let reserve = json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}});
    for round in 1..=20 {
        let reserved = post(&Client::new(&servers[0]), "/v1/reserve", &reserve);
        assert_eq!(reserved.status, 200, "{}", reserved.body);
        assert_eq!(reserved.json()["reserved"], Value::Null, "the other server may settle");
        let settle = json!({
            "reservation": reserved.json()["reservation"],
            "costs": {"tokens": 300 + 100 * (round % 2)},
        });
        thread::scope(|scope| {
            for nth in 0..4 {
                let (address, settle) = (servers[nth % 2].address(), &settle);
                scope.spawn(move || {
                    let settled = post(&Client::with_address(address), "/v1/settle", settle);
                    assert_eq!((settled.status, settled.json()), (200, json!({"settled": true})));
                });
            }
        });
    }
    // Ten rounds of 400 and ten of 300 tokens.
    assert_eq!(remaining(&Client::new(&servers[1])), [80, 3_000, 83_000]);
    redis.assert_all_expire();
}

#[test]
fn settlement_with_other_costs_is_rejected_by_every_server() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| start_server(&redis, &TOKEN_KEY));
    let clients = [Client::new(&servers[0]), Client::new(&servers[1])];
    let reserve =
        json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}, "idempotency_key": "r"});
    let reserved = post(&clients[0], "/v1/reserve", &reserve).json();
    let again = post(&clients[1], "/v1/reserve", &reserve).json();
    let settle = |reserved: &Value, tokens: u64| json!({"reservation": reserved["reservation"], "costs": {"tokens": tokens}});
    assert_eq!(post(&clients[1], "/v1/settle", &settle(&reserved, 900)).status, 200);
    for client in &clients {
        assert_eq!(post(client, "/v1/settle", &settle(&again, 900)).status, 200);
        assert_eq!(post(client, "/v1/settle", &settle(&again, 901)).status, 409);
    }
    assert_eq!(remaining(&clients[0]), [99, 9_100, 89_100]);
}

/// Servers with different prefixes have different counters, also if they have the same token key.
#[test]
fn tokens_of_server_with_other_prefix_are_rejected() {
    let redis = Redis::start();
    let own = start_server(&redis, &TOKEN_KEY);
    let other = start_server(&redis, &[&TOKEN_KEY[..], &["--redis-prefix", "other:"]].concat());
    let reserve = json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}});
    let reserved = post(&Client::new(&own), "/v1/reserve", &reserve).json();
    let settle = json!({"reservation": reserved["reservation"], "costs": {"tokens": 300}});
    let rejected = post(&Client::new(&other), "/v1/settle", &settle);
    assert_eq!(rejected.status, 400, "{}", rejected.body);
    assert!(rejected.body.contains("--redis-prefix"), "{}", rejected.body);
    assert_eq!(post(&Client::new(&own), "/v1/settle", &settle).status, 200);
}

#[test]
fn reservation_of_server_with_other_key_is_rejected() {
    let redis = Redis::start();
    let (with_key, without_key) = (start_server(&redis, &TOKEN_KEY), start_server(&redis, &[]));
    let reserve = json!({"attributes": {"client": "ann"}, "costs": {"tokens": 700}});
    let reserved = post(&Client::new(&with_key), "/v1/reserve", &reserve).json();
    let settle = json!({"reservation": reserved["reservation"], "cost": 0});
    let response = post(&Client::new(&without_key), "/v1/settle", &settle);
    assert!(
        response.status == 400 && response.body.contains("--token-key-file"),
        "{}",
        response.body
    );
}
