//! Tests of the endpoint `/v1/explain` and of the command `slidegate explain`, which describe a decision in detail.

use std::time::Duration;

use serde_json::{Value, json};
use slidegate::clock::{Clock, SystemClock};
use ureq::Agent;

use crate::admin::health::wait_until_readyz_succeeds;
use crate::common::{Server, TempFile, slidegate_command};
use crate::http::client::{Client, RawConnection};
use crate::redis_server::Redis;

const POLICY: &str = "
routes: [ /login, '/users/{id}' ]
rules:
  - { name: per-tenant, per: [tenant], limits: [3/h, 4/2s], algorithm: sliding_log, overrides: [{ name: pro, when: { plan: pro }, limits: [4/2s] }] }
  - { name: login, when: { route: /login }, limits: [9/h] }
  - { name: watched, per: [tenant], limits: [1/h], mode: observe }
  - { name: off, limits: [1/h], mode: off }
";

/// Maximum delay of a response while large explanations run, or after their clients have left.
const MAX_DELAY: Duration = Duration::from_secs(5);

/// Returns the JSON body of a check request with these attributes and this cost.
fn check_body(attributes: Value, cost: u64) -> Value {
    json!({ "attributes": attributes, "cost": cost })
}

/// Posts a check request to `/v1/explain` of the server, and returns the response body, which describes the decision.
fn post_explain(server: &Server, request: &Value) -> Value {
    let response =
        Client::with_address(server.admin_address()).post("/v1/explain", request.to_string());
    assert_eq!(response.status, 200, "{}", response.body);
    response.json()
}

