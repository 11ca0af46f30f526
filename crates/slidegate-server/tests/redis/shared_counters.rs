//! Servers of one Redis share its counts.

use std::sync::Barrier;
use std::thread;

use serde_json::json;

use crate::client::Client;
use crate::common::{Server, TempFile};
use crate::server::Redis;

/// A busy machine may take its time: nothing here may depend on the time-out.
const PATIENT: [&str; 2] = ["--redis-timeout", "30s"];

const CONNECTIONS: usize = 40;

fn start(policy: &str, address: &str, flags: &[&str]) -> Server {
    Server::start_with(policy, &[&["--store", address], &PATIENT[..], flags].concat())
}

/// How many of so many requests pass that are sent to servers at the same time.
fn allowed_of_a_storm(servers: &[Server], requests: usize) -> usize {
    let addresses = &servers.iter().map(Server::address).collect::<Vec<_>>();
    let start = &Barrier::new(CONNECTIONS);
    let storm = move |nth: usize| {
        let client = Client::at(addresses[nth % addresses.len()]);
        let ask = json!({"attributes": {"tenant": "acme"}});
        start.wait();
        let answers = (0..requests / CONNECTIONS).map(|_| client.check(&ask));
        let passed = answers.filter(|answer| {
            assert_eq!(answer.json()["degraded"], false, "{}", answer.body);
            answer.status == 200
        });
        passed.count()
    };
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CONNECTIONS).map(|nth| scope.spawn(move || storm(nth))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

#[test]
fn two_servers_allow_exactly_1000_of_20000() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [1000/min], algorithm: sliding_log }]";
    let servers = [(); 2].map(|()| start(policy, &redis.address(), &[]));
    assert_eq!(allowed_of_a_storm(&servers, 20_000), 1_000, "or it took more than a minute");
    redis.assert_all_expire();
}

#[test]
fn client_clock_servers_allow_exactly_max() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [200/h], algorithm: sliding_log }]";
    let servers = [(); 2].map(|()| start(policy, &redis.address(), &["--redis-clock", "client"]));
    assert_eq!(allowed_of_a_storm(&servers, 2_000), 200);
    assert_eq!(redis.calls_of("time"), 0);
    redis.assert_all_expire();
}

#[test]
fn databases_and_prefixes_isolate_counters() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [3/h] }]";
    let one = start(policy, &redis.address(), &["--redis-prefix", "eu:"]);
    let other = start(policy, &redis.address(), &[]);
    let elsewhere = start(policy, &(redis.address() + "1"), &[]);
    let ask = json!({"attributes": {"tenant": "acme"}});
    for left in [2, 1, 0] {
        for server in [&one, &other, &elsewhere] {
            assert_eq!(Client::of(server).check(&ask).json()["remaining"], left);
        }
    }
    let mut keys = redis.keys();
    keys.sort();
    assert_eq!(keys, ["eu:default:a:{tenant=acme}", "slidegate:default:a:{tenant=acme}"]);
}

#[test]
fn counters_survive_server_restart() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [3/h] }]";
    let ask = json!({"attributes": {"tenant": "acme"}});
    for left in [2, 1, 0] {
        let server = start(policy, &redis.address(), &[]);
        assert_eq!(Client::of(&server).check(&ask).json()["remaining"], left);
    }
}

#[test]
fn unix_socket_works() {
    let socket = TempFile::new(".sock", "");
    let path = socket.path().to_str().unwrap();
    std::fs::remove_file(path).unwrap();
    let _redis = Redis::with(&["--unixsocket", path]);
    let policy = "rules: [{ name: a, limits: [3/h] }]";
    let server = start(policy, &format!("unix://{path}"), &[]);
    let answer = Client::of(&server).check(&json!({"attributes": {}})).json();
    assert_eq!((&answer["remaining"], &answer["degraded"]), (&json!(2), &json!(false)));
}
