//! Tests of nginx, Caddy, Traefik and HAProxy, which call `/v1/auth` of slidegate for each client request.

use serde_json::{Value, json};

use crate::common::Server;
use crate::proxies::curl::{CurlResponse, send_with_curl};
use crate::proxies::launch::{
    Backends, start_caddy, start_haproxy, start_nginx, start_traefik,
    start_traefik_with_entry_point,
};
use crate::proxies::process::Proxy;
use crate::proxies::upstream::Upstream;
use crate::redis_server::wait_until;

const POLICY: &str = "
routes: [/login]
rules:
  - { name: per-ip, per: [ip], limits: [3/h], algorithm: sliding_log }
  - { name: login, when: { method: POST, route: /login, host: shop.example }, limits: [1/h] }
  - { name: per-key, per: [header.x-api-key], limits: [1/h] }
  - { name: banned, when: { header.x-api-key: banned }, limits: denied, deny_status: 403 }
  - { name: gone, when: { header.x-api-key: gone }, limits: denied, deny_status: 410 }
";

/// Features that differ between the proxies.
struct ProxyFeatures {
    /// Whether the client receives the rate-limit headers of allowed requests. Otherwise only the service
    /// behind the proxy receives the headers.
    sends_headers_to_client: bool,
    /// Whether the client receives the response body that slidegate returns for a denial.
    forwards_denial_body: bool,
    /// The response status of all requests while slidegate is down. 200 means that the proxy fails open.
    status_without_slidegate: u16,
}

/// Sends a request through the proxy from 127.0.0.`from`, with forged `X-Forwarded-*` and similar headers that must not
/// have an effect.
fn send_forged_request(proxy: &Proxy, from: u8, path: &str, arguments: &[&str]) -> CurlResponse {
    let forged = [
        ["-H", "X-Forwarded-For: 198.51.100.1"],
        ["-H", "X-Forwarded-Method: HEAD"],
        ["-H", "X-Forwarded-Uri: /forged"],
        ["-H", "X-Forwarded-Host: forged.example"],
        ["-H", "X-Real-IP: 198.51.100.2"],
        ["-H", "Forwarded: for=198.51.100.3"],
        ["-H", "RateLimit: forged"],
        ["-H", "Host: shop.example"],
    ];
    send_with_curl(proxy.address, from, path, &[&forged.concat(), arguments].concat())
}

/// Starts a proxy, slidegate and a service, and runs all checks of this module.
fn check_proxy_integration(start: fn(&Backends) -> Proxy, features: &ProxyFeatures) {
    let upstream = Upstream::start();
    let server = Server::start(POLICY);
    let backends =
        Backends { slidegate: server.address(), service: upstream.address(), edits: &[] };
    let proxy = start(&backends);
    wait_until("the proxy calls slidegate", || is_proxy_calling_slidegate(&proxy, features));

    check_limit_and_denial(&proxy, &upstream, features);
    check_forwarded_attributes(&proxy);
    check_custom_denial_statuses(&proxy, &upstream);
    check_responses_without_slidegate(&proxy, server, features);
}

/// Sends a request, and returns `true` if the proxy already calls slidegate. Traefik reads its configuration only after
/// it listens, and HAProxy first checks the health of its servers.
fn is_proxy_calling_slidegate(proxy: &Proxy, features: &ProxyFeatures) -> bool {
    let response = send_forged_request(proxy, 99, "/", &[]);
    response.status == 429
        || response.status == 200
            && (!features.sends_headers_to_client || response.header("ratelimit").is_some())
}

