//! Tests of permits: the field `permit` of decisions, `/v1/release` and `/v1/renew`.

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use ureq::http::Request;

use crate::common::Server;
use crate::http::bad_input::assert_problem;
use crate::http::client::{Client, HttpResponse};
use crate::http::waiting::metric;

const POLICY: &str = "
rules:
  - name: streams
    per: [user]
    limits: [100/h, { name: in-flight, concurrent: 2, permit_ttl: 2s }]
  - { name: other, when: { path: /free }, limits: [100/h] }
";

fn post(client: &Client, path: &str, body: &Value) -> HttpResponse {
    client.post(path, body.to_string())
}

fn check(client: &Client, user: &str) -> HttpResponse {
    post(client, "/v1/check", &json!({"attributes": {"user": user}}))
}

/// Returns the remaining units of a user: requests, and permits.
fn remaining(client: &Client, user: &str) -> Vec<u64> {
    let peek = post(client, "/v1/peek", &json!({"attributes": {"user": user}})).json();
    assert!(peek.get("permit").is_none());
    let limits = peek["limits"].as_array().unwrap().clone();
    limits.iter().map(|limit| limit["remaining"].as_u64().unwrap()).collect()
}

#[test]
fn released_permit_is_free_for_next_request() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let [first, second] = [check(&client, "ann"), check(&client, "ann")].map(|response| {
        assert_eq!((response.status, &response.json()["permit_ttl_ms"]), (200, &json!(2_000)));
        response.json()["permit"].clone()
    });
    assert_ne!(first, second);
    let denied = check(&client, "ann");
    let body = denied.json();
    assert_eq!((denied.status, &body["reason"]), (429, &json!("concurrency_exceeded")));
    assert_eq!(
        (&body["retry_after_ms"], &body["limit"]["name"]),
        (&Value::Null, &json!("in-flight"))
    );
    assert_eq!((body.get("permit"), denied.header("retry-after")), (None, None));
    assert_eq!(remaining(&client, "ann"), [98, 0], "the denied request is not counted");
    assert_eq!(remaining(&client, "bob"), [100, 2]);

    for released in [true, false] {
        let response = post(&client, "/v1/release", &json!({"permit": first}));
        assert_eq!((response.status, response.json()), (200, json!({"released": released})));
    }
    assert_eq!(remaining(&client, "ann"), [98, 1]);
    assert_eq!(check(&client, "ann").status, 200);
    assert_eq!(check(&client, "ann").status, 429);
}

#[test]
fn renewed_permit_stays_live_and_expired_one_is_gone() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let [renewed, expired] = [(); 2].map(|()| check(&client, "ann").json()["permit"].clone());
    let renew = |permit: &Value| post(&client, "/v1/renew", &json!({"permit": permit}));
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(800));
        let response = renew(&renewed);
        assert_eq!(
            (response.status, response.json()),
            (200, json!({"renewed": true, "permit_ttl_ms": 2_000}))
        );
    }
    assert_eq!(remaining(&client, "ann")[1], 1, "the other one has expired");
    let gone = renew(&expired);
    assert_problem(&gone, 410, "Gone", "has been released or has expired");
    let response = post(&client, "/v1/release", &json!({"permit": expired}));
    assert_eq!(response.json(), json!({"released": false}));
}

#[test]
fn request_without_concurrent_limit_has_no_permit() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let response = post(&client, "/v1/check", &json!({"attributes": {"path": "/free"}}));
    assert_eq!((response.status, response.json().get("permit")), (200, None));
}

#[test]
fn repeated_check_returns_same_permit() {
    let server = Server::start_with_admin(&POLICY.replace("2s", "1h"), &[]);
    let client = Client::new(&server);
    let body = json!({"attributes": {"user": "ann"}, "idempotency_key": "a"});
    let permits = [(); 2].map(|()| post(&client, "/v1/check", &body).json()["permit"].clone());
    assert_eq!(remaining(&client, "ann"), [99, 1]);
    for (permit, released) in permits.into_iter().zip([true, false]) {
        let response = post(&client, "/v1/release", &json!({"permit": permit}));
        assert_eq!(response.json(), json!({"released": released}));
    }
    assert_eq!(remaining(&client, "ann"), [99, 2]);
    assert_eq!(post(&client, "/v1/check", &body).status, 200, "a repetition after the release");
    let permits =
        |result| metric(&server, &format!("slidegate_permits_total{{result=\"{result}\"}}"));
    assert_eq!(["granted", "released", "not_live"].map(permits), [1.0, 1.0, 1.0]);
    assert_eq!(metric(&server, "slidegate_permits_in_use"), 0.0);
}

