//! Tests of `/metrics`: the metric values and the response formats.

use std::collections::BTreeSet;
use std::io::Write;
use std::process::Stdio;

use serde_json::json;
use ureq::http::Request;

use crate::admin::samples::MetricSamples;
use crate::common::Server;
use crate::common::documented_metrics::documented_metrics;
use crate::common::prometheus::prometheus_program;
use crate::grpc::client as grpc;
use crate::http::client::Client;
use crate::redis_server::Redis;

const POLICY: &str = r#"
rules:
  - { name: per-tenant, domain: 'a "b" \c', per: [tenant], limits: [10/h, 1000/d], algorithm: sliding_log }
  - { name: watched, domain: 'a "b" \c', per: [tenant], limits: [3/h], algorithm: sliding_log, mode: observe }
  - { name: all, limits: [5/h], algorithm: sliding_log }
  - { name: one, limits: [2/h], algorithm: sliding_log }
"#;

/// The domain of the first two rules in `POLICY`. The quotes and the backslash must be escaped in metric labels.
const DOMAIN_WITH_SPECIAL_CHARACTERS: &str = r#"a "b" \c"#;

/// Sends `times` check requests in this domain, and returns the statuses of the responses.
fn send_check_requests(client: &Client, domain: &str, times: usize) -> Vec<u16> {
    let request = json!({ "domain": domain, "attributes": { "tenant": "acme" } });
    (0..times).map(|_| client.check(&request).status).collect()
}

