//! Tests of `deploy/nginx-and-envoy`: requests through nginx and through Envoy share their counters.

use std::fs;

use crate::common::Server;
use crate::common::project_path;
use crate::proxies::curl::{CurlResponse, send_with_curl};
use crate::proxies::envoy::start_envoy;
use crate::proxies::launch::{Backends, start_nginx_with_file};
use crate::proxies::process::Proxy;
use crate::proxies::upstream::Upstream;

const ENVOY_FILE: &str = "deploy/nginx-and-envoy/envoy.yaml";

/// nginx and Envoy in front of one service, and one slidegate server for both.
struct BothProxies {
    nginx: Proxy,
    envoy: Proxy,
    _server: Server,
    _upstream: Upstream,
}

impl BothProxies {
    /// Starts both proxies with the policy in `deploy/`, whose windows are longer, so that the tests do not depend on
    /// time.
    fn start() -> Self {
        Self::start_with_total("1000/s")
    }

    /// Starts both proxies with another limit of all requests.
    fn start_with_total(total: &str) -> Self {
        let policy = fs::read_to_string(project_path("deploy/nginx-and-envoy/policy.yaml"));
        let policy = policy.unwrap().replace("[1000/s]", &format!("[{total}]"));
        let policy = policy.replace("/s", "/d").replace("/min", "/d");
        let (server, upstream) = (Server::start_with_grpc(&policy, &[]), Upstream::start());
        let (slidegate, service) = (server.address(), upstream.address());
        let backends = Backends { slidegate, service, edits: &[] };
        let nginx = start_nginx_with_file(&backends, "nginx-and-envoy/slidegate.conf");
        let envoy = start_envoy(&project_path(ENVOY_FILE), server.grpc_address(), service, &[]);
        Self { nginx, envoy, _server: server, _upstream: upstream }
    }

    /// Sends a request from 127.0.0.`from` through each proxy, nginx first. Returns the statuses.
    fn send_to_both(&self, from: u8, path: &str, arguments: &[&str]) -> [u16; 2] {
        [&self.nginx, &self.envoy]
            .map(|proxy| send_with_curl(proxy.address, from, path, arguments).status)
    }
}

#[track_caller]
fn assert_denied_by(response: &CurlResponse, limit: &str) {
    assert_eq!(response.status, 429, "{response:?}");
    let remaining = response.header("ratelimit").unwrap();
    assert!(remaining.starts_with(&format!("\"{limit}\";r=0")), "{remaining}");
}

#[test]
fn nginx_and_envoy_share_counters() {
    let both = BothProxies::start();
    // Without a key: five requests per address, also with an empty key.
    for arguments in [&[][..], &["-H", "x-api-key;"]] {
        assert_eq!(both.send_to_both(2, "/", arguments), [200, 200]);
    }
    assert_eq!(both.send_to_both(2, "/", &[]), [200, 429]);
    for proxy in [&both.nginx, &both.envoy] {
        assert_denied_by(&send_with_curl(proxy.address, 2, "/", &[]), "anonymous");
    }

    // With a key: ten requests, from any address. A client cannot choose its plan or address by headers.
    let forged = ["-H", "x-api-key: k1", "-H", "x-plan: pro", "-H", "x-client-ip: 192.0.2.1"];
    for from in 2..7 {
        assert_eq!(both.send_to_both(from, "/", &forged), [200, 200]);
    }
    for proxy in [&both.nginx, &both.envoy] {
        assert_denied_by(&send_with_curl(proxy.address, 7, "/", &forged), "per-key.1d");
    }

    // Only the first key counts, and only in this spelling: others have the limit of the plan free.
    for keys in [&["x-api-key: k2", "x-api-key: k-pro-1"][..], &["x-api-key: K-PRO-1"]] {
        let arguments: Vec<&str> = keys.iter().flat_map(|key| ["-H", key]).collect();
        for proxy in [&both.nginx, &both.envoy] {
            let response = send_with_curl(proxy.address, 8, "/", &arguments);
            let policy = response.header("ratelimit-policy").unwrap();
            assert!(policy.contains("q=10;") && !policy.contains("q=100;"), "{keys:?}: {policy}");
        }
    }

    // The plan pro has a larger limit.
    for _ in 0..8 {
        assert_eq!(both.send_to_both(8, "/", &["-H", "x-api-key: k-pro-1"]), [200, 200]);
    }

    // Logins: five requests per address, in any spelling of the path, with any key.
    let login = ["-X", "POST", "-H", "x-api-key: k-pro-1"];
    for path in ["/login", "/login?next=/"] {
        assert_eq!(both.send_to_both(9, path, &login), [200, 200]);
    }
    assert_eq!(both.send_to_both(9, "/%6Cogin", &login), [200, 429]);
    for path in ["/LOGIN", "/login/", "//login"] {
        assert_eq!(both.send_to_both(9, path, &login), [429, 429], "{path}");
    }
    assert_eq!(both.send_to_both(9, "/login", &["-H", "x-api-key: k-pro-1"]), [200, 200]);
}

/// nginx uses the text before the first comma, and Envoy the whole value, so that these keys have separate counters.
#[test]
fn key_with_comma_has_separate_counters() {
    let both = BothProxies::start();
    let key = ["-H", "x-api-key: a,b"];
    for _ in 0..10 {
        assert_eq!(both.send_to_both(2, "/", &key), [200, 200]);
    }
    assert_eq!(both.send_to_both(2, "/", &key), [429, 429]);
    let first = ["-H", "x-api-key: a"];
    assert_eq!(both.send_to_both(2, "/", &first), [429, 429], "nginx has used up the key `a`");
}

/// All requests through both proxies are charged to the rule `everybody`.
#[test]
fn total_counts_requests_of_both_proxies() {
    let both = BothProxies::start_with_total("4/s");
    for from in [2, 3] {
        assert_eq!(both.send_to_both(from, "/", &[]), [200, 200]);
    }
    for proxy in [&both.nginx, &both.envoy] {
        assert_denied_by(&send_with_curl(proxy.address, 4, "/", &[]), "everybody");
    }
}
