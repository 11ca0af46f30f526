//! Tests that several servers with the same Redis share their counters.

use std::sync::Barrier;
use std::thread;

use serde_json::json;

use crate::common::Server;
use crate::http::client::Client;
use crate::redis_server::Redis;

/// Flags that set a long Redis timeout, so that no call times out even on a busy machine.
const LONG_REDIS_TIMEOUT_FLAGS: [&str; 2] = ["--redis-timeout", "30s"];

const CONNECTION_COUNT: usize = 40;

fn start_server(policy: &str, address: &str, flags: &[&str]) -> Server {
    Server::start_with(
        policy,
        &[&["--store", address], &LONG_REDIS_TIMEOUT_FLAGS[..], flags].concat(),
    )
}

/// Sends `requests` requests with the same key to all servers concurrently, and returns the number of allowed requests.
fn send_requests_and_count_allowed(servers: &[Server], requests: usize) -> usize {
    let addresses = &servers.iter().map(Server::address).collect::<Vec<_>>();
    let start = &Barrier::new(CONNECTION_COUNT);
    let send_requests = move |nth: usize| {
        let client = Client::with_address(addresses[nth % addresses.len()]);
        let request = json!({"attributes": {"tenant": "acme"}});
        start.wait();
        let responses = (0..requests / CONNECTION_COUNT).map(|_| client.check(&request));
        let allowed = responses.filter(|response| {
            assert_eq!(response.json()["degraded"], false, "{}", response.body);
            response.status == 200
        });
        allowed.count()
    };
    thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CONNECTION_COUNT).map(|nth| scope.spawn(move || send_requests(nth))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

#[test]
fn two_servers_allow_exactly_1000_of_20000_requests() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [1000/min], algorithm: sliding_log }]";
    let servers = [(); 2].map(|()| start_server(policy, &redis.address(), &[]));
    assert_eq!(
        send_requests_and_count_allowed(&servers, 20_000),
        1_000,
        "allowed; more only if it took longer than a minute"
    );
    redis.assert_all_expire();
}

#[test]
fn servers_using_their_own_clocks_allow_exactly_max() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [200/h], algorithm: sliding_log }]";
    let servers =
        [(); 2].map(|()| start_server(policy, &redis.address(), &["--redis-clock", "client"]));
    assert_eq!(send_requests_and_count_allowed(&servers, 2_000), 200);
    assert_eq!(redis.calls_of("time"), 0);
    redis.assert_all_expire();
}

#[test]
fn databases_and_prefixes_isolate_counters() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [3/h] }]";
    let with_prefix = start_server(policy, &redis.address(), &["--redis-prefix", "eu:"]);
    let default = start_server(policy, &redis.address(), &[]);
    let other_database = start_server(policy, &(redis.address() + "1"), &[]);
    let request = json!({"attributes": {"tenant": "acme"}});
    for left in [2, 1, 0] {
        for server in [&with_prefix, &default, &other_database] {
            assert_eq!(Client::new(server).check(&request).json()["remaining"], left);
        }
    }
    let mut keys = redis.keys();
    keys.sort();
    assert_eq!(keys, ["eu:default:a:{tenant=acme}:log", "slidegate:default:a:{tenant=acme}:log"]);
}

#[test]
fn counters_survive_server_restart() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [3/h] }]";
    let request = json!({"attributes": {"tenant": "acme"}});
    for left in [2, 1, 0] {
        let server = start_server(policy, &redis.address(), &[]);
        assert_eq!(Client::new(&server).check(&request).json()["remaining"], left);
    }
}

#[test]
fn unix_socket_store_counts_requests() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, limits: [3/h] }]";
    let server = start_server(policy, &redis.unix_socket_address(), &[]);
    let response = Client::new(&server).check(&json!({"attributes": {}})).json();
    assert_eq!((&response["remaining"], &response["degraded"]), (&json!(2), &json!(false)));
}
