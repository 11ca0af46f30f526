//! Tests of hostile requests. After a client has exhausted its limit, no hostile request of that client may reach the
//! service behind any proxy.

pub mod requests;

use crate::common::Server;
use crate::common::project_path;
use crate::proxies::envoy;
use crate::proxies::launch::{Backends, start_caddy, start_haproxy, start_nginx, start_traefik};
use crate::proxies::process::Proxy;
use crate::proxies::raw_client::send_bytes;
use crate::proxies::upstream::Upstream;
use crate::redis_server::wait_until;

use requests::{
    build_get_request, build_request, hostile_requests, requests_with_exhausted_key_spellings,
};

/// A policy that counts requests by client address, and also by API key if the request has one. The first two rules are
/// for `/v1/auth`, the others for Envoy.
const PER_ADDRESS_POLICY: &str = "
rules:
  - { name: address, per: [ip], limits: [3/h] }
  - { name: key, per: [header.x-api-key], limits: [100000/h] }
  - { name: envoy-address, domain: edge, per: [remote_address], limits: [3/h] }
  - { name: envoy-key, domain: edge, per: [api_key], limits: [100000/h] }
";

/// A policy that counts requests by API key only.
const PER_API_KEY_POLICY: &str = "
rules:
  - { name: key, per: [header.x-api-key], limits: [1/h] }
  - { name: envoy-key, domain: edge, per: [api_key], limits: [1/h] }
";

/// The last byte of the address of the client that has exhausted its limit.
const EXHAUSTED_CLIENT_LAST_BYTE: u8 = 2;

/// The last byte of the address of a client that is within its limit.
const OTHER_CLIENT_LAST_BYTE: u8 = 99;

/// A function that starts a proxy in front of a service, with slidegate as the rate limiter.
type StartProxyFn = fn(&Server, &Upstream) -> Proxy;

/// A running proxy with slidegate and the service behind the proxy.
struct ProxySetup {
    proxy: Proxy,
    upstream: Upstream,
    _slidegate: Server,
}

impl ProxySetup {
    fn start(start: StartProxyFn, policy: &str) -> Self {
        let slidegate = Server::start_with_grpc(policy, &[]);
        let upstream = Upstream::start();
        let proxy = start(&slidegate, &upstream);
        Self { proxy, upstream, _slidegate: slidegate }
    }

    fn send_from_client(&self, from: u8, bytes: &[u8]) -> Option<u16> {
        send_bytes(self.proxy.address, from, bytes)
    }

    /// Sends the same request from 127.0.0.`from` until the response is a denial (429).
    fn exhaust_limit(&self, from: u8, bytes: &[u8]) {
        wait_until("the limit is exhausted", || self.send_from_client(from, bytes) == Some(429));
    }
}

