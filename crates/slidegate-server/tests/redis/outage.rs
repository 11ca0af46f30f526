//! While Redis does not answer, each rule's `on_store_error` holds.

use std::time::Duration;

use serde_json::{Value, json};
use slidegate::{Clock, SystemClock};

use crate::client::Client;
use crate::common::Server;
use crate::server::Redis;

const POLICY: &str = "
rules:
  - { name: open, domain: open, per: [id], limits: [10/h], on_store_error: allow }
  - { name: shut, domain: shut, per: [id], limits: [10/h], on_store_error: deny }
  - { name: own, domain: own, per: [id], limits: [10/h], algorithm: sliding_log }
  - { name: none, domain: own, per: [id], when: { id: banned }, limits: denied }
";

const TIMEOUT: Duration = Duration::from_millis(200);

/// What a busy machine adds to a time-out.
const BUSY: Duration = Duration::from_secs(2);

/// How long a breaker waits at most, and then the first request that asks.
const RECOVERY: Duration = Duration::from_secs(12);

fn start(redis: &Redis) -> (Server, Client) {
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "200ms", "--expected-instances", "4"];
    // A denial that is known needs no Redis.
    let flags = [&flags[..], &["--deny-cache-ttl", "0s", "--log-denials", "0"]].concat();
    let server = Server::start_with(POLICY, &flags);
    let client = Client::of(&server);
    (server, client)
}

/// Status and answer, which must have come in time.
fn ask(client: &Client, domain: &str, id: &str) -> (u16, Value) {
    let clock = SystemClock::new();
    let began = clock.now();
    let answer = client.check(&json!({"domain": domain, "attributes": {"id": id}}));
    let took = Duration::from_micros(clock.now().as_micros() - began.as_micros());
    assert!(took < TIMEOUT + BUSY, "{domain}: {took:?}");
    (answer.status, answer.json())
}

/// As every rule wants it without a store; each id once.
#[track_caller]
fn assert_degraded(client: &Client, id: &str) {
    for _ in 0..20 {
        let (status, answer) = ask(client, "open", id);
        assert_eq!((status, &answer["degraded"]), (200, &json!(true)), "{answer}");
    }
    for _ in 0..3 {
        let (status, answer) = ask(client, "shut", id);
        assert_eq!((status, &answer["degraded"]), (503, &json!(true)), "{answer}");
        assert_eq!(answer["allowed"], false);
    }
    // A quarter of 10.
    for (expected, remaining) in [(200, 1), (200, 0), (429, 0)] {
        let (status, answer) = ask(client, "own", id);
        assert_eq!((status, &answer["degraded"]), (expected, &json!(true)), "{answer}");
        assert_eq!((&answer["limit"]["max"], &answer["remaining"]), (&json!(2), &json!(remaining)));
    }
    assert_eq!(ask(client, "own", "banned").0, 429);
}

/// Asks until Redis is heard again.
fn await_recovery(client: &Client) {
    let clock = SystemClock::new();
    let end = clock.now().after(RECOVERY);
    while ask(client, "open", "anybody").1["degraded"] == true {
        assert!(clock.now() < end, "not within {RECOVERY:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As the rules say, on counts that are new.
#[track_caller]
fn assert_counted_in_redis(client: &Client, id: &str) {
    for domain in ["open", "shut", "own"] {
        for left in (0..10).rev() {
            let (status, answer) = ask(client, domain, id);
            assert_eq!((status, &answer["remaining"]), (200, &json!(left)), "{domain}: {answer}");
            assert_eq!(answer["degraded"], false);
        }
        assert_eq!(ask(client, domain, id).0, 429);
    }
}

#[test]
fn redis_crash_degrades_and_recovers() {
    let mut redis = Redis::start();
    let (server, client) = start(&redis);
    assert_counted_in_redis(&client, "ann");
    redis.kill();
    assert_degraded(&client, "ann");
    server.wait_for_log("not asked any more");
    redis.restart();
    await_recovery(&client);
    // One line for the outage, and one for its end.
    let told = server.next_log(Duration::from_secs(10)).unwrap();
    assert!(told.contains("asked again"), "{told}");
    // Redis has lost its counts with its life, and what was counted meanwhile is dropped.
    assert_counted_in_redis(&client, "ann");
    assert_eq!(server.next_log(Duration::from_millis(100)), None);
    redis.kill();
    // Local counts outlast a short recovery: another outage so soon would find those of ann.
    assert_degraded(&client, "bob");
}

#[test]
fn redis_hang_degrades_and_recovers() {
    let redis = Redis::start();
    let (server, client) = start(&redis);
    assert_counted_in_redis(&client, "ann");
    redis.pause();
    assert_degraded(&client, "ann");
    server.wait_for_log("not asked any more");
    redis.resume();
    await_recovery(&client);
    server.wait_for_log("asked again");
    // What Redis had counted still counts.
    assert_eq!(ask(&client, "own", "ann").0, 429);
    assert_counted_in_redis(&client, "bob");
}

#[test]
fn server_started_before_redis_recovers() {
    let mut redis = Redis::start();
    redis.kill();
    let (_server, client) = start(&redis);
    assert_degraded(&client, "ann");
    redis.restart();
    await_recovery(&client);
    assert_counted_in_redis(&client, "ann");
}
