//! Tests of the responses under sampled rules. A sampled rule counts only a random share of the requests in Redis, and
//! charges a multiple of the cost for each counted request.

use serde_json::{Value, json};
use slidegate::headers::Style;

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};
use crate::redis_server::Redis;

/// Number of requests. The number is so large that the server almost certainly counts some of the requests in Redis,
/// but not all.
const REQUEST_COUNT: usize = 300;

fn send_check(client: &Client) -> (HttpResponse, Value) {
    let response = client.check(&json!({"attributes": {"tenant": "acme"}}));
    let json = response.json();
    assert_eq!(json["degraded"], false, "{json}");
    (response, json)
}

fn start_server(redis: &Redis, policy: &str, flags: &[&str]) -> Server {
    let address = redis.address();
    let flags = [&["--store", &address, "--redis-timeout", "30s"], flags].concat();
    Server::start_with(policy, &flags)
}

#[test]
fn response_to_uncounted_request_has_no_limit_data() {
    let redis = Redis::start();
    let policy = "rules: [{ name: a, per: [tenant], limits: [100000/h],
        redis: { sample: 10% } }]";
    for style in Style::ALL {
        let [limit_headers @ .., _retry_after] = style.header_names() else { unreachable!() };
        let server = start_server(&redis, policy, &["--headers", style.name()]);
        let client = Client::new(&server);
        let mut sampled = 0;
        for _ in 0..REQUEST_COUNT {
            let (response, json) = send_check(&client);
            let has_header = |name: &&str| response.headers.contains_key(*name);
            match json["limits"].as_array().unwrap().len() {
                0 => {
                    let expected = json!({
                        "allowed": true, "reason": null, "rule": null, "limit": null, "remaining": null,
                        "reset_after_ms": null, "retry_after_ms": null, "degraded": false,
                        "limits": [],
                    });
                    assert_eq!((response.status, json), (200, expected));
                    assert!(!limit_headers.iter().any(has_header), "{:?}", response.headers);
                }
                _ => {
                    sampled += 1;
                    assert_eq!(
                        (&json["rule"], &json["limit"]["max"]),
                        (&json!("a"), &json!(100_000))
                    );
                    assert_eq!(json["remaining"], json["limits"][0]["remaining"]);
                    assert!(json["remaining"].as_u64().unwrap() % 10 == 0, "{json}");
                    assert!(limit_headers.iter().all(has_header), "{:?}", response.headers);
                }
            }
        }
        assert!((1..REQUEST_COUNT).contains(&sampled), "{sampled}");
    }
}

#[test]
fn sampled_rule_appears_only_in_responses_to_counted_requests() {
    let redis = Redis::start();
    let policy = "rules:
      - { name: a, per: [tenant], limits: [100/h], redis: { sample: 10% } }
      - { name: b, per: [tenant], limits: [100000/h] }";
    let server = start_server(&redis, policy, &[]);
    let client = Client::new(&server);
    let (mut both_rules, mut one_rule) = (0, 0);
    for _ in 0..2_000 {
        let (response, json) = send_check(&client);
        let policies = response.header("ratelimit-policy").unwrap();
        let names: Vec<&str> = json["limits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|limit| limit["rule"].as_str().unwrap())
            .collect();
        if response.status == 429 {
            assert_eq!(
                (&json["rule"], &json["limits"][0]["allowed"]),
                (&json!("a"), &json!(false))
            );
            assert!(json["retry_after_ms"].as_u64().unwrap() > 0);
            assert!(response.header("retry-after").is_some());
            // A cached denial is returned without a call to Redis, so it lists only the denying rule.
            let again = send_check(&client).1;
            assert_eq!(again["rule"], "a");
            break;
        }
        match names[..] {
            ["b"] => one_rule += 1,
            ["a", "b"] => both_rules += 1,
            _ => panic!("{json}"),
        }
        assert_eq!(policies.contains("\"a\""), names.contains(&"a"), "{policies}");
        assert!(policies.contains("\"b\""), "{policies}");
        // A rule that was not sampled is not the binding rule.
        assert_eq!(json["rule"], names[0], "{json}");
    }
    assert!(both_rules > 0 && one_rule > 0, "{both_rules} {one_rule}");
    // Each sampled request is charged 10 units, so 10 of them reach the limit of 100.
    assert_eq!(both_rules, 10);
}