/// Runs `slidegate explain` against a running server, and returns the stdout and stderr of the command.
fn run_explain(server: &Server, arguments: &[&str]) -> (String, String) {
    let url = format!("http://{}", server.admin_address());
    let output =
        slidegate_command().args(["explain", "--server", &url]).args(arguments).output().unwrap();
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn explain_derives_route_from_normalized_path() {
    let policy = format!("normalize: {{ path: [double_slash] }}{POLICY}");
    let server = Server::start_with_admin(&policy, &[]);
    let explained = post_explain(&server, &check_body(json!({ "path": "//login" }), 1));
    assert_eq!(explained["route"], "/login");
}

#[test]
fn explain_reports_matching_rules_and_used_units() {
    let server = Server::start_with_admin(POLICY, &[]);
    let acme = check_body(json!({ "tenant": "acme", "path": "/users/7" }), 1);
    for _ in 0..3 {
        assert_eq!(Client::new(&server).check(&acme).status, 200);
    }
    let explained = post_explain(&server, &acme);
    assert_eq!(
        (&explained["allowed"], &explained["route"]),
        (&json!(false), &json!("/users/{id}"))
    );
    let rules = explained["rules"].as_array().unwrap();
    let names: Vec<_> = rules.iter().map(|rule| rule["rule"].as_str().unwrap()).collect();
    assert_eq!(names, ["per-tenant", "login", "watched", "off"]);
    let limits = rules[0]["limits"].as_array().unwrap();
    let (hour, seconds) = (&limits[0], &limits[1]);
    assert_eq!(hour["key"], "default:per-tenant:1h:{tenant=acme}");
    assert_eq!(hour["key_values"], json!({ "tenant": "acme" }));
    let counts = |limit: &Value| (limit["now"]["used"].clone(), limit["now"]["remaining"].clone());
    assert_eq!(counts(hour), (json!(3), json!(0)));
    assert_eq!(counts(seconds), (json!(3), json!(1)));
    assert_eq!((&seconds["now"]["fits"], &seconds["to_pass"]), (&json!(true), &Value::Null));
    let to_pass = hour["to_pass"].as_str().unwrap();
    assert!(to_pass.starts_with("needs 1 more unit: free in "), "{to_pass}");
    assert!(to_pass.contains(" min "), "{to_pass}");
    assert_eq!(explained["retry_after_ms"], hour["now"]["retry_after_ms"]);
    assert_eq!(rules[1]["no_match_reason"], "route is `/users/{id}`, and must be `/login`");
    assert_eq!(
        (&rules[2]["limits"][0]["observed"], &rules[3]["no_match_reason"]),
        (&json!(true), &json!("the rule is switched off"))
    );
}

#[test]
fn explain_counts_units_above_max() {
    let policy = "rules: [{ name: r, limits: [10/h], overrides: [{ name: small, when: { plan: small }, limits: [3/h] }] }]";
    let redis = Redis::start();
    for arguments in [&[][..], &["--store", &redis.address()]] {
        let server = Server::start_with_admin(policy, arguments);
        let explained = |plan: &str| {
            let explained = post_explain(&server, &check_body(json!({ "plan": plan }), 1));
            let limit = &explained["rules"][0]["limits"][0];
            let to_pass = limit["to_pass"].as_str().unwrap();
            let units = to_pass.strip_prefix("needs ").unwrap().split(' ').next().unwrap();
            let units: u64 = units.parse().unwrap();
            (limit["now"]["used"].clone(), limit["now"]["remaining"].clone(), units)
        };
        let report = |cost| {
            let body = check_body(json!({ "plan": "large" }), cost).to_string();
            assert_eq!(Client::new(&server).post("/v1/report", body).status, 200);
        };
        report(10);
        assert_eq!(explained("small"), (json!(10), json!(0), 8), "max is 3 instead of 10");
        report(15);
        assert_eq!(explained("large"), (json!(25), json!(0), 16), "max is 10");
    }
}

#[test]
fn explain_changes_no_counters_or_metrics() {
    let server = Server::start_with_admin(POLICY, &[]);
    let acme = check_body(json!({ "tenant": "acme" }), 1);
    for _ in 0..10 {
        assert_eq!(post_explain(&server, &acme)["rules"][0]["limits"][0]["now"]["used"], 0);
    }
    let samples = crate::admin::samples::MetricSamples::scrape(&server);
    assert_eq!(samples.sum("slidegate_decisions_total", "per-tenant"), 0.0);
    assert_eq!(samples.sum("slidegate_requests_total", ""), 0.0);
}

/// Repeats a denied request exactly at the retry time that `/v1/explain` returned. The repeated request is allowed.
#[test]
fn request_at_explained_retry_time_is_allowed() {
    let server = Server::start_with_admin(POLICY, &[]);
    let pro = check_body(json!({ "tenant": "acme", "plan": "pro" }), 3);
    let client = Client::new(&server);
    assert_eq!(client.check(&pro).status, 200);
    let explained = post_explain(&server, &pro);
    assert_eq!(explained["rules"][0]["override"], "override `pro`");
    let limit = &explained["rules"][0]["limits"][0];
    let to_pass = limit["to_pass"].as_str().unwrap();
    assert!(to_pass.starts_with("needs 2 more units: free in "), "{to_pass}");
    let clock = SystemClock::new();
    let wait = Duration::from_millis(explained["retry_after_ms"].as_u64().unwrap());
    assert!(wait > Duration::ZERO && wait <= Duration::from_secs(2));
    let retry_at = clock.now().after(wait);
    while clock.now() < retry_at {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(post_explain(&server, &pro)["allowed"], true);
    assert_eq!(client.check(&pro).status, 200);
}

/// Many rules apply to each of many descriptors.
#[test]
fn abandoned_explanations_delay_no_other_response() {
    let rules =
        (0..100).map(|index| format!("  - {{ name: r{index}, per: [a], limits: [9/h] }}\n"));
    let policy = format!("rules:\n{}", rules.collect::<String>());
    let server = Server::start_with_admin(&policy, &[]);
    let body = json!({"descriptors": vec![json!({"attributes": {"a": "b"}}); 100]}).to_string();
    let head = "POST /v1/explain HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: ";
    let clients: Vec<RawConnection> = (0..8)
        .map(|_| {
            let mut client = RawConnection::connect(server.admin_address());
            client.write(format!("{head}{}\r\n\r\n{body}", body.len()));
            client
        })
        .collect();
    let agent: Agent = Agent::config_builder().timeout_global(Some(MAX_DELAY)).build().into();
    let url = format!("http://{}", server.admin_address());
    assert_eq!(agent.get(format!("{url}/healthz")).call().unwrap().status(), 200);
    drop(clients);
    // Waits only for the explanation that runs, which ends early.
    let small = r#"{"descriptors":[{"attributes":{"a":"b"}}]}"#;
    let explained = agent.post(format!("{url}/v1/explain")).send(small).unwrap();
    assert_eq!(explained.status(), 200);
}

#[test]
fn number_of_explained_rules_is_bounded() {
    let rules =
        (0..1_001).map(|index| format!("  - {{ name: r{index}, per: [a], limits: [9/h] }}\n"));
    let server = Server::start_with_admin(&format!("rules:\n{}", rules.collect::<String>()), &[]);
    let client = Client::with_address(server.admin_address());
    let explain = |count: usize, attribute: &str| {
        let descriptors = vec![json!({"attributes": {attribute: "b"}}); count];
        client.post("/v1/explain", json!({ "descriptors": descriptors }).to_string())
    };
    for (count, attribute, found) in [
        (100, "other", "100 descriptors have 100100 rules"),
        (20, "a", "20020 limits apply to the 20 descriptors"),
    ] {
        let rejected = explain(count, attribute);
        assert_eq!(rejected.status, 400, "{}", rejected.body);
        assert!(rejected.body.contains(found), "{}", rejected.body);
        assert!(rejected.body.contains("send fewer descriptors"), "{}", rejected.body);
    }
    for attribute in ["a", "other"] {
        let explained = explain(2, attribute).json();
        assert_eq!(explained["rules"].as_array().unwrap().len(), 2 * 1_001);
    }
}

#[test]
fn explain_omits_retry_after_if_cost_exceeds_limit_max() {
    let server = Server::start_with_admin(POLICY, &[]);
    let costly = post_explain(&server, &check_body(json!({ "tenant": "acme" }), 4));
    let limit = &costly["rules"][0]["limits"][0];
    assert_eq!(limit["to_pass"], "never allowed at this cost: at most 3 fit");
    assert_eq!(
        (&costly["summary"], &costly["retry_after_ms"]),
        (&json!("denied by per-tenant.1h, permanently"), &Value::Null)
    );
}

#[test]
fn explain_command_prints_server_response() {
    let server = Server::start_with_admin(POLICY, &[]);
    let acme = check_body(json!({ "tenant": "acme" }), 1);
    (0..2).for_each(|_| drop(Client::new(&server).check(&acme)));
    let (text, errors) = run_explain(&server, &["tenant=acme", "path=/nowhere"]);
    assert_eq!(errors, "");
    let expected = "\
per-tenant: applies
  override `pro` not used: plan is missing
  per-tenant.1h: 3/1h sliding_log: fits, 2 of 3 used
    counted as default:per-tenant:1h:{tenant=acme}
  per-tenant.2s: 4/2s sliding_log: fits, 2 of 4 used
    counted as default:per-tenant:2s:{tenant=acme}
login: does not apply: the path matches none of `routes`, and the route must be `/login`
watched: applies
  watched: 1/1h sliding_window: does not fit, 1 of 1 used (observes only)
";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("allowed: per-tenant.1h is closest to its limit\n"), "{text}");
}

/// The reasons for unused overrides are an absent attribute or another value. If an override applies, only the absent
/// attributes of earlier ones are reported.
#[test]
fn explain_reports_unused_overrides() {
    let policy = "
rules:
  - name: r
    limits: [9/h]
    overrides:
      - { name: pro, when: { header.x-plan: pro }, limits: [20/h] }
      - { name: old, when: { header.x-plan: old, user: bob }, limits: [30/h] }
      - { when: { user: eve }, limits: [40/h] }
      - { name: max, when: { header.x-plan: max }, limits: [50/h] }
";
    let server = Server::start_with_admin(policy, &[]);
    let no_plan = ("header.x-plan", None);
    let (wrong_plan, ann, bob) =
        (("header.x-plan", Some("Pro")), ("user", Some("ann")), ("user", Some("bob")));
    let (pro, old, third, max) =
        ("override `pro`", "override `old`", "override 3", "override `max`");
    for (attributes, expected) in [
        (json!({ "user": "ann" }), vec![(no_plan, vec![pro, max]), (ann, vec![old, third])]),
        (json!({ "user": "bob" }), vec![(no_plan, vec![pro, old, max]), (bob, vec![third])]),
        (json!({ "user": "eve" }), vec![(no_plan, vec![pro])]),
        (json!({ "user": "eve", "header.x-plan": "Pro" }), vec![]),
        (
            json!({ "header.x-plan": "Pro" }),
            vec![(wrong_plan, vec![pro, old, max]), (("user", None), vec![third])],
        ),
    ] {
        let unused = post_explain(&server, &check_body(attributes.clone(), 1));
        let expected: Vec<Value> = expected
            .into_iter()
            .map(|((attribute, value), overrides)| {
                json!({ "attribute": attribute, "value": value, "overrides": overrides })
            })
            .collect();
        assert_eq!(unused["rules"][0]["unused_overrides"], json!(expected), "{attributes}");
    }
    for (user, line) in [
        ("user=eve", "  override `pro` not used: header.x-plan is missing\n"),
        (
            "header.x-plan=Pro",
            "  override `pro`, override `old`, override `max` not used: header.x-plan is `Pro`\n",
        ),
    ] {
        let (text, _) = run_explain(&server, &[user]);
        assert!(text.contains(line), "{text}");
    }
}

/// The rule `of-plan` matches the attributes only in the order `user`, `plan`, so the command must not sort the
/// attributes of a descriptor.
#[test]
fn explain_command_keeps_descriptor_and_attribute_order() {
    let policy = "
rules:
  - { name: of-plan, descriptor: [user, plan], per: [user, plan], limits: [3/h] }
  - { name: of-user, descriptor: [user], per: [user], limits: [9/h] }
";
    let server = Server::start_with_admin(policy, &[]);
    let arguments = ["--descriptors", "user=ann", "plan=free", "+", "user=ann"];
    let (text, errors) = run_explain(&server, &arguments);
    assert_eq!(errors, "");
    let expected = "\
descriptor 1:
of-plan: applies
  of-plan: 3/1h sliding_window: fits, 0 of 3 used
    counted as default:of-plan:1h:{user=ann,plan=free}
of-user: does not apply: […]
descriptor 2:
of-plan: does not apply: […]
of-user: applies
  of-user: 9/1h sliding_window: fits, 0 of 9 used
    counted as default:of-user:1h:{user=ann}
allowed: of-plan is closest to its limit
";
    let without_reasons = |text: &str| {
        let line = |line: &str| match line.split_once("does not apply: ") {
            Some((rule, _)) => format!("{rule}does not apply: […]\n"),
            None => format!("{line}\n"),
        };
        text.lines().map(line).collect::<String>()
    };
    assert_eq!(without_reasons(&text), expected);
    let file = TempFile::new(".yaml", policy);
    let run_with_policy = |arguments: &[&str]| {
        let mut command = slidegate_command();
        command.args(["explain", "--policy"]).arg(file.path()).args(arguments);
        let output = command.output().unwrap();
        (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
    };
    assert_eq!(run_with_policy(&arguments), (text, String::new()));
    for (invalid, reason) in [
        (&["user=ann", "+", "user=bob"][..], "add `--descriptors`"),
        (&["--descriptors", "user=ann", "+"], "a descriptor has no attributes"),
        (&["--descriptors", "user=ann", "user=bob"], "name the second one `user#2`"),
    ] {
        let (_, error) = run_with_policy(invalid);
        assert!(error.contains(reason), "{error}");
    }
    let too_many = json!({"descriptors": vec![json!({"attributes": {}}); 101]}).to_string();
    let response = Client::with_address(server.admin_address()).post("/v1/explain", &too_many);
    assert_eq!(response.status, 400, "{}", response.body);
    assert!(response.body.contains("send at most 100 in one request"), "{}", response.body);
    for invalid in [r#"{}"#, r#"{"descriptors":[]}"#, r#"{"attributes":{},"descriptors":[{}]}"#] {
        let response = Client::with_address(server.admin_address()).post("/v1/explain", invalid);
        assert_eq!(response.status, 400, "{invalid}: {}", response.body);
    }
}

#[test]
fn failed_explain_command_prints_failure_cause() {
    let server = Server::start_with_admin(POLICY, &[]);
    let error = |url: &str, arguments: &[&str]| {
        let output = slidegate_command()
            .args(["explain", "--server", url])
            .args(arguments)
            .output()
            .unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b""[..]));
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(error("https://127.0.0.1:1", &["a=b"]).contains("begins with http://; write"));
    assert!(error("http://127.0.0.1:1", &["a=b"]).contains("is unreachable: "));
    let http_url = format!("http://{}", server.address());
    assert!(
        error(&http_url, &["a=b"])
            .contains("returned status 404: path `/v1/explain` does not exist")
    );
    let response = Client::with_address(server.admin_address()).post("/v1/explain", "[]");
    assert_eq!(
        (response.status, response.header("content-type")),
        (400, Some("application/problem+json"))
    );
}

#[test]
fn explain_during_store_outage_applies_on_store_error_settings() {
    let redis = Redis::start();
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "100ms", "--ready-needs-store"];
    let policy = "
rules:
  - { name: own, per: [tenant], limits: [10/h] }
  - { name: open, limits: [9/h], on_store_error: allow }
  - { name: open-alone, domain: open, limits: [9/h], on_store_error: allow }
  - { name: shut, domain: shut, limits: [9/h], on_store_error: deny }
";
    let server = Server::start_with_admin(policy, &flags);
    wait_until_readyz_succeeds(&server);
    redis.pause();
    let explained = post_explain(&server, &check_body(json!({ "tenant": "acme" }), 1));
    assert_eq!((&explained["allowed"], &explained["degraded"]), (&json!(true), &json!(true)));
    assert_eq!(explained["rules"][0]["limits"][0]["now"]["used"], 0);
    assert_eq!(explained["rules"][1]["limits"][0]["now"], Value::Null);
    let (text, _) = run_explain(&server, &["--domain", "shut"]);
    assert!(text.contains("not read: the store is unavailable"), "{text}");
    assert!(
        text.ends_with(
            "denied by shut: the store is unavailable, and the rule has `on_store_error: deny`\n"
        ),
        "{text}"
    );
    let (text, _) = run_explain(&server, &["--domain", "open"]);
    assert!(text.ends_with("not counted, because of `on_store_error: allow`)\n"), "{text}");
    let (_, error) = run_explain(&server, &["--domain", "other"]);
    assert!(error.contains("no rule has domain `other`, so no request is denied"), "{error}");
    let line = server.wait_for_log("a call to the store failed");
    assert!(line.contains("class=\"timed_out\""), "{line}");
    redis.resume();
}

#[test]
fn explain_without_source_names_all_ways_to_go_on() {
    let mut command = slidegate_command();
    command.args(["explain", "client=alice"]).env_remove("SLIDEGATE_POLICY");
    let output = command.output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    for way in ["--server http", "--policy FILE", "--ratelimit-config DIR"] {
        assert!(output.status.code() == Some(2) && error.contains(way), "{error}");
    }
}