/// A cancellation releases the permit, unless it has been released before.
#[test]
fn permit_of_cancelled_reservation_is_counted_once() {
    let server = Server::start_with_admin(&POLICY.replace("2s", "1h"), &[]);
    let client = Client::new(&server);
    for releases_first in [false, true] {
        let body = json!({"attributes": {"user": "ann"}, "cost": 50});
        let reserved = post(&client, "/v1/reserve", &body).json();
        if releases_first {
            post(&client, "/v1/release", &json!({"permit": reserved["permit"]}));
        }
        let settle = json!({"reservation": reserved["reservation"], "cost": 0});
        assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
        assert_eq!(remaining(&client, "ann"), [100, 2]);
    }
    assert_eq!(metric(&server, "slidegate_permits_total{result=\"released\"}"), 2.0);
    assert_eq!(metric(&server, "slidegate_permits_in_use"), 0.0);
}

#[test]
fn reservation_and_permit_end_separately() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let body = json!({"attributes": {"user": "ann"}, "cost": 50});
    let reserved = post(&client, "/v1/reserve", &body).json();
    assert_eq!(remaining(&client, "ann"), [50, 1]);
    let settle = json!({"reservation": reserved["reservation"], "cost": 30});
    assert_eq!(post(&client, "/v1/settle", &settle).status, 200);
    assert_eq!(remaining(&client, "ann"), [70, 1], "the request is still in flight");
    let release = json!({"permit": reserved["permit"]});
    assert_eq!(post(&client, "/v1/release", &release).json(), json!({"released": true}));
    assert_eq!(remaining(&client, "ann"), [70, 2]);
}

/// A response to `/v1/auth` contains no permit, so its request is not counted while it is in flight. It is denied while no
/// permit is free.
#[test]
fn forward_auth_keeps_no_permit() {
    let policy = POLICY.replace("[user]", "[header.user]");
    let server = Server::start(&policy);
    let client = Client::new(&server);
    let auth = || {
        let request = Request::get("/v1/auth").header("user", "ann");
        client.send(request.body(Vec::new()).unwrap()).status
    };
    let check = || post(&client, "/v1/check", &json!({"attributes": {"header.user": "ann"}}));
    assert_eq!([auth(), auth(), auth()], [200; 3]);
    let permits = [check(), check()].map(|response| response.json()["permit"].clone());
    assert_eq!(auth(), 429);
    let release = json!({"permit": permits[0]});
    assert_eq!(post(&client, "/v1/release", &release).status, 200);
    assert_eq!(auth(), 200);
}

#[test]
fn permit_of_json_message_is_released_in_both_ways() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let message = |descriptor: Value| {
        let message = json!({"domain": "default", "descriptors": [descriptor]});
        post(&client, "/json", &message)
    };
    let user = || message(json!({"entries": [{"key": "user", "value": "ann"}]}));
    let [first, second] =
        [user(), user()].map(|response| response.json()["dynamicMetadata"]["permit"].clone());
    assert_eq!(user().status, 429);
    assert_eq!(post(&client, "/v1/release", &json!({"permit": first})).status, 200);
    assert_eq!(remaining(&client, "ann"), [98, 1]);
    let entries = json!([{"key": "permit", "value": second}]);
    let released = message(json!({"entries": entries, "isNegativeHits": true}));
    assert_eq!(
        (released.status, released.json()),
        (200, json!({"overallCode": "OK", "statuses": [{"code": "OK"}]}))
    );
    assert_eq!(remaining(&client, "ann"), [98, 2]);
}

#[test]
fn invalid_permit_is_rejected() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let reserve = json!({"attributes": {"user": "ann"}});
    let reservation = post(&client, "/v1/reserve", &reserve).json()["reservation"].clone();
    for path in ["/v1/release", "/v1/renew"] {
        for (body, detail) in [
            (json!({}), "missing field `permit`; send the `permit` in the response of /v1/check"),
            (
                json!({"permit": 7}),
                "invalid type: integer `7`, expected a string; send the `permit` in the response of /v1/check",
            ),
            (json!({"permit": "x"}), "`permit` is not a token of this service"),
            (json!({"permit": reservation}), "`permit` is not a token of this service"),
            (json!({"token": "x"}), "unknown field `token`, expected `permit`; send the"),
        ] {
            assert_problem(&post(&client, path, &body), 400, "Bad Request", detail);
        }
        assert_eq!(client.call("GET", path).status, 405);
    }
    let other = Server::start(POLICY);
    let permit = check(&client, "ann").json()["permit"].clone();
    let response = post(&Client::new(&other), "/v1/release", &json!({"permit": permit}));
    assert_eq!(response.status, 400, "each instance draws its own key");
}
