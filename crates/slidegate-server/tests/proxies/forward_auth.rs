//! Proxies that ask `/v1/auth`.

use serde_json::{Value, json};

use crate::common::Server;
use crate::curl::{Answer, curl};
use crate::launch::{Behind, caddy, haproxy, nginx, traefik};
use crate::process::Proxy;
use crate::servers::wait_until;
use crate::upstream::Upstream;

const POLICY: &str = "
routes: [/login]
rules:
  - { name: per-ip, per: [ip], limits: [3/h], algorithm: sliding_log }
  - { name: login, when: { method: POST, route: /login, host: shop.example }, limits: [1/h] }
  - { name: per-key, per: [header.x-api-key], limits: [1/h] }
  - { name: banned, when: { header.x-api-key: banned }, limits: denied, deny_status: 403 }
  - { name: gone, when: { header.x-api-key: gone }, limits: denied, deny_status: 410 }
";

/// What a proxy can do.
struct Can {
    /// Its client gets the headers of what passes; else only the service does.
    tells_client: bool,
    /// Its client gets the body of a denial as slidegate wrote it.
    hands_on_body: bool,
    /// The status without slidegate: 200, if everything passes then.
    without: u16,
}

/// Asks as a client of this address; its forged header shall not change a thing.
fn ask(proxy: &Proxy, from: u8, path: &str, arguments: &[&str]) -> Answer {
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
    curl(proxy.address, from, path, &[&forged.concat(), arguments].concat())
}

/// What every proxy does, as far as it can.
fn hold(start: fn(&Behind) -> Proxy, can: &Can) {
    let upstream = Upstream::start();
    let server = Server::start(POLICY);
    let behind = Behind { slidegate: server.address(), service: upstream.address(), edits: &[] };
    let proxy = start(&behind);
    wait_until("the proxy asks slidegate", || tells(&proxy, can));

    passes_then_is_denied(&proxy, &upstream, can);
    sees_what_was_asked(&proxy);
    denies_by_every_status(&proxy, &upstream);
    goes_on_without_slidegate(&proxy, server, can);
}

/// Whether slidegate is asked: Traefik reads its files while it listens, and HAProxy has to find out who is there.
fn tells(proxy: &Proxy, can: &Can) -> bool {
    let answer = ask(proxy, 99, "/", &[]);
    answer.status == 429
        || answer.status == 200 && (!can.tells_client || answer.header("ratelimit").is_some())
}

fn passes_then_is_denied(proxy: &Proxy, upstream: &Upstream, can: &Can) {
    for left in [2, 1, 0] {
        let answer = ask(proxy, 2, "/a?domain=other&deny_status=418", &["-d", "abc"]);
        assert_eq!(answer.status, 200, "{answer:?}");
        assert!(answer.body.starts_with("POST /a?domain=other&deny_status=418 abc\n"));
        let policy = r#""per-ip";q=3;w=3600"#;
        let limit = format!(r#""per-ip";r={left};t="#);
        if can.tells_client {
            assert_eq!(answer.header("ratelimit-policy"), Some(policy));
            assert!(answer.header("ratelimit").unwrap().starts_with(&limit), "{answer:?}");
        } else {
            assert!(answer.body.contains(&format!("\nratelimit-policy: {policy}\n")));
            assert!(answer.body.contains(&format!("\nratelimit: {limit}")), "{answer:?}");
        }
        assert_eq!(answer.header("retry-after"), None);
    }
    let asked = upstream.asked();
    let denied = ask(proxy, 2, "/a?deny_status=418", &["-d", "abc"]);
    assert_eq!(upstream.asked(), asked, "what is denied does not reach the service");
    assert_denied(&denied, can);
    // A client that is counted apart is served.
    assert_eq!(ask(proxy, 3, "/", &[]).status, 200);
    assert_eq!(ask(proxy, 2, "/", &["--head"]).status, 429);
}

fn assert_denied(denied: &Answer, can: &Can) {
    assert_eq!(
        (denied.status, denied.header("content-type")),
        (429, Some("application/problem+json"))
    );
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
    if can.hands_on_body {
        expected["reason"] = json!("limit_exceeded");
        expected["violated-policies"] = json!(["per-ip"]);
    }
    assert_eq!(serde_json::from_str::<Value>(&denied.body).unwrap(), expected);
}

/// Method, path, host and headers come to slidegate.
fn sees_what_was_asked(proxy: &Proxy) {
    assert_eq!(ask(proxy, 10, "/login?a", &["-d", "abc"]).status, 200);
    assert_eq!(ask(proxy, 11, "/login?b", &["-d", "abc"]).status, 429);
    assert_eq!(ask(proxy, 11, "/%6Cogin", &["-d", "abc"]).status, 429);
    assert_eq!(ask(proxy, 11, "/login", &[]).status, 200);
    let with_key = |from| ask(proxy, from, "/", &["-H", "X-Api-Key: k1"]).status;
    assert_eq!([with_key(12), with_key(13)], [200, 429]);
}

/// Some proxies pass certain statuses only, so the client may get another one than that of the rule.
fn denies_by_every_status(proxy: &Proxy, upstream: &Upstream) {
    for key in ["X-Api-Key: banned", "X-Api-Key: gone"] {
        let asked = upstream.asked();
        let denied = ask(proxy, 14, "/", &["-H", key]);
        assert!((400..500).contains(&denied.status), "{key}: {denied:?}");
        assert_eq!(upstream.asked(), asked, "{key}: it does not reach the service");
    }
}

fn goes_on_without_slidegate(proxy: &Proxy, server: Server, can: &Can) {
    drop(server);
    let answer = ask(proxy, 2, "/without", &["-d", "abc"]);
    assert_eq!(answer.status, can.without, "{answer:?}");
    if can.without == 200 {
        assert_eq!(answer.body, "POST /without abc\nratelimit: forged\n");
        assert_eq!(answer.header("ratelimit"), None);
    }
}

#[test]
fn nginx_asks_and_tells() {
    hold(nginx, &Can { tells_client: true, hands_on_body: false, without: 200 });
}

#[test]
fn caddy_asks_and_tells() {
    hold(caddy, &Can { tells_client: true, hands_on_body: true, without: 200 });
}

#[test]
fn traefik_asks_and_tells() {
    hold(traefik, &Can { tells_client: false, hands_on_body: true, without: 500 });
}

#[test]
fn haproxy_asks_and_tells() {
    hold(haproxy, &Can { tells_client: true, hands_on_body: true, without: 200 });
}