/// Asserts that no hostile request reaches the service from an address that has exhausted its limit. Valid requests
/// from other addresses must reach the service.
fn assert_exhausted_address_is_blocked(start: StartProxyFn) {
    let setup = ProxySetup::start(start, PER_ADDRESS_POLICY);
    setup.exhaust_limit(EXHAUSTED_CLIENT_LAST_BYTE, &build_get_request(""));
    let forwarded_before = setup.upstream.request_count();
    let mut passed = Vec::new();
    for hostile in hostile_requests() {
        let before = setup.upstream.request_count();
        let status = setup.send_from_client(EXHAUSTED_CLIENT_LAST_BYTE, &hostile.bytes);
        if setup.upstream.request_count() > before {
            passed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert_eq!(
        setup.send_from_client(EXHAUSTED_CLIENT_LAST_BYTE, &build_get_request("")),
        Some(429),
        "the limit is no longer exhausted"
    );
    assert!(passed.is_empty(), "{} requests passed: {passed:#?}", passed.len());
    assert_eq!(setup.upstream.request_count(), forwarded_before, "a request passed later");

    // Valid requests of other clients pass, which excludes a proxy that rejects everything.
    assert_eq!(setup.send_from_client(OTHER_CLIENT_LAST_BYTE, &build_get_request("")), Some(200));
    let valid = hostile_requests().into_iter().filter(|hostile| hostile.is_valid);
    let mut failed = Vec::new();
    for (hostile, from) in valid.zip(100..) {
        let before = setup.upstream.request_count();
        let status = setup.send_from_client(from, &hostile.bytes);
        if setup.upstream.request_count() != before + 1 {
            failed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert!(failed.is_empty(), "valid requests of other clients failed: {failed:#?}");
}

/// Asserts that no request with the exhausted API key reaches the service, in any spelling of the key.
fn assert_exhausted_key_is_blocked(start: StartProxyFn) {
    let setup = ProxySetup::start(start, PER_API_KEY_POLICY);
    setup.exhaust_limit(EXHAUSTED_CLIENT_LAST_BYTE, &build_get_request("x-api-key: k\r\n"));
    let mut passed = Vec::new();
    for hostile in requests_with_exhausted_key_spellings() {
        let before = setup.upstream.request_count();
        let status = setup.send_from_client(EXHAUSTED_CLIENT_LAST_BYTE, &hostile.bytes);
        let heads = setup.upstream.heads_after(before);
        let has_key = |line: &String| line.to_ascii_lowercase().starts_with("x-api-key:");
        if hostile.is_valid && status != Some(429) || heads.iter().flatten().any(has_key) {
            passed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert!(passed.is_empty(), "{} requests passed: {passed:#?}", passed.len());
    assert_eq!(
        setup.send_from_client(
            EXHAUSTED_CLIENT_LAST_BYTE,
            &build_get_request("x-api-key: other\r\n")
        ),
        Some(200)
    );
}

/// Returns the addresses of slidegate and of the service for the configuration of a proxy.
fn proxy_backends(server: &Server, upstream: &Upstream) -> Backends {
    Backends { slidegate: server.address(), service: upstream.address(), edits: &[] }
}

/// Starts Envoy with its configuration file in `deploy/` and a longer timeout, so that Envoy does not fail open on a
/// busy machine.
fn start_envoy_with_long_timeout(server: &Server, upstream: &Upstream) -> Proxy {
    let replacements = [("timeout: 0.25s", "timeout: 10s")];
    let file = project_path("deploy/envoy/envoy.yaml");
    envoy::start_envoy(&file, server.grpc_address(), upstream.address(), &replacements)
}

#[test]
fn nginx_blocks_hostile_requests_from_exhausted_address() {
    assert_exhausted_address_is_blocked(|server, upstream| {
        start_nginx(&proxy_backends(server, upstream))
    });
}

#[test]
fn caddy_blocks_hostile_requests_from_exhausted_address() {
    assert_exhausted_address_is_blocked(|server, upstream| {
        start_caddy(&proxy_backends(server, upstream))
    });
}

#[test]
fn traefik_blocks_hostile_requests_from_exhausted_address() {
    assert_exhausted_address_is_blocked(|server, upstream| {
        start_traefik(&proxy_backends(server, upstream))
    });
}

#[test]
fn haproxy_blocks_hostile_requests_from_exhausted_address() {
    assert_exhausted_address_is_blocked(|server, upstream| {
        start_haproxy(&proxy_backends(server, upstream))
    });
}

#[test]
fn envoy_blocks_hostile_requests_from_exhausted_address() {
    assert_exhausted_address_is_blocked(start_envoy_with_long_timeout);
}

#[test]
fn nginx_blocks_exhausted_key_in_every_spelling() {
    assert_exhausted_key_is_blocked(|server, upstream| {
        start_nginx(&proxy_backends(server, upstream))
    });
}

#[test]
fn caddy_blocks_exhausted_key_in_every_spelling() {
    assert_exhausted_key_is_blocked(|server, upstream| {
        start_caddy(&proxy_backends(server, upstream))
    });
}

#[test]
fn traefik_blocks_exhausted_key_in_every_spelling() {
    assert_exhausted_key_is_blocked(|server, upstream| {
        start_traefik(&proxy_backends(server, upstream))
    });
}

#[test]
fn haproxy_blocks_exhausted_key_in_every_spelling() {
    assert_exhausted_key_is_blocked(|server, upstream| {
        start_haproxy(&proxy_backends(server, upstream))
    });
}

#[test]
fn envoy_blocks_exhausted_key_in_every_spelling() {
    assert_exhausted_key_is_blocked(start_envoy_with_long_timeout);
}

/// The Envoy configuration in `deploy/` meters tokens on the path `/v1/chat` only. Other spellings of the path must not
/// evade the token limit.
#[test]
fn envoy_enforces_token_limit_for_every_path_spelling() {
    const TOKEN_LIMIT_POLICY: &str = "
rules:
  - { name: t, domain: edge, when: { meter: tokens }, per: [api_key], limits: [9/h], charge: always }
";
    let setup = ProxySetup::start(start_envoy_with_long_timeout, TOKEN_LIMIT_POLICY);
    let chat = |path: &str| {
        let headers = "host: shop.example\r\nx-api-key: k\r\nx-tokens-used: 10\r\n";
        build_request(format!("GET {path} HTTP/1.1"), headers)
    };
    setup.exhaust_limit(EXHAUSTED_CLIENT_LAST_BYTE, &chat("/v1/chat"));
    let forwarded_before = setup.upstream.request_count();
    for path in [
        "/v1/%63hat",
        "/v1//chat",
        "/v1/./chat",
        "/%2e/v1/chat/",
        "/a/../v1/chat?x",
        "//v1/chat",
        "/v1%2fchat",
        "/v1%2F/chat",
        "/v1\\chat",
        "/v1%5cchat",
    ] {
        let status = setup.send_from_client(EXHAUSTED_CLIENT_LAST_BYTE, &chat(path));
        assert_eq!(setup.upstream.request_count(), forwarded_before, "{path}: {status:?}");
    }
    assert_eq!(setup.send_from_client(EXHAUSTED_CLIENT_LAST_BYTE, &chat("/v1")), Some(200));
}
