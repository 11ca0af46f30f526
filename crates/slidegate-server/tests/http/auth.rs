//! Tests of forward authentication with `/v1/auth`. A proxy sends a subrequest to `/v1/auth` for each client request.

use serde_json::{Value, json};
use ureq::http::Request;

use crate::common::{Server, slidegate_command};
use crate::http::client::{Client, HttpResponse};

const PER_IP_POLICY: &str = "
routes: [/login, '/users/{id}']
rules:
  - { name: per-ip, per: [ip], limits: [2/h], algorithm: sliding_log }
  - { name: login, when: { method: POST, route: /login }, limits: [1/h], algorithm: sliding_log }
  - { name: shop, domain: shop, per: [header.x-api-key], limits: [1/h], algorithm: sliding_log }
";

/// Sends a request to `/v1/auth` with this method, query string and these headers, as a proxy does.
fn send_auth_request(
    client: &Client,
    method: &str,
    query: &str,
    headers: &[(&str, &str)],
) -> HttpResponse {
    let request = Request::builder().method(method).uri(format!("/v1/auth{query}"));
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    client.send(request.body(Vec::new()).unwrap())
}

/// Sends a request with this `X-Forwarded-For` header to `/v1/auth`, and returns the response status.
fn auth_status_for_forwarded_address(client: &Client, forwarded_for: &str) -> u16 {
    send_auth_request(client, "GET", "", &[("x-forwarded-for", forwarded_for)]).status
}

