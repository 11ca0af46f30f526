//! What a client is told where only some requests ask Redis.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::common::Server;
use crate::server::Redis;

/// So many requests that some ask and some do not, whatever is drawn.
const MANY: usize = 300;

fn ask(client: &Client) -> (Answer, Value) {
    let answer = client.check(&json!({"attributes": {"tenant": "acme"}}));
    let json = answer.json();
    assert_eq!(json["degraded"], false, "{json}");
    (answer, json)
}

fn start(redis: &Redis, policy: &str, flags: &[&str]) -> Server {
    let address = redis.address();
    let flags = [&["--store", &address, "--redis-timeout", "30s"], flags].concat();
    Server::start_with(policy, &flags)
}

#[test]
fn unsampled_response_has_no_limit_data() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [100000/h],
        redis: { sample: 10% } }]";
    for style in ["ietf", "draft03", "x"] {
        let server = start(&redis, policy, &["--headers", style]);
        let client = Client::of(&server);
        let mut asked = 0;
        for _ in 0..MANY {
            let (answer, json) = ask(&client);
            let is_told = answer.headers.keys().any(|name| name.as_str().contains("ratelimit"));
            match json["limits"].as_array().unwrap().len() {
                0 => {
                    let expected = json!({
                        "allowed": true, "reason": null, "rule": null, "limit": null, "remaining": null,
                        "reset_after_ms": null, "retry_after_ms": null, "degraded": false,
                        "limits": [],
                    });
                    assert_eq!((answer.status, json), (200, expected));
                    assert!(!is_told, "{:?}", answer.headers);
                }
                _ => {
                    asked += 1;
                    assert_eq!(
                        (&json["rule"], &json["limit"]["max"]),
                        (&json!("a"), &json!(100_000))
                    );
                    assert_eq!(json["remaining"], json["limits"][0]["remaining"]);
                    assert!(json["remaining"].as_u64().unwrap() % 10 == 0, "{json}");
                    assert!(is_told);
                }
            }
        }
        assert!((1..MANY).contains(&asked), "{asked}");
    }
}

#[test]
fn sampled_rule_appears_only_in_sampled_responses() {
    let redis = Redis::start();
    let policy = "rules:
      - { name: a, per: [tenant], limits: [100/h], redis: { sample: 10% } }
      - { name: b, per: [tenant], limits: [100000/h] }";
    let server = start(&redis, policy, &[]);
    let client = Client::of(&server);
    let (mut both, mut one) = (0, 0);
    for _ in 0..2_000 {
        let (answer, json) = ask(&client);
        let policies = answer.header("ratelimit-policy").unwrap();
        let names: Vec<&str> = json["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|one| one["rule"].as_str().unwrap())
            .collect();
        if answer.status == 429 {
            assert_eq!(
                (&json["rule"], &json["limits"][0]["allowed"]),
                (&json!("a"), &json!(false))
            );
            assert!(json["retry_after_ms"].as_u64().unwrap() > 0);
            assert!(answer.header("retry-after").is_some());
            // Known denials are told without asking for the others.
            let again = ask(&client).1;
            assert_eq!(again["rule"], "a");
            break;
        }
        match names[..] {
            ["b"] => one += 1,
            ["a", "b"] => both += 1,
            _ => panic!("{json}"),
        }
        assert_eq!(policies.contains("\"a\""), names.contains(&"a"), "{policies}");
        assert!(policies.contains("\"b\""), "{policies}");
        // What is not known does not bind.
        assert_eq!(json["rule"], names[0], "{json}");
    }
    assert!(both > 0 && one > 0, "{both} {one}");
    // Ten in a hundred are charged ten times what they cost, and then no more.
    assert_eq!(both, 10);
}
