//! Tests of layers that identify clients by API key or address, and of requests with neither of them.

use axum::Router;
use slidegate::Store;
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, WhenMissing, extract};

use crate::layer::fixture::{
    MINUTE, StoreFixture, TestClient, hello_router, serve, serve_without_peers,
};

const TRUSTED_PROXIES: &str = "127.0.0.1,10.0.0.0/8";

/// Returns two routers, one over a limiter and one over a gate. Each router allows one request per minute for each API
/// key.
fn routers_limited_per_api_key(
    fixture: &StoreFixture<impl Store>,
    when_missing: WhenMissing,
) -> [Router; 2] {
    let limiter = fixture.limiter(1, MINUTE).named("per-key");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::api_key(), when_missing);
    let gate = fixture.gate(&format!(
        "rules: [{{ name: per-key, per: [api_key], limits: [1/min], when_missing: {} }}]",
        match when_missing {
            WhenMissing::Skip => "skip",
            WhenMissing::Deny => "deny",
        }
    ));
    let gate = RateLimitLayer::new(gate, Attributes::new().with("api_key", extract::api_key()));
    [hello_router().layer(limiter), hello_router().layer(gate)]
}

/// Returns two routers, one over a limiter and one over a gate. Each router allows one request per minute for each
/// client address.
fn routers_limited_per_client_address(
    fixture: &StoreFixture<impl Store>,
    trusted: &str,
) -> [Router; 2] {
    let ip = || extract::client_ip(trusted.parse::<TrustedProxies>().unwrap());
    let limiter = fixture.limiter(1, MINUTE).named("per-ip");
    let limiter = RateLimitLayer::keyed_by(limiter, ip(), WhenMissing::Deny);
    let gate =
        fixture.gate("rules: [{ name: per-ip, per: [ip], limits: [1/min], when_missing: deny }]");
    let gate = RateLimitLayer::new(gate, Attributes::new().with("ip", ip()));
    [hello_router().layer(limiter), hello_router().layer(gate)]
}

/// Sends a request with this `X-Forwarded-For` header, and returns the status of the response.
async fn status_with_forwarded_for(http: &TestClient, forwarded_for: &str) -> u16 {
    http.get_with_header("x-forwarded-for", forwarded_for).await.status
}

#[tokio::test]
async fn api_keys_are_counted_separately() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_api_key(&fixture, WhenMissing::Deny) {
            let http = serve(app).await;
            for (key, status) in [("k1", 200), ("k1", 429), ("k2", 200), ("K1", 200), ("k2", 429)] {
                assert_eq!(
                    http.get_with_header("x-api-key", key).await.status,
                    status,
                    "{key} {fixture:?}"
                );
            }
            let bearer = http.get_with_header("authorization", "Bearer k1").await;
            assert_eq!(bearer.status, 429, "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn missing_api_key_with_skip_is_allowed() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_api_key(&fixture, WhenMissing::Skip) {
            let http = serve(app).await;
            for value in ["", "", ""] {
                let response = http.get_with_header("x-api-key", value).await;
                assert_eq!((response.status, &*response.body), (200, "hello"), "{fixture:?}");
                assert!(response.header("ratelimit").is_none());
            }
            assert_eq!(http.get_with_header("x-api-key", "k1").await.status, 200);
        }
    });
}

#[tokio::test]
async fn missing_api_key_with_deny_is_denied() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_api_key(&fixture, WhenMissing::Deny) {
            let http = serve(app).await;
            let response = http.get("/").await;
            assert_eq!((response.status, response.retry_after()), (429, None), "{fixture:?}");
            assert_eq!(response.json()["violated-policies"][0], "per-key");
            assert_eq!(http.get_with_header("x-api-key", "k1").await.status, 200);
        }
    });
}

#[tokio::test]
async fn request_with_unknown_peer_address_lacks_key() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_client_address(&fixture, TRUSTED_PROXIES) {
            let http = serve_without_peers(app).await;
            assert_eq!(http.get("/").await.status, 429, "{fixture:?}");
            assert_eq!(status_with_forwarded_for(&http, "192.0.2.7").await, 429, "{fixture:?}");
        }
        let limiter = fixture.limiter(1, MINUTE);
        let ip = extract::client_ip(TrustedProxies::none());
        let skipping = RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Skip);
        let http = serve_without_peers(hello_router().layer(skipping)).await;
        for _ in 0..3 {
            assert_eq!(http.get("/").await.status, 200, "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn forwarding_headers_of_untrusted_peer_are_ignored() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_client_address(&fixture, "none") {
            let http = serve(app).await;
            assert_eq!(status_with_forwarded_for(&http, "192.0.2.1").await, 200, "{fixture:?}");
            for spoofed in ["192.0.2.2", "127.0.0.1", "10.0.0.1, 192.0.2.3", "::1", "rubbish"] {
                assert_eq!(
                    status_with_forwarded_for(&http, spoofed).await,
                    429,
                    "{spoofed} {fixture:?}"
                );
            }
            for name in ["x-real-ip", "forwarded", "x-client-ip", "cf-connecting-ip"] {
                assert_eq!(
                    http.get_with_header(name, "192.0.2.9").await.status,
                    429,
                    "{name} {fixture:?}"
                );
            }
        }
    });
}

#[tokio::test]
async fn forwarded_address_of_trusted_proxy_is_used() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_client_address(&fixture, TRUSTED_PROXIES) {
            let http = serve(app).await;
            for (forwarded_for, status) in [
                ("192.0.2.7", 200),
                ("192.0.2.7", 429),
                ("198.51.100.1, 192.0.2.7", 429),
                ("192.0.2.8, 192.0.2.7, 10.0.0.1", 429),
                ("192.0.2.7, 192.0.2.8", 200),
                ("::ffff:192.0.2.7", 429),
                ("192.0.2.8:4711", 429),
            ] {
                assert_eq!(
                    status_with_forwarded_for(&http, forwarded_for).await,
                    status,
                    "{forwarded_for}"
                );
            }
        }
    });
}

#[tokio::test]
async fn malformed_forwarding_header_counts_for_proxy_address() {
    let malformed = [
        "",
        ",",
        "unknown",
        "_hidden",
        "192.0.2",
        "192.0.2.256",
        "192.0.2.7:x",
        "[::1",
        "::1]",
        "a.example",
        "192.0.2.7, for=192.0.2.8",
    ];
    with_both_stores!(|fixture| {
        for app in routers_limited_per_client_address(&fixture, TRUSTED_PROXIES) {
            let http = serve(app).await;
            assert_eq!(http.get("/").await.status, 200);
            for value in malformed {
                assert_eq!(
                    status_with_forwarded_for(&http, value).await,
                    429,
                    "`{value}` {fixture:?}"
                );
            }
            let bytes = http.request("/").header("x-forwarded-for", &b"\xff\xfe"[..]);
            assert_eq!(http.send(bytes).await.status, 429, "{fixture:?}");
        }
    });
}

#[tokio::test]
async fn addresses_in_ipv6_network_share_counter() {
    with_both_stores!(|fixture| {
        for app in routers_limited_per_client_address(&fixture, TRUSTED_PROXIES) {
            let http = serve(app).await;
            for (forwarded_for, status) in [
                ("2001:db8:0:1::1", 200),
                ("2001:db8:0:1:ffff::2", 429),
                ("[2001:db8:0:1::3]:443", 429),
                ("2001:db8:0:2::1", 200),
                ("2001:db8:0:2::2", 429),
            ] {
                let actual = status_with_forwarded_for(&http, forwarded_for).await;
                assert_eq!(actual, status, "{forwarded_for} {fixture:?}");
            }
        }
    });
}