#[test]
fn metrics_count_decisions_per_limit() {
    let server = Server::start_with_admin(POLICY, &[]);
    let client = Client::new(&server);
    assert_eq!(
        send_check_requests(&client, DOMAIN_WITH_SPECIAL_CHARACTERS, 13),
        [&[200; 10][..], &[429; 3]].concat()
    );
    assert_eq!(send_check_requests(&client, "default", 6), [200, 200, 429, 429, 429, 429]);
    let samples = MetricSamples::scrape(&server);
    let outcomes = |domain: &str, rule: &str, limit: &str| {
        ["allowed", "denied", "observed"].map(|outcome| {
            samples.get(&format!(
                r#"slidegate_decisions_total{{domain="{domain}",rule="{rule}",limit="{limit}",outcome="{outcome}"}}"#
            ))
        })
    };
    let label = r#"a \"b\" \\c"#;
    assert_eq!(outcomes(label, "per-tenant", "1h"), [10.0, 3.0, 0.0]);
    assert_eq!(
        outcomes(label, "per-tenant", "1d"),
        [10.0, 0.0, 0.0],
        "not counted if another limit denied"
    );
    assert_eq!(outcomes(label, "watched", "1h"), [3.0, 0.0, 10.0]);
    assert_eq!(outcomes("default", "all", "1h"), [2.0, 0.0, 0.0]);
    assert_eq!(outcomes("default", "one", "1h"), [2.0, 4.0, 0.0]);
    let near = |rule: &str| samples.sum("slidegate_near_limit_total", &format!(r#"rule="{rule}""#));
    assert_eq!(
        [near("per-tenant"), near("watched"), near("all"), near("one")],
        [2.0, 1.0, 0.0, 1.0]
    );
}

#[tokio::test]
async fn metrics_count_unmatched_requests_by_domain() {
    let policy = "
rules:
  - { name: login, domain: shop, when: { path: /login }, limits: [1000/h] }
  - { name: free, domain: shop, when: { path: /free }, limits: unlimited }
  - { name: mail, domain: mail, limits: [1000/h] }
";
    let server = Server::start_with_admin(policy, &["--grpc", "127.0.0.1:0"]);
    let client = Client::new(&server);
    let unmatched = |samples: &MetricSamples, domain: &str| {
        samples.get(&format!(r#"slidegate_unmatched_requests_total{{domain="{domain}"}}"#))
    };
    let unknown = "slidegate_unknown_domain_requests_total";
    let samples = MetricSamples::scrape(&server);
    let at_start = [unmatched(&samples, "shop"), unmatched(&samples, "mail"), samples.get(unknown)];
    assert_eq!(at_start, [0.0; 3], "present before the first request");

    let grpc = grpc::Client::connect(&server).await;
    // Sends the request by HTTP in every way, and returns it for gRPC.
    let send_by_http = |domain: &str, path: &str| {
        let attributes = json!({ "path": path });
        let check = json!({ "domain": domain, "attributes": attributes, "cost": 1 });
        assert_eq!(client.check(&check).status, 200);
        for endpoint in ["/v1/reserve", "/v1/peek", "/v1/report"] {
            assert_eq!(client.post(endpoint, check.to_string()).status, 200, "{endpoint}");
        }
        let entries = json!([{ "key": "path", "value": path }]);
        let rls = json!({ "domain": domain, "descriptors": [{ "entries": entries }] });
        assert_eq!(client.post("/json", rls.to_string()).status, 200);
        let auth = Request::get(format!("/v1/auth?domain={domain}"));
        let auth = auth.header("x-forwarded-uri", path).body(Vec::new()).unwrap();
        assert_eq!(client.send(auth).status, 200);
        let request = grpc::new_request([grpc::new_descriptor(&[("path", path)])]);
        grpc::RateLimitRequest { domain: domain.to_owned().into(), ..request }
    };
    for (domain, path) in [("shop", "/"), ("shop", "/login"), ("shop", "/free"), ("made-up", "/")] {
        grpc.check(send_by_http(domain, path)).await;
    }
    let samples = MetricSamples::scrape(&server);
    assert_eq!(unmatched(&samples, "shop"), 5.0, "not counted: peek, report");
    assert_eq!((unmatched(&samples, "mail"), samples.get(unknown)), (0.0, 5.0));
    assert_eq!(samples.sum("slidegate_unmatched_requests_total", ""), 5.0, "no other domain");
}

#[test]
fn metrics_count_requests_by_result() {
    let server = Server::start_with_admin(POLICY, &[]);
    let client = Client::new(&server);
    send_check_requests(&client, "default", 3);
    client.post("/v1/peek", r#"{"attributes":{}}"#);
    client.post("/v1/check", "{");
    client.post("/v1/check", "x".repeat((1 << 20) + 1));
    client.call("GET", "/v1/check");
    client.call("GET", "/healthz");
    client.call("GET", "/nowhere");
    let samples = MetricSamples::scrape(&server);
    let requests = |result: &str| {
        samples.get(&format!(r#"slidegate_requests_total{{protocol="http",result="{result}"}}"#))
    };
    let results = ["allowed", "denied", "store_unavailable", "invalid", "error"].map(requests);
    assert_eq!(results, [2.0, 2.0, 0.0, 3.0, 0.0]);
    let request_seconds = r#"slidegate_request_seconds_count{protocol="http"}"#;
    assert_eq!(samples.get(request_seconds), 5.0, "every complete request");
    let decided = samples.sum("slidegate_decisions_total", r#"rule="one""#);
    assert_eq!(decided, 3.0, "peeks are not counted");
}

#[test]
fn metrics_format_follows_accept_header() {
    let server = Server::start_with_admin(POLICY, &[]);
    let admin = Client::with_address(server.admin_address());
    send_check_requests(&Client::new(&server), "default", 3);
    let scrape = |accept: &str| {
        admin.send(Request::get("/metrics").header("accept", accept).body(Vec::new()).unwrap())
    };
    let plain = scrape("text/plain");
    assert_eq!(plain.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let open = scrape("application/openmetrics-text; version=1.0.0, text/plain; q=0.5");
    let open_metrics = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!(open.header("content-type"), Some(open_metrics));
    assert!(open.body.ends_with("\n# EOF\n") && !plain.body.contains("# EOF"));
    assert!(open.body.contains("# TYPE slidegate_requests counter\n"));
    assert!(plain.body.contains("# TYPE slidegate_requests_total counter\n"));
    let without_comments = |text: &str| {
        let mut lines: Vec<_> =
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    assert_eq!(without_comments(&plain.body), without_comments(&open.body));
}

#[test]
fn every_exported_metric_is_documented() {
    let server = Server::start_with_admin(POLICY, &[]);
    let text = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    let exported: BTreeSet<String> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")).map(str::to_owned).collect();
    let documented: BTreeSet<String> = documented_metrics()
        .into_iter()
        .map(|metric| format!("{} {}", metric.name, metric.kind))
        .collect();
    assert_eq!(exported, documented);
}

#[test]
fn metrics_pass_promtool_lint() {
    let server = Server::start_with_admin(POLICY, &[]);
    send_check_requests(&Client::new(&server), "default", 3);
    let text = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    let mut promtool = prometheus_program("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut linter = promtool.stderr(Stdio::piped()).spawn().unwrap();
    linter.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = linter.wait_with_output().unwrap();
    let lint_output = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success() && lint_output.is_empty(), "{lint_output}\n{text}");
}

#[test]
fn store_outage_is_visible_in_metrics() {
    let redis = Redis::start();
    let address = redis.address();
    let flags = ["--store", &address, "--redis-timeout", "200ms"];
    let server = Server::start_with_admin(POLICY, &flags);
    let client = Client::new(&server);
    let denied = send_check_requests(&client, "default", 6);
    assert_eq!(denied, [200, 200, 429, 429, 429, 429]);
    let samples = MetricSamples::scrape(&server);
    let store_calls = samples.get(r#"slidegate_store_seconds_count{store="redis"}"#);
    assert_eq!((store_calls, samples.get("slidegate_deny_cache_hits_total")), (2.0, 4.0));
    assert_eq!(samples.get(r#"slidegate_breaker_open{store="redis"}"#), 0.0);
    assert_eq!(samples.get("slidegate_keys"), 0.0);
    redis.pause();
    // Another tenant of another rule, without an entry in the denial cache.
    let request =
        json!({ "domain": DOMAIN_WITH_SPECIAL_CHARACTERS, "attributes": { "tenant": "bob" } });
    let mut degraded = 0.0;
    while MetricSamples::scrape(&server).get(r#"slidegate_breaker_open{store="redis"}"#) == 0.0 {
        assert_eq!(client.check(&request).json()["degraded"], true);
        degraded += 1.0;
        assert!(degraded < 20.0, "the breaker opens");
    }
    assert_eq!(client.check(&request).json()["degraded"], true);
    let samples = MetricSamples::scrape(&server);
    assert_eq!(samples.get("slidegate_degraded_decisions_total"), degraded + 1.0);
    let errors = |class: &str| {
        samples.get(&format!(r#"slidegate_store_errors_total{{store="redis",class="{class}"}}"#))
    };
    // After the first timeout, calls wait for a new connection, on which Redis does not respond either.
    let (failed, rejected) = (errors("timed_out") + errors("unavailable"), errors("breaker_open"));
    assert_eq!(failed + rejected, degraded + 1.0);
    assert!(errors("timed_out") >= 1.0 && failed >= 5.0 && rejected >= 1.0);
    assert_eq!(samples.get("slidegate_keys"), 3.0, "local counters during the outage");
    redis.resume();
}

#[test]
fn metrics_count_evicted_keys() {
    let policy = "rules: [{ name: a, per: [id], limits: [100/h] }]";
    let server = Server::start_with_admin(policy, &["--max-keys", "10"]);
    let client = Client::new(&server);
    for id in 0..30 {
        client.check(&json!({ "attributes": { "id": id.to_string() } }));
    }
    let samples = MetricSamples::scrape(&server);
    assert_eq!(samples.get("slidegate_keys"), 10.0);
    assert_eq!(samples.get("slidegate_evicted_keys_total"), 20.0);
    let memory = samples.get(r#"slidegate_memory_bytes{kind="keys"}"#);
    assert!((320.0..1e6).contains(&memory), "{memory}");
}

#[test]
fn metrics_count_memory_by_kind() {
    let policy =
        "rules: [{ name: a, limits: [{ name: in-flight, concurrent: 9, permit_ttl: 1h }] }]";
    let server = Server::start_with_admin(policy, &[]);
    let client = Client::new(&server);
    let memory = |kind: &str| {
        let sample = format!(r#"slidegate_memory_bytes{{kind="{kind}"}}"#);
        MetricSamples::scrape(&server).get(&sample)
    };
    for kind in ["keys", "call_records", "permits", "waiting"] {
        assert_eq!(memory(kind), 0.0, "{kind}");
    }
    let call = json!({ "attributes": {}, "idempotency_key": "a" });
    assert_eq!(client.check(&call).status, 200);
    for (kind, max) in [("keys", 10_000.0), ("call_records", 500.0), ("permits", 100.0)] {
        let bytes = memory(kind);
        assert!(bytes > 0.0 && bytes <= max, "{kind}: {bytes}");
    }
    assert_eq!(memory("waiting"), 0.0);
}

#[test]
fn tracked_permits_stay_within_max_memory() {
    let policy =
        "rules: [{ name: a, limits: [{ name: in-flight, concurrent: 1000, permit_ttl: 1h }] }]";
    let server = Server::start_with_admin(policy, &["--max-memory", "1MiB"]);
    let client = Client::new(&server);
    for _ in 0..500 {
        assert_eq!(client.check(&json!({ "attributes": {} })).status, 200);
    }
    let samples = MetricSamples::scrape(&server);
    assert_eq!(samples.get(r#"slidegate_permits_total{result="granted"}"#), 500.0);
    let bytes = samples.get(r#"slidegate_memory_bytes{kind="permits"}"#);
    assert!((8_192.0..=16_384.0).contains(&bytes), "{bytes}");
    let in_use = samples.get("slidegate_permits_in_use");
    assert!((100.0..200.0).contains(&in_use), "{in_use}");
}

#[test]
fn admin_endpoints_exist_only_on_admin_listener() {
    let server = Server::start_with_admin(POLICY, &[]);
    let (client, admin) = (Client::new(&server), Client::with_address(server.admin_address()));
    for path in ["/metrics", "/v1/explain", "/v1/top"] {
        assert_eq!(client.call("GET", path).status, 404, "{path}");
    }
    let misplaced = admin.post("/v1/check", r#"{"attributes":{}}"#);
    assert!(misplaced.status == 404 && misplaced.body.contains("--http"), "{}", misplaced.body);
    assert_eq!(admin.call("GET", "/v1/explain").status, 405);
    let alone = Server::start(POLICY);
    assert!(server.has_admin_listener() && !alone.has_admin_listener());
}

#[test]
fn metrics_count_call_records_and_settlements() {
    let policy = "rules: [{ name: a, per: [tenant], limits: [100/h] }]";
    let server = Server::start_with_admin(policy, &["--max-call-records", "64"]);
    let client = Client::new(&server);
    let call = |nth: u32| {
        let key = format!("call {nth}");
        json!({ "attributes": { "tenant": key }, "idempotency_key": key })
    };
    for nth in 0..200 {
        assert_eq!(client.check(&call(nth)).status, 200);
        assert_eq!(client.check(&call(nth)).status, 200);
    }
    let samples = MetricSamples::scrape(&server);
    let (records, evicted) = (
        samples.get("slidegate_call_records"),
        samples.get("slidegate_evicted_call_records_total"),
    );
    assert!(records <= 64.0 && records > 32.0, "{records}");
    assert_eq!(records + evicted, 200.0);
    assert_eq!(samples.get("slidegate_repeated_calls_total"), 200.0);
    client.post("/v1/settle", r#"{"reservation":"x","cost":0}"#);
    let samples = MetricSamples::scrape(&server);
    assert_eq!(samples.get(r#"slidegate_settlements_total{result="invalid"}"#), 1.0);
    assert_eq!(samples.get(r#"slidegate_settlements_total{result="settled"}"#), 0.0);
}

#[test]
fn metrics_count_permits() {
    let policy =
        "rules: [{ name: a, limits: [{ name: in-flight, concurrent: 3, permit_ttl: 1s }] }]";
    let server = Server::start_with_admin(policy, &[]);
    let client = Client::new(&server);
    let permits =
        [(); 3].map(|()| client.check(&json!({ "attributes": {} })).json()["permit"].clone());
    assert_eq!(client.check(&json!({ "attributes": {} })).status, 429);
    let call = |path: &str, permit: &serde_json::Value| {
        client.post(path, json!({ "permit": permit }).to_string()).status
    };
    assert_eq!(call("/v1/release", &permits[0]), 200);
    assert_eq!(call("/v1/release", &permits[0]), 200);
    assert_eq!(call("/v1/renew", &permits[1]), 200);
    assert_eq!(call("/v1/renew", &json!("x")), 400);
    let samples = MetricSamples::scrape(&server);
    let permits = |samples: &MetricSamples, result: &str| {
        samples.get(&format!(r#"slidegate_permits_total{{result="{result}"}}"#))
    };
    for (result, expected) in
        [("granted", 3.0), ("released", 1.0), ("not_live", 1.0), ("renewed", 1.0), ("invalid", 1.0)]
    {
        assert_eq!(permits(&samples, result), expected, "{result}");
    }
    assert_eq!(samples.get("slidegate_permits_in_use"), 2.0);
    let denied = r#"slidegate_decisions_total{domain="default",rule="a",limit="in-flight",outcome="denied"}"#;
    assert_eq!(samples.get(denied), 1.0);
    std::thread::sleep(std::time::Duration::from_millis(1_100));
    let samples = MetricSamples::scrape(&server);
    assert_eq!(permits(&samples, "expired"), 2.0);
    assert_eq!(samples.get("slidegate_permits_in_use"), 0.0);
}
