//! Tests that servers with the same Redis never admit more requests in flight than the limit, and release each other's
//! permits.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};
use crate::redis_server::Redis;

const POLICY: &str = "
rules:
  - name: streams
    per: [user]
    limits: [100000/h, { name: in-flight, concurrent: 3, permit_ttl: 60s }]
";

const TOKEN_KEY: [&str; 2] = ["--token-key", "a key of all instances"];

fn start_server(redis: &Redis, flags: &[&str]) -> Server {
    let address = redis.address();
    let store = ["--store", &address, "--redis-timeout", "30s"];
    Server::start_with_admin(POLICY, &[&store, flags].concat())
}

fn post(client: &Client, path: &str, body: &Value) -> HttpResponse {
    client.post(path, body.to_string())
}

fn check(client: &Client) -> HttpResponse {
    post(client, "/v1/check", &json!({"attributes": {"user": "ann"}}))
}

#[test]
fn servers_release_each_others_permits() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| start_server(&redis, &TOKEN_KEY));
    let clients = [Client::new(&servers[0]), Client::new(&servers[1])];
    let permits = [0, 1, 0].map(|nth| check(&clients[nth]).json()["permit"].clone());
    for client in &clients {
        let denied = check(client);
        assert_eq!(denied.json()["reason"], "concurrency_exceeded");
    }
    // A release at another server is visible at once: the denial was not cached.
    let renewed = post(&clients[1], "/v1/renew", &json!({"permit": permits[0]}));
    assert_eq!(renewed.status, 200, "{}", renewed.body);
    let released = post(&clients[1], "/v1/release", &json!({"permit": permits[0]}));
    assert_eq!((released.status, released.json()), (200, json!({"released": true})));
    let released = post(&clients[0], "/v1/release", &json!({"permit": permits[0]}));
    assert_eq!((released.status, released.json()), (200, json!({"released": false})));
    assert_eq!(check(&clients[0]).status, 200);
    assert_eq!(check(&clients[1]).status, 429);
    redis.assert_all_expire();
}

#[test]
fn servers_never_admit_more_in_flight_than_max() {
    let redis = Redis::start();
    let servers = [(); 2].map(|()| start_server(&redis, &TOKEN_KEY));
    let (in_flight, admitted) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for nth in 0..6 {
            let [own, other] = [nth % 2, 1 - nth % 2].map(|nth| servers[nth].address());
            let (in_flight, admitted) = (&in_flight, &admitted);
            scope.spawn(move || {
                let (own, other) = (Client::with_address(own), Client::with_address(other));
                for _ in 0..60 {
                    let checked = check(&own);
                    if checked.status != 200 {
                        continue;
                    }
                    assert_eq!(checked.json()["degraded"], false);
                    assert!(in_flight.fetch_add(1, Ordering::SeqCst) < 3);
                    admitted.fetch_add(1, Ordering::SeqCst);
                    in_flight.fetch_sub(1, Ordering::SeqCst);
                    let body = json!({"permit": checked.json()["permit"]});
                    assert_eq!(
                        post(&other, "/v1/release", &body).json(),
                        json!({"released": true})
                    );
                }
            });
        }
    });
    assert!(admitted.load(Ordering::SeqCst) > 60);
    let peek = post(&Client::new(&servers[0]), "/v1/peek", &json!({"attributes": {"user": "ann"}}));
    assert_eq!(peek.json()["limits"][1]["remaining"], 3);
}

/// A server that is killed releases nothing: its permits expire.
#[test]
fn permits_of_killed_server_expire() {
    let redis = Redis::start();
    let address = redis.address();
    let policy = POLICY.replace("permit_ttl: 60s", "permit_ttl: 1s");
    let flags = ["--store", &address, "--redis-timeout", "30s"];
    let server = Server::start_with_admin(&policy, &flags);
    let client = Client::new(&server);
    for _ in 0..3 {
        assert_eq!(check(&client).status, 200);
    }
    drop(server);
    let server = Server::start_with_admin(&policy, &flags);
    let client = Client::new(&server);
    thread::sleep(std::time::Duration::from_millis(1_100));
    for _ in 0..3 {
        assert_eq!(check(&client).status, 200);
    }
    assert_eq!(check(&client).status, 429);
}