/// Checks that the proxy enforces the limit of three requests, and that the response headers are correct.
fn check_limit_and_denial(proxy: &Proxy, upstream: &Upstream, features: &ProxyFeatures) {
    for remaining in [2, 1, 0] {
        let response =
            send_forged_request(proxy, 2, "/a?domain=other&deny_status=418", &["-d", "abc"]);
        assert_eq!(response.status, 200, "{response:?}");
        assert!(response.body.starts_with("POST /a?domain=other&deny_status=418 abc\n"));
        let policy = r#""per-ip";q=3;w=3600"#;
        let limit = format!(r#""per-ip";r={remaining}"#);
        if features.sends_headers_to_client {
            assert_eq!(response.header("ratelimit-policy"), Some(policy));
            assert!(response.header("ratelimit").unwrap().starts_with(&limit), "{response:?}");
        } else {
            assert!(response.body.contains(&format!("\nratelimit-policy: {policy}\n")));
            assert!(response.body.contains(&format!("\nratelimit: {limit}")), "{response:?}");
        }
        assert_eq!(response.header("retry-after"), None);
        assert_eq!(response.header("cache-control"), None);
    }
    let forwarded_before = upstream.request_count();
    let denied = send_forged_request(proxy, 2, "/a?deny_status=418", &["-d", "abc"]);
    assert_eq!(upstream.request_count(), forwarded_before, "a denied request reached the service");
    assert_denied(&denied, features);
    // A client with another counter is served.
    assert_eq!(send_forged_request(proxy, 3, "/", &[]).status, 200);
    assert_eq!(send_forged_request(proxy, 2, "/", &["--head"]).status, 429);
}

fn assert_denied(denied: &CurlResponse, features: &ProxyFeatures) {
    assert_eq!(
        (denied.status, denied.header("content-type")),
        (429, Some("application/problem+json"))
    );
    assert_eq!(denied.header("cache-control"), Some("no-store"));
    assert_eq!(denied.header("ratelimit-policy"), Some(r#""per-ip";q=3;w=3600"#));
    let limit = denied.header("ratelimit").unwrap();
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert_eq!(limit, format!(r#""per-ip";r=0;t={wait}"#));
    assert!((3_500..=3_601).contains(&wait), "{wait}");
    let mut expected = json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Quota exceeded",
        "status": 429
    });
    if features.forwards_denial_body {
        expected["reason"] = json!("limit_exceeded");
        expected["violated-policies"] = json!(["per-ip"]);
    }
    assert_eq!(serde_json::from_str::<Value>(&denied.body).unwrap(), expected);
}

/// Checks that rules match the method, path, host and headers of the client request.
fn check_forwarded_attributes(proxy: &Proxy) {
    assert_eq!(send_forged_request(proxy, 10, "/login?a", &["-d", "abc"]).status, 200);
    assert_eq!(send_forged_request(proxy, 11, "/login?b", &["-d", "abc"]).status, 429);
    assert_eq!(send_forged_request(proxy, 11, "/%6Cogin", &["-d", "abc"]).status, 429);
    assert_eq!(send_forged_request(proxy, 11, "/login", &[]).status, 200);
    for path in ["/a/..%2flogin", "/a//../login", "/.%2flogin", "/a%5c..%5clogin"] {
        let ambiguous = send_forged_request(proxy, 11, path, &["--path-as-is", "-d", "abc"]);
        assert!((400..500).contains(&ambiguous.status), "{path}: {ambiguous:?}");
    }
    let with_key = |from| send_forged_request(proxy, from, "/", &["-H", "X-Api-Key: k1"]).status;
    assert_eq!([with_key(12), with_key(13)], [200, 429]);
}

/// Checks that requests are denied if the rule has a `deny_status` other than 429. The client receives a 4xx status.
/// Some proxies replace `deny_status` with another 4xx status.
fn check_custom_denial_statuses(proxy: &Proxy, upstream: &Upstream) {
    for key in ["X-Api-Key: banned", "X-Api-Key: gone"] {
        let forwarded_before = upstream.request_count();
        let denied = send_forged_request(proxy, 14, "/", &["-H", key]);
        assert!((400..500).contains(&denied.status), "{key}: {denied:?}");
        assert_eq!(
            upstream.request_count(),
            forwarded_before,
            "{key}: a denied request reached the service"
        );
    }
}

/// Stops slidegate. Checks the response status of requests, and that forged rate-limit headers do not reach the client.
fn check_responses_without_slidegate(proxy: &Proxy, server: Server, features: &ProxyFeatures) {
    drop(server);
    let response = send_forged_request(proxy, 2, "/without", &["-d", "abc"]);
    assert_eq!(response.status, features.status_without_slidegate, "{response:?}");
    if features.status_without_slidegate == 200 {
        assert_eq!(response.body, "POST /without abc\nratelimit: forged\n");
        assert_eq!(response.header("ratelimit"), None);
    }
}

#[test]
fn nginx_enforces_limits_and_sends_headers() {
    check_proxy_integration(
        start_nginx,
        &ProxyFeatures {
            sends_headers_to_client: true,
            forwards_denial_body: false,
            status_without_slidegate: 200,
        },
    );
}

#[test]
fn caddy_enforces_limits_and_sends_headers() {
    check_proxy_integration(
        start_caddy,
        &ProxyFeatures {
            sends_headers_to_client: true,
            forwards_denial_body: true,
            status_without_slidegate: 200,
        },
    );
}

#[test]
fn traefik_enforces_limits_and_sends_headers() {
    check_proxy_integration(
        start_traefik,
        &ProxyFeatures {
            sends_headers_to_client: false,
            forwards_denial_body: true,
            status_without_slidegate: 500,
        },
    );
}

#[test]
fn haproxy_enforces_limits_and_sends_headers() {
    check_proxy_integration(
        start_haproxy,
        &ProxyFeatures {
            sends_headers_to_client: true,
            forwards_denial_body: true,
            status_without_slidegate: 200,
        },
    );
}

/// Traefik behind another proxy trusts forwarded headers. A client must not choose its method and path by them.
#[test]
fn traefik_behind_proxy_ignores_forged_method_and_path() {
    let (server, upstream) = (Server::start(POLICY), Upstream::start());
    let edits =
        &[("      forwardAuth:\n", "      forwardAuth:\n        trustForwardHeader: true\n")];
    let backends = Backends { slidegate: server.address(), service: upstream.address(), edits };
    let trusted = "\n    forwardedHeaders:\n      insecure: true";
    let proxy = start_traefik_with_entry_point(&backends, trusted);
    let send = |header: &str| {
        let arguments = ["-H", "Host: shop.example", "-H", header, "-d", "abc"];
        send_with_curl(proxy.address, 2, "/login", &arguments).status
    };
    wait_until("Traefik calls slidegate", || send("X-None: 1") == 429);
    for header in ["X-Forwarded-Method: GET", "X-Forwarded-Uri: /x"] {
        assert_eq!(send(header), 429, "{header}");
    }
}

#[test]
fn haproxy_adds_no_headers_without_limit() {
    let policy = "rules: [{ name: a, when: { path: /limited }, limits: [1000000/h] }]";
    let (server, upstream) = (Server::start(policy), Upstream::start());
    let (slidegate, service) = (server.address(), upstream.address());
    let proxy = start_haproxy(&Backends { slidegate, service, edits: &[] });
    let limit_of = |path: &str| {
        let response = send_with_curl(proxy.address, 2, path, &[]);
        assert_eq!(response.status, 200);
        ["ratelimit-policy", "ratelimit"].map(|name| response.header(name).map(str::to_owned))
    };
    wait_until("HAProxy calls slidegate", || limit_of("/limited")[1].is_some());
    assert_eq!(limit_of("/free"), [None, None]);
}
