//! Tests that tokens of permits and reservations have a bounded size, so that no value makes a call fail.

use serde_json::{Value, json};

use crate::common::Server;
use crate::grpc::client::{self, Code, new_descriptor, new_release, new_request};
use crate::http::client::{Client, HttpResponse};
use crate::redis_server::Redis;

const RULES: usize = 12;

const ATTRIBUTES: usize = 16;

/// Maximum size of a token with two limits of each rule, in bytes.
const MAX_TOKEN_BYTES: usize = 2 * RULES * 2_500;

fn attribute_name(index: usize) -> String {
    format!("attribute-{index:02}")
}

/// Starts a server with many rules that bound requests in flight, and count by the same attributes.
fn start_server(redis: &Redis) -> Server {
    let per = (0..ATTRIBUTES).map(attribute_name).collect::<Vec<_>>().join(", ");
    let limits = "[1000/h, { name: in-flight, concurrent: 1, permit_ttl: 60s }]";
    let rules = (0..RULES).map(|index| {
        format!("  - {{ name: rule-{index}, domain: api, per: [{per}], limits: {limits} }}\n")
    });
    let policy = format!("rules:\n{}", rules.collect::<String>());
    let address = redis.address();
    let flags = ["--grpc", "127.0.0.1:0", "--store", &address, "--redis-timeout", "30s"];
    Server::start_with(&policy, &flags)
}

fn post(client: &Client, path: &str, body: &Value) -> HttpResponse {
    client.post(path, body.to_string())
}

/// Returns a request whose first `count` attributes have the value `value`. The others are empty.
fn request(value: &str, count: usize) -> Value {
    let value_at = |index: usize| if index < count { value } else { "" };
    let attributes: serde_json::Map<String, Value> =
        (0..ATTRIBUTES).map(|index| (attribute_name(index), value_at(index).into())).collect();
    json!({"domain": "api", "attributes": attributes})
}

#[test]
fn long_values_keep_tokens_short() {
    let redis = Redis::start();
    let server = start_server(&redis);
    let client = Client::new(&server);
    for (value, count) in [
        ("a".repeat(1_000), ATTRIBUTES),
        // Keys of just less than 4,096 and 1,280 bytes.
        ("a".repeat(950), 4),
        ("\"".repeat(316), 4),
        ("\u{1}\n".repeat(158), 4),
        ("é".repeat(158), 4),
        ("a".repeat(260), 4),
    ] {
        let request = request(&value, count);
        let first = &value[..value.floor_char_boundary(4)];
        let checked = post(&client, "/v1/check", &request);
        assert_eq!(checked.status, 200, "{first}: {}", checked.body);
        let permit = checked.json()["permit"].as_str().expect("a permit").to_owned();
        assert!(permit.len() <= MAX_TOKEN_BYTES, "{first}: {}", permit.len());
        assert_eq!(post(&client, "/v1/check", &request).status, 429, "{first}");
        let renewed = post(&client, "/v1/renew", &json!({"permit": permit}));
        assert_eq!(renewed.status, 200, "{first}: {}", renewed.body);
        let released = post(&client, "/v1/release", &json!({"permit": permit}));
        assert_eq!(released.json(), json!({"released": true}), "{first}");

        let reserved = post(&client, "/v1/reserve", &request);
        assert_eq!(reserved.status, 200, "{first}: {}", reserved.body);
        let token = reserved.json()["reservation"].as_str().expect("a token").to_owned();
        assert!(token.len() <= MAX_TOKEN_BYTES, "{first}: {}", token.len());
        let settled = post(&client, "/v1/settle", &json!({"reservation": token, "cost": 8}));
        assert_eq!(settled.status, 200, "{first}: {}", settled.body);
        let peek = post(&client, "/v1/peek", &request).json();
        assert_eq!(peek["limits"][0]["remaining"], 1000 - 1 - 8, "{first}: {peek}");
    }
}

#[tokio::test]
async fn values_that_are_not_utf8_keep_permits_short() {
    let redis = Redis::start();
    let server = start_server(&redis);
    let client = client::Client::connect(&server).await;
    let names: Vec<String> = (0..ATTRIBUTES).map(attribute_name).collect();
    let entries: Vec<(&str, &str)> = names.iter().map(|name| (&**name, "")).collect();
    let mut descriptor = new_descriptor(&entries);
    for entry in &mut descriptor.entries {
        entry.value = vec![0xff; 1_000].into();
    }
    for _ in 0..2 {
        let allowed = client.check(new_request([descriptor.clone()])).await;
        assert_eq!(allowed.overall_code(), Code::Ok);
        let permit = client::permit_of_response(&allowed).expect("a permit").to_owned();
        assert!(permit.len() <= MAX_TOKEN_BYTES, "{}", permit.len());
        let denied = client.check(new_request([descriptor.clone()])).await;
        assert_eq!(denied.overall_code(), Code::OverLimit);
        client.check(new_request([new_release(&permit)])).await;
    }
}
