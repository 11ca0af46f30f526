//! Proxies that ask `/v1/auth`.

use std::net::SocketAddr;
use std::process::Command;

use serde_json::{Value, json};

use crate::common::Server;
use crate::curl::{Answer, curl};
use crate::installed;
use crate::process::{Proxy, deploy, free_address};
use crate::servers::{Folder, wait_until};
use crate::upstream::Upstream;

const POLICY: &str = "
routes: [/login]
rules:
  - { name: per-ip, per: [ip], limits: [3/h], algorithm: sliding_log }
  - { name: login, when: { method: POST, route: /login, host: shop.example }, limits: [1/h] }
  - { name: per-key, per: [header.x-api-key], limits: [1/h] }
";

/// Who is asked by a proxy.
struct Behind {
    slidegate: SocketAddr,
    service: SocketAddr,
}

impl Behind {
    /// Writes a file of `deploy/` that has these addresses in it.
    fn deploy(&self, folder: &Folder, file: &str, places: &[(&str, &str)]) -> String {
        let (slidegate, service) = (self.slidegate.to_string(), self.service.to_string());
        let both = [("127.0.0.1:8080", &*slidegate), ("127.0.0.1:9000", &*service)];
        deploy(folder, file, &[&both, places].concat())
    }
}

fn nginx(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site = behind.deploy(
        &folder,
        "nginx/slidegate.conf",
        &[("listen 80;", &format!("listen {address};"))],
    );
    let at = folder.path().to_str().unwrap();
    // What Debian's nginx.conf has around it; one process, so that none outlives it.
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {at}/{kind};"))
        .join(" ");
    let whole = format!(
        "daemon off; master_process off; pid {at}/pid; error_log {at}/error.log;\n\
         events {{}}\nhttp {{ access_log off; {temporary} include {site}; }}\n"
    );
    let config = folder.path().join("nginx.conf");
    std::fs::write(&config, whole).unwrap();
    let mut command = Command::new(installed("debian/usr/sbin/nginx"));
    command.arg("-e").arg(folder.path().join("error.log")).arg("-c").arg(config);
    Proxy::start(&mut command, address, folder)
}

fn caddy(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    let site = format!(":{} {{", address.port());
    let config = behind.deploy(&folder, "caddy/Caddyfile", &[(":80 {", &site)]);
    let mut command = Command::new(installed("caddy/bin/caddy"));
    command.args(["run", "--adapter", "caddyfile", "--config", &config]);
    command.env("HOME", folder.path()).env_remove("XDG_CONFIG_HOME").env_remove("XDG_DATA_HOME");
    command.env("CADDY_ADMIN", format!("unix/{}/admin", folder.path().display()));
    Proxy::start(&mut command, address, folder)
}

fn traefik(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    behind.deploy(&folder, "traefik/slidegate.yml", &[]);
    let at = folder.path().to_str().unwrap();
    let places = [("/etc/traefik", at), (":80\"", &format!("{address}\""))];
    let config = deploy(&folder, "traefik/traefik.yml", &places);
    let mut command = Command::new(installed("traefik/bin/traefik"));
    command.arg(format!("--configFile={config}"));
    Proxy::start(&mut command, address, folder)
}

fn haproxy(behind: &Behind) -> Proxy {
    let (folder, address) = (Folder::new(), free_address());
    deploy(&folder, "haproxy/slidegate.lua", &[]);
    let at = folder.path().to_str().unwrap();
    let places = [("/etc/haproxy", at), ("bind :80", &format!("bind {address}"))];
    let config = behind.deploy(&folder, "haproxy/haproxy.cfg", &places);
    let mut command = Command::new(installed("debian/usr/sbin/haproxy"));
    command.args(["-db", "-f", &config]);
    Proxy::start(&mut command, address, folder)
}

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
    let behind = Behind { slidegate: server.address(), service: upstream.address() };
    let proxy = start(&behind);
    wait_until("the proxy asks slidegate", || tells(&proxy, can));

    passes_then_is_denied(&proxy, &upstream, can);
    sees_what_was_asked(&proxy);
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