#[test]
fn auth_responses_have_headers_and_denials_have_body() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    let from = [("x-forwarded-for", "192.0.2.7")];
    let allowed = send_auth_request(&client, "GET", "", &from);
    assert_eq!((allowed.status, &*allowed.body), (200, ""));
    assert_eq!(allowed.header("ratelimit-policy"), Some(r#""per-ip";q=2;w=3600"#));
    assert!(allowed.header("ratelimit").unwrap().starts_with(r#""per-ip";r=1;t="#));
    assert_eq!(allowed.header("retry-after"), None);

    assert_eq!(auth_status_for_forwarded_address(&client, "192.0.2.7"), 200);
    let denied = send_auth_request(&client, "GET", "", &from);
    assert_eq!(
        (denied.status, denied.header("content-type")),
        (429, Some("application/problem+json"))
    );
    assert!(denied.header("retry-after").is_some());
    assert_eq!(
        (allowed.header("cache-control"), denied.header("cache-control")),
        (None, Some("no-store"))
    );
    assert!(denied.header("ratelimit").unwrap().starts_with(r#""per-ip";r=0;t="#));
    assert_eq!(
        denied.json(),
        json!({
            "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
            "title": "Quota exceeded",
            "status": 429,
            "reason": "limit_exceeded",
            "violated-policies": ["per-ip"]
        })
    );
}

/// Checks that a denial has the reason and the status of the rule whose limit causes the denial. The parameter
/// `deny_status` in the query overrides the status.
#[test]
fn denial_has_reason_and_status_of_rule() {
    let policy = "
rules:
  - { name: banned, when: { ip: 192.0.2.0/24 }, limits: denied, deny_status: 403 }
  - { name: keyed, when: { path: /keyed }, per: [header.x-api-key], when_missing: deny, limits: [9/h], deny_status: 401 }
  - { name: small, limits: [2/h] }
";
    let server = Server::start(policy);
    let client = Client::new(&server);
    let auth = |query, from, uri| {
        let headers = [("x-forwarded-for", from), ("x-forwarded-uri", uri)];
        let denied = send_auth_request(&client, "GET", query, &headers);
        assert_eq!(denied.json()["status"], denied.status);
        (denied.status, denied.json()["reason"].as_str().unwrap().to_owned())
    };
    assert_eq!(auth("", "192.0.2.7", "/"), (403, "banned".to_owned()));
    assert_eq!(auth("?deny_status=451", "192.0.2.7", "/"), (451, "banned".to_owned()));
    assert_eq!(auth("", "198.51.100.7", "/keyed"), (401, "missing_attribute".to_owned()));
    let check = |attributes: Value, cost: u64| {
        let body = json!({ "attributes": attributes, "cost": cost }).to_string();
        let response = client.post("/v1/check", body);
        (response.status, response.json()["reason"].clone())
    };
    assert_eq!(check(json!({ "ip": "192.0.2.7" }), 1), (403, json!("banned")));
    assert_eq!(check(json!({ "path": "/keyed" }), 1), (401, json!("missing_attribute")));
    assert_eq!(check(json!({}), 3), (429, json!("cost_exceeds_max")));
    assert_eq!(check(json!({}), 2), (200, Value::Null));
    assert_eq!(check(json!({}), 1), (429, json!("limit_exceeded")));
}

#[test]
fn auth_request_with_any_method_charges_one_unit() {
    let server = Server::start("rules: [{ name: all, limits: [7/h], algorithm: sliding_log }]");
    let client = Client::new(&server);
    for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"] {
        assert_eq!(send_auth_request(&client, method, "", &[]).status, 200, "{method}");
    }
    let allowed = send_auth_request(&client, "HEAD", "", &[]);
    assert_eq!((allowed.status, &*allowed.body), (200, ""));
    assert!(allowed.header("ratelimit").unwrap().starts_with(r#""all";r=0"#));
    let denied = send_auth_request(&client, "HEAD", "", &[]);
    assert_eq!((denied.status, &*denied.body), (429, ""));
    assert!(denied.header("retry-after").is_some());
}

#[test]
fn rules_match_forwarded_method_and_uri() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    let login = |from, method, uri| {
        let headers =
            [("x-forwarded-for", from), ("x-forwarded-method", method), ("x-forwarded-uri", uri)];
        send_auth_request(&client, "GET", "", &headers).status
    };
    assert_eq!(login("192.0.2.1", "POST", "/login?next=/"), 200);
    assert_eq!(login("192.0.2.2", "POST", "/login"), 429);
    assert_eq!(login("192.0.2.2", "POST", "http://shop.example/%6Cogin#top"), 429);
    assert_eq!(login("192.0.2.2", "GET", "/login"), 200);
    assert_eq!(login("192.0.2.3", "POST", "/users/7"), 200);
}

#[test]
fn forwarded_host_spellings_share_counter() {
    let server = Server::start(
        "
rules:
  - { name: api, when: { host: API.Example.com:80 }, limits: [3/h], algorithm: sliding_log }
  - { name: per-host, per: [header.host], limits: [9/h], algorithm: sliding_log }
",
    );
    let client = Client::new(&server);
    let status = |host| send_auth_request(&client, "GET", "", &[("x-forwarded-host", host)]).status;
    let spellings = ["API.example.com", "api.example.com:443", "api.example.com."];
    assert_eq!(spellings.map(status), [200; 3]);
    assert_eq!((status("api.example.com"), status("other.example")), (429, 200));
    let denied =
        send_auth_request(&client, "GET", "", &[("x-forwarded-host", "Api.example.com.:80")]);
    assert_eq!(denied.json()["violated-policies"], json!(["api"]));
    // The `Host` header of the request itself.
    let response_for_host = |host| send_auth_request(&client, "GET", "", &[("host", host)]);
    let rate_limit_header = |host| response_for_host(host).header("ratelimit").unwrap().to_owned();
    assert!(rate_limit_header("shop.example").starts_with(r#""per-host";r=8"#));
    assert!(rate_limit_header("SHOP.example.:8080").starts_with(r#""per-host";r=7"#));
}

#[test]
fn query_parameters_set_domain_and_denial_status() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    let shop = |query: &str, key| send_auth_request(&client, "GET", query, &[("X-Api-Key", key)]);
    assert_eq!(shop("?domain=shop", "k1").status, 200);
    assert_eq!(shop("?domain=%73hop", "k1").status, 429);
    let denied = shop("?domain=shop&deny_status=403", "k1");
    assert_eq!((denied.status, &denied.json()["status"]), (403, &json!(403)));
    assert!(denied.header("retry-after").is_some() && denied.header("ratelimit").is_some());
    assert_eq!(shop("?deny_status=599&domain=shop", "k1").status, 599);
    assert_eq!(shop("?deny_status=403&domain=shop", "k2").status, 200);
}

#[test]
fn invalid_query_is_400() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    for (query, error) in [
        ("?deny_status=399", "a status from 400 to 599"),
        ("?deny_status=600", "a status from 400 to 599"),
        ("?deny_status=+429", "a status from 400 to 599"),
        ("?deny_status=", "a status from 400 to 599"),
        ("?deny=403", "unknown field `deny`, expected `domain` or `deny_status`"),
        ("?domain=a&domain=b", "duplicate field `domain`"),
    ] {
        let response = send_auth_request(&client, "GET", query, &[]);
        assert_eq!(
            (response.status, response.header("content-type")),
            (400, Some("application/problem+json"))
        );
        let problem = response.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("the query: ") && detail.contains(error), "{query}: {detail}");
    }
}

const PER_API_KEY_POLICY: &str = "
defaults: { algorithm: sliding_log }
rules:
  - { name: per-key, per: [header.x-api-key], limits: [1/h], when_missing: deny }
  - { name: banned, when: { header.user-agent: 'evil*' }, limits: denied }
";

/// Sends a request with this `X-Api-Key` header to `/v1/auth`, and returns the response status.
fn auth_status_for_api_key(client: &Client, key: &[u8]) -> u16 {
    let request = Request::get("/v1/auth").header("x-api-key", key);
    client.send(request.body(Vec::new()).unwrap()).status
}

#[test]
fn long_or_non_utf8_headers_have_separate_counters() {
    let server = Server::start(PER_API_KEY_POLICY);
    let client = Client::new(&server);
    let long = |end: &str| [&[b'*'; 15_000], end.as_bytes()].concat();
    for status in [200, 429] {
        for key in [long("a"), long("b"), b"k\xff".to_vec(), b"k\xfe".to_vec()] {
            assert_eq!(auth_status_for_api_key(&client, &key), status);
        }
    }
}

/// A part of the URI that `path` does not have must not make another counter, whatever its bytes are.
#[test]
fn non_utf8_bytes_outside_of_path_do_not_evade_limit() {
    let policy = "rules: [{ name: login, when: { path: /login }, per: [path], limits: [1/h] }]";
    let server = Server::start(policy);
    let client = Client::new(&server);
    let statuses = [&b"/login"[..], b"/login?\xff", b"/login?\xfe", b"/\xff/../login"].map(|uri| {
        let request = Request::get("/v1/auth").header("x-forwarded-uri", uri);
        client.send(request.body(Vec::new()).unwrap()).status
    });
    assert_eq!(statuses, [200, 429, 429, 429]);
}

#[test]
fn empty_header_counts_as_missing() {
    let server = Server::start(PER_API_KEY_POLICY);
    let client = Client::new(&server);
    assert_eq!(
        [(); 2].map(|()| auth_status_for_api_key(&client, b"")),
        [429; 2],
        "`when_missing: deny` denies it"
    );
    let skipping_server =
        Server::start("rules: [{ name: a, per: [header.x-api-key], limits: [1/h] }]");
    let client = Client::new(&skipping_server);
    assert_eq!(
        [(); 3].map(|()| auth_status_for_api_key(&client, b"")),
        [200; 3],
        "they share no counter"
    );
}

#[test]
fn many_or_long_unrelated_headers_are_ignored() {
    let server = Server::start(PER_API_KEY_POLICY);
    let client = Client::new(&server);
    let status_with_headers = |count: usize, bytes: usize| {
        let request = Request::get("/v1/auth").header("x-api-key", format!("{count}-{bytes}"));
        let request = (0..count)
            .fold(request, |request, nth| request.header(format!("x-{nth}"), "v".repeat(bytes)));
        client.send(request.body(Vec::new()).unwrap()).status
    };
    for (count, bytes) in [(110, 1), (490, 1), (1, 60_000), (7, 9_000)] {
        assert_eq!(
            [(); 2].map(|()| status_with_headers(count, bytes)),
            [200, 429],
            "{count} of {bytes}"
        );
    }
    assert_eq!(status_with_headers(501, 1), 431);
    assert_eq!(status_with_headers(1, 66_000), 431);
}

#[test]
fn long_non_utf8_header_does_not_evade_ban() {
    let server = Server::start(PER_API_KEY_POLICY);
    let client = Client::new(&server);
    let evil = [&b"evil"[..], &[b'x'; 5_000], b"\xff"].concat();
    let request = Request::get("/v1/auth").header("x-api-key", "k").header("user-agent", evil);
    assert_eq!(client.send(request.body(Vec::new()).unwrap()).status, 429);
}

#[test]
fn repeated_headers_flag_selects_first_value_or_none() {
    let keys = [("x-api-key", "a"), ("x-api-key", "b")];
    let first_value_server = Server::start(PER_API_KEY_POLICY);
    let client = Client::new(&first_value_server);
    assert_eq!([(); 2].map(|()| send_auth_request(&client, "GET", "", &keys).status), [200, 429]);
    assert_eq!(
        send_auth_request(&client, "GET", "", &keys[1..]).status,
        200,
        "the first value counted"
    );
    let absent_server = Server::start_with(PER_API_KEY_POLICY, &["--repeated-headers", "absent"]);
    let client = Client::new(&absent_server);
    assert_eq!(send_auth_request(&client, "GET", "", &keys).status, 429);
    assert_eq!(
        send_auth_request(&client, "GET", "", &keys[..1]).status,
        200,
        "nothing was charged"
    );
}

#[test]
fn client_cannot_forge_its_address() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    // The proxy appends the last entry: the address of its client.
    let statuses =
        ["198.51.100.1, 192.0.2.7", "198.51.100.2, 192.0.2.7", "127.0.0.1, 192.0.2.7:5678"]
            .map(|forwarded_for| auth_status_for_forwarded_address(&client, forwarded_for));
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn trusted_proxies_in_chain_are_skipped() {
    let server = Server::start_with(PER_IP_POLICY, &["--trusted-proxies", "127.0.0.1, 10.0.0.0/8"]);
    let client = Client::new(&server);
    let statuses = ["192.0.2.7, 10.0.0.1", "192.0.2.7, 10.0.0.2", "192.0.2.7"]
        .map(|forwarded_for| auth_status_for_forwarded_address(&client, forwarded_for));
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn forwarded_ipv6_addresses_share_slash_64_counter() {
    let server = Server::start(PER_IP_POLICY);
    let client = Client::new(&server);
    let statuses = ["2001:db8::1", "[2001:db8:0:0:ffff::2]:443", "2001:db8::3", "2001:db8:0:1::1"]
        .map(|forwarded_for| auth_status_for_forwarded_address(&client, forwarded_for));
    assert_eq!(statuses, [200, 200, 429, 200]);
}

#[test]
fn untrusted_proxy_request_is_400_and_logged_once() {
    let server = Server::start_with(PER_IP_POLICY, &["--trusted-proxies", "10.0.0.0/8"]);
    let client = Client::new(&server);
    for _ in 0..3 {
        let response = send_auth_request(&client, "GET", "", &[("x-forwarded-for", "10.0.0.1")]);
        assert_eq!(response.status, 400);
        let problem = response.json();
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.starts_with("127.0.0.1 is not in --trusted-proxies (10.0.0.0/8)"));
    }
    let warning = server.wait_for_log("rejected forward-auth request");
    let fields = "peer=127.0.0.1 trusted_proxies=10.0.0.0/8 unlogged=0";
    assert!(warning.contains(fields), "{warning}");
    // Other endpoints need no trust.
    assert_eq!(client.check(&json!({"attributes": {"ip": "192.0.2.7"}})).status, 200);
    server.send_signal("TERM");
    let mut rest = std::iter::from_fn(|| server.next_log_line(std::time::Duration::from_secs(30)));
    assert!(!rest.any(|line| line.contains("rejected forward-auth request")));
}

#[test]
fn invalid_trusted_network_prevents_start() {
    let output = slidegate_command()
        .args(["serve", "--policy", "p.yaml", "--trusted-proxies", "127.0.0.1,10.0.0.0/33"])
        .output()
        .unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(
        !output.status.success() && stderr.contains("`10.0.0.0/33` is not a network"),
        "{stderr}"
    );
}

#[test]
fn denials_are_counted_for_any_deny_status() {
    let server = Server::start_with_admin(PER_IP_POLICY, &[]);
    let client = Client::new(&server);
    let from = [("x-forwarded-for", "192.0.2.7")];
    let queries = ["", "", "", "?deny_status=403", "?deny_status=500", "?deny_status=1"];
    let statuses = queries.map(|query| send_auth_request(&client, "GET", query, &from).status);
    assert_eq!(statuses, [200, 200, 429, 403, 500, 400]);
    let metrics = Client::with_address(server.admin_address()).call("GET", "/metrics").body;
    for (result, count) in [("allowed", 2), ("denied", 3), ("invalid", 1), ("error", 0)] {
        let line =
            format!("slidegate_requests_total{{protocol=\"http\",result=\"{result}\"}} {count}");
        assert!(metrics.contains(&line), "{line}\n{metrics}");
    }
}

#[test]
fn credentials_are_not_logged() {
    let policy = "rules: [{ name: a, per: [header.authorization], limits: [0/h] }]";
    let server = Server::start(policy);
    let denied =
        send_auth_request(&Client::new(&server), "GET", "", &[("Authorization", "Bearer s3cret")]);
    assert_eq!(denied.status, 429);
    let line = server.wait_for_log("denied");
    assert!(line.contains("header.authorization=") && !line.contains("s3cret"), "{line}");
}
