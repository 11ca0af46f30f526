//! Tests of `/v1/top`, which lists the keys with the most denied requests, and the keys with the most requests that
//! nearly reached a limit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::admin::samples::MetricSamples;
use crate::common::{Server, slidegate_command};
use crate::http::client::Client;

const POLICY: &str = "
rules:
  - { name: per-tenant, domain: api, per: [tenant, ip], limits: [3/h, 3/d], algorithm: sliding_log }
  - { name: watched, domain: api, per: [tenant], limits: [2/h], algorithm: sliding_log, mode: observe }
  - { name: roomy, domain: api, limits: [1000/h] }
  - { name: quiet, limits: [1/h] }
";

/// Sends `times` check requests with this tenant.
fn send_check_requests(server: &Server, tenant: &str, times: usize) {
    let client = Client::new(server);
    let attributes = json!({ "tenant": tenant, "ip": "2001:db8::7" });
    for _ in 0..times {
        client.check(&json!({ "domain": "api", "attributes": attributes }));
    }
}

/// Requests `/v1/top` with this query string, and returns the response body.
fn get_top_keys(server: &Server, query: &str) -> Value {
    let response =
        Client::with_address(server.admin_address()).call("GET", &format!("/v1/top{query}"));
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Returns the entry that `/v1/top` must list for a tenant with `count` requests.
fn expected_top_response_entry(tenant: &str, count: u64) -> Value {
    json!({ "key": { "tenant": tenant, "ip": "2001:db8::/64" }, "count": count, "max_overcount": 0 })
}

#[test]
fn top_response_lists_denied_nearly_denied_and_observed_keys() {
    let server = Server::start_with_admin(POLICY, &[]);
    send_check_requests(&server, "acme", 10);
    send_check_requests(&server, "bob", 5);
    send_check_requests(&server, "carol", 3);
    send_check_requests(&server, "dave", 1);
    let mut body = get_top_keys(&server, "");
    assert!(body["since_seconds"].take().is_u64());
    let watched = |tenant: &str, count: u64| json!({ "key": { "tenant": tenant }, "count": count, "max_overcount": 0 });
    let expected = json!([
        {
            "domain": "api",
            "rule": "per-tenant",
            "denied": [expected_top_response_entry("acme", 7), expected_top_response_entry("bob", 2)],
            "near": [expected_top_response_entry("acme", 1), expected_top_response_entry("bob", 1), expected_top_response_entry("carol", 1)],
        },
        {
            "domain": "api",
            "rule": "watched",
            "denied": [],
            "near": [watched("acme", 1), watched("bob", 1), watched("carol", 1)],
            "observed": [watched("acme", 8), watched("bob", 3), watched("carol", 1)],
        },
    ]);
    let mut rules = body["rules"].take();
    for rule in rules.as_array_mut().unwrap() {
        rule["near"]
            .as_array_mut()
            .unwrap()
            .sort_by_key(|key_count| key_count["key"]["tenant"].to_string());
    }
    assert_eq!(rules, expected);
}

#[test]
fn observed_keys_are_counted_until_rule_enforces() {
    let server = Server::start_with_admin(POLICY, &[]);
    for nth in 0..70 {
        send_check_requests(&server, &nth.to_string(), 3);
    }
    send_check_requests(&server, "7", 1);
    let rules = get_top_keys(&server, "?rule=watched")["rules"].clone();
    let watched = &rules[0];
    assert_eq!((&watched["domain"], &watched["total"]), (&json!("api"), &json!(71)), "{watched}");
    assert_eq!(watched["observed"].as_array().unwrap().len(), 70);
    let first = json!({ "key": { "tenant": "7" }, "count": 2, "max_overcount": 0 });
    assert_eq!(watched["observed"][0], first);
    let one = get_top_keys(&server, "?rule=watched&keys=1")["rules"][0].clone();
    assert_eq!((&one["observed"], &one["max_unlisted"]), (&json!([first]), &json!(1)));
    assert_eq!(get_top_keys(&server, "?rule=per-tenant"), json!({ "rules": [] }));
    let samples = MetricSamples::scrape(&server);
    assert_eq!(samples.get(r#"slidegate_observed_keys{domain="api",rule="watched"}"#), 70.0);
    let other = Server::start_with_admin(POLICY, &[]);
    send_check_requests(&other, "7", 4);
    let servers = [&server, &other].map(|server| format!("http://{}", server.admin_address()));
    let servers = servers.join(",");
    let run_top = |rule: &str| {
        let arguments = ["top", rule, "--server", &servers, "--keys", "2"];
        slidegate_command().args(arguments).output().unwrap()
    };
    let text = String::from_utf8(run_top("watched").stdout).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let start = "watched (domain api): 73 requests of 70 keys would have been denied in ";
    assert!(lines[0].starts_with(start) && lines[0].ends_with(", on 2 servers"), "{text}");
    assert_eq!((lines[1], lines[3]), ("        4  tenant=7", "(68 more keys: raise --keys.)"));
    let errors = String::from_utf8(run_top("per-tenant").stderr).unwrap();
    assert!(errors.contains("no server has counted a request that `per-tenant`"), "{errors}");
    let enforced = POLICY.replace(", mode: observe", "");
    std::fs::write(server.policy_path(), enforced).unwrap();
    server.wait_for_log("the policy has changed");
    assert_eq!(get_top_keys(&server, "?rule=watched"), json!({ "rules": [] }));
}

#[test]
fn observe_mode_lists_no_keys_as_denied() {
    let server = Server::start_with_admin(POLICY, &["--observe"]);
    send_check_requests(&server, "acme", 10);
    let rule = get_top_keys(&server, "")["rules"][0].clone();
    assert_eq!((&rule["rule"], &rule["denied"]), (&json!("watched"), &json!([])));
    assert_eq!(rule["observed"][0]["count"], 8);
}

#[test]
fn keys_parameter_sets_maximum_number_of_listed_keys() {
    let server = Server::start_with_admin(POLICY, &[]);
    (0..70).for_each(|nth| send_check_requests(&server, &format!("t{nth}"), 4));
    let denied =
        |query: &str| get_top_keys(&server, query)["rules"][0]["denied"].as_array().unwrap().len();
    assert_eq!((denied(""), denied("?keys=1"), denied("?keys=64")), (10, 1, 64));
    for invalid in ["?keys=0", "?keys=65", "?keys=x", "?key=1", "?keys=1&a=b"] {
        let response =
            Client::with_address(server.admin_address()).call("GET", &format!("/v1/top{invalid}"));
        assert_eq!(response.status, 400, "{invalid}");
        assert!(response.body.contains("send keys=N, with N from 1 to 64"), "{}", response.body);
    }
}

#[test]
fn rule_that_never_applies_is_logged_and_reported() {
    let policy = "
rules:
  - { name: used, per: [user], limits: [5000/h] }
  - { name: misspelt, when: { metod: POST }, limits: [1/h] }
  - { name: late, when: { user: late }, limits: [1/h] }
";
    let server = Server::start_with_admin(policy, &[]);
    let client = Client::new(&server);
    let check = |user: &str| client.check(&json!({"attributes": {"user": user}})).status;
    let metric = || {
        let samples = MetricSamples::scrape(&server);
        samples.get(r#"slidegate_rules_never_applied{domain="default"}"#)
    };
    for _ in 0..999 {
        assert_eq!(check("ann"), 200);
    }
    assert_eq!(get_top_keys(&server, "").get("rules_never_applied"), None);
    assert_eq!(metric(), 0.0);
    assert_eq!(check("ann"), 200);
    let line = std::iter::from_fn(|| server.next_log_line(Duration::from_secs(30)))
        .find(|line| line.contains("rules have not applied to any request of their domain"));
    let line = line.unwrap();
    assert!(line.contains("domain=\"default\" rules=\"misspelt, late\""), "{line}");
    assert_eq!(metric(), 2.0);
    assert_eq!(check("late"), 200);
    let unused = json!([{ "domain": "default", "rule": "misspelt" }]);
    assert_eq!(get_top_keys(&server, "")["rules_never_applied"], unused);
    assert_eq!(metric(), 1.0);
}
