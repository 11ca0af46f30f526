//! Tests of Redis outages. While Redis does not respond, the `on_store_error` setting of each rule determines the
//! decision.

use std::time::Duration;

use serde_json::{Value, json};
use slidegate::clock::{Clock, SystemClock};

use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::Redis;

const POLICY: &str = "
rules:
  - { name: open, domain: open, per: [id], limits: [10/h], on_store_error: allow }
  - { name: shut, domain: shut, per: [id], limits: [10/h], on_store_error: deny }
  - { name: own, domain: own, per: [id], limits: [10/h], algorithm: sliding_log }
  - { name: none, domain: own, per: [id], when: { id: banned }, limits: denied }
";

const REDIS_TIMEOUT: Duration = Duration::from_millis(200);

/// Maximum delay of a response after [`REDIS_TIMEOUT`] has passed. Responses can be late because the test machine is
/// busy.
const MAX_EXTRA_RESPONSE_TIME: Duration = Duration::from_secs(2);

/// Maximum time from the moment when Redis runs again until the circuit breaker closes and the server uses Redis for
/// its decisions.
const MAX_RECOVERY_TIME: Duration = Duration::from_secs(12);

fn start_server(redis: &Redis) -> (Server, Client) {
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "200ms", "--expected-instances", "4"];
    // The denial cache is off, since it decides without Redis.
    let flags = [&flags[..], &["--deny-cache-ttl", "0s", "--log-denials", "0"]].concat();
    let server = Server::start_with(POLICY, &flags);
    let client = Client::new(&server);
    (server, client)
}

/// Sends a check request, asserts that the response arrives in time, and returns the status and body of the response.
fn send_check_within_timeout(client: &Client, domain: &str, id: &str) -> (u16, Value) {
    let clock = SystemClock::new();
    let start = clock.now();
    let response = client.check(&json!({"domain": domain, "attributes": {"id": id}}));
    let elapsed = Duration::from_micros(clock.now().as_micros().saturating_sub(start.as_micros()));
    assert!(elapsed < REDIS_TIMEOUT + MAX_EXTRA_RESPONSE_TIME, "{domain}: {elapsed:?}");
    (response.status, response.json())
}

/// Asserts that the server decides without Redis, according to the `on_store_error` setting of each rule. Each call for
/// the same server must use a new `id`, because a call exhausts the local counter of its `id`.
#[track_caller]
fn assert_decided_without_redis(client: &Client, id: &str) {
    for _ in 0..20 {
        let (status, response) = send_check_within_timeout(client, "open", id);
        assert_eq!((status, &response["degraded"]), (200, &json!(true)), "{response}");
    }
    for _ in 0..3 {
        let (status, response) = send_check_within_timeout(client, "shut", id);
        assert_eq!((status, &response["degraded"]), (503, &json!(true)), "{response}");
        assert_eq!(response["allowed"], false);
    }
    // Each of the 4 expected instances allows a quarter of max 10, rounded down.
    for (expected, remaining) in [(200, 1), (200, 0), (429, 0)] {
        let (status, response) = send_check_within_timeout(client, "own", id);
        assert_eq!((status, &response["degraded"]), (expected, &json!(true)), "{response}");
        assert_eq!(
            (&response["limit"]["max"], &response["remaining"]),
            (&json!(2), &json!(remaining))
        );
    }
    assert_eq!(send_check_within_timeout(client, "own", "banned").0, 429);
}

/// Sends requests until the server decides with Redis again. Panics after [`MAX_RECOVERY_TIME`].
fn wait_for_recovery(client: &Client) {
    let clock = SystemClock::new();
    let end = clock.now().after(MAX_RECOVERY_TIME);
    while send_check_within_timeout(client, "open", "anybody").1["degraded"] == true {
        assert!(clock.now() < end, "not within {MAX_RECOVERY_TIME:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Asserts that the server counts requests with this `id` in Redis from zero, and denies them above the limit.
#[track_caller]
fn assert_counted_in_redis(client: &Client, id: &str) {
    for domain in ["open", "shut", "own"] {
        for left in (0..10).rev() {
            let (status, response) = send_check_within_timeout(client, domain, id);
            assert_eq!(
                (status, &response["remaining"]),
                (200, &json!(left)),
                "{domain}: {response}"
            );
            assert_eq!(response["degraded"], false);
        }
        assert_eq!(send_check_within_timeout(client, domain, id).0, 429);
    }
}

#[test]
fn server_survives_and_recovers_from_redis_crash() {
    let mut redis = Redis::start();
    let (server, client) = start_server(&redis);
    assert_counted_in_redis(&client, "ann");
    redis.kill();
    assert_decided_without_redis(&client, "ann");
    server.wait_for_log("circuit breaker opened");
    redis.restart();
    wait_for_recovery(&client);
    // The log has one line for the outage, and one for its end.
    let line = server.next_log_line(Duration::from_secs(10)).unwrap();
    assert!(line.contains("circuit breaker closed"), "{line}");
    // Redis has lost its counters in the crash, and the local counters of the outage are dropped.
    assert_counted_in_redis(&client, "ann");
    assert_eq!(server.next_log_line(Duration::from_millis(100)), None);
    redis.kill();
    // Local counters survive a short recovery: in another outage so soon, those for `ann` would still count.
    assert_decided_without_redis(&client, "bob");
}

#[test]
fn server_survives_and_recovers_from_redis_hang() {
    let redis = Redis::start();
    let (server, client) = start_server(&redis);
    assert_counted_in_redis(&client, "ann");
    redis.pause();
    assert_decided_without_redis(&client, "ann");
    server.wait_for_log("circuit breaker opened");
    redis.resume();
    wait_for_recovery(&client);
    server.wait_for_log("circuit breaker closed");
    // Redis has kept its counters.
    assert_eq!(send_check_within_timeout(&client, "own", "ann").0, 429);
    assert_counted_in_redis(&client, "bob");
}

#[test]
fn server_started_before_redis_connects_later() {
    let mut redis = Redis::start();
    redis.kill();
    let (_server, client) = start_server(&redis);
    assert_decided_without_redis(&client, "ann");
    redis.restart();
    wait_for_recovery(&client);
    assert_counted_in_redis(&client, "ann");
}
