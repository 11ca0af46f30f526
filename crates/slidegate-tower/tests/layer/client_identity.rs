//! Who is counted: keys, addresses, and who has none.

use axum::Router;
use slidegate::Store;
use slidegate_tower::{Attributes, RateLimitLayer, TrustedProxies, WhenMissing, extract};

use crate::rig::{Http, MINUTE, Rig, hello, serve, serve_without_peers};

const TRUSTED: &str = "127.0.0.1,10.0.0.0/8";

/// One request a minute for each key, over a limiter and over a gate.
fn per_key(rig: &Rig<impl Store>, when_missing: WhenMissing) -> [Router; 2] {
    let limiter = rig.limiter(1, MINUTE).named("per-key");
    let limiter = RateLimitLayer::keyed_by(limiter, extract::api_key(), when_missing);
    let gate = rig.gate(&format!(
        "rules: [{{ name: per-key, per: [api_key], limits: [1/min], when_missing: {} }}]",
        match when_missing {
            WhenMissing::Skip => "skip",
            WhenMissing::Deny => "deny",
        }
    ));
    let gate = RateLimitLayer::new(gate, Attributes::new().with("api_key", extract::api_key()));
    [hello().layer(limiter), hello().layer(gate)]
}

/// One request a minute for each address, over a limiter and over a gate.
fn per_address(rig: &Rig<impl Store>, trusted: &str) -> [Router; 2] {
    let ip = || extract::client_ip(trusted.parse::<TrustedProxies>().unwrap());
    let limiter = rig.limiter(1, MINUTE).named("per-ip");
    let limiter = RateLimitLayer::keyed_by(limiter, ip(), WhenMissing::Deny);
    let gate =
        rig.gate("rules: [{ name: per-ip, per: [ip], limits: [1/min], when_missing: deny }]");
    let gate = RateLimitLayer::new(gate, Attributes::new().with("ip", ip()));
    [hello().layer(limiter), hello().layer(gate)]
}

/// Asks as the proxy that has written this.
async fn status_for(http: &Http, forwarded_for: &str) -> u16 {
    http.get_with("x-forwarded-for", forwarded_for).await.status
}

#[tokio::test]
async fn each_key_is_counted_apart() {
    with_both!(|rig| {
        for app in per_key(&rig, WhenMissing::Deny) {
            let http = serve(app).await;
            for (key, status) in [("k1", 200), ("k1", 429), ("k2", 200), ("K1", 200), ("k2", 429)] {
                assert_eq!(http.get_with("x-api-key", key).await.status, status, "{key} {rig:?}");
            }
            let bearer = http.get_with("authorization", "Bearer k1").await;
            assert_eq!(bearer.status, 429, "{rig:?}");
        }
    });
}

#[tokio::test]
async fn who_has_no_key_passes_uncounted_where_that_is_the_choice() {
    with_both!(|rig| {
        for app in per_key(&rig, WhenMissing::Skip) {
            let http = serve(app).await;
            for value in ["", "", ""] {
                let answer = http.get_with("x-api-key", value).await;
                assert_eq!((answer.status, &*answer.body), (200, "hello"), "{rig:?}");
                assert!(answer.header("ratelimit").is_none());
            }
            assert_eq!(http.get_with("x-api-key", "k1").await.status, 200);
        }
    });
}

#[tokio::test]
async fn who_has_no_key_is_denied_for_good_where_that_is_the_choice() {
    with_both!(|rig| {
        for app in per_key(&rig, WhenMissing::Deny) {
            let http = serve(app).await;
            let answer = http.get("/").await;
            assert_eq!((answer.status, answer.retry_after()), (429, None), "{rig:?}");
            assert_eq!(answer.json()["violated-policies"][0], "per-key");
            assert_eq!(http.get_with("x-api-key", "k1").await.status, 200);
        }
    });
}

#[tokio::test]
async fn a_server_that_does_not_tell_its_peers_makes_no_500_whatever_headers_say() {
    with_both!(|rig| {
        for app in per_address(&rig, TRUSTED) {
            let http = serve_without_peers(app).await;
            assert_eq!(http.get("/").await.status, 429, "{rig:?}");
            assert_eq!(status_for(&http, "192.0.2.7").await, 429, "{rig:?}");
        }
        let limiter = rig.limiter(1, MINUTE);
        let ip = extract::client_ip(TrustedProxies::none());
        let skipping = RateLimitLayer::keyed_by(limiter, ip, WhenMissing::Skip);
        let http = serve_without_peers(hello().layer(skipping)).await;
        for _ in 0..3 {
            assert_eq!(http.get("/").await.status, 200, "{rig:?}");
        }
    });
}

#[tokio::test]
async fn who_is_no_proxy_of_ours_gains_nothing_by_the_headers_of_one() {
    with_both!(|rig| {
        for app in per_address(&rig, "none") {
            let http = serve(app).await;
            assert_eq!(status_for(&http, "192.0.2.1").await, 200, "{rig:?}");
            for made_up in ["192.0.2.2", "127.0.0.1", "10.0.0.1, 192.0.2.3", "::1", "rubbish"] {
                assert_eq!(status_for(&http, made_up).await, 429, "{made_up} {rig:?}");
            }
            for name in ["x-real-ip", "forwarded", "x-client-ip", "cf-connecting-ip"] {
                assert_eq!(http.get_with(name, "192.0.2.9").await.status, 429, "{name} {rig:?}");
            }
        }
    });
}

#[tokio::test]
async fn one_trusted_hop_is_believed_and_what_the_client_wrote_before_it_is_not() {
    with_both!(|rig| {
        for app in per_address(&rig, TRUSTED) {
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
                assert_eq!(status_for(&http, forwarded_for).await, status, "{forwarded_for}");
            }
        }
    });
}

#[tokio::test]
async fn forwarding_headers_that_make_no_sense_are_counted_for_who_has_sent_them() {
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
    with_both!(|rig| {
        for app in per_address(&rig, TRUSTED) {
            let http = serve(app).await;
            assert_eq!(http.get("/").await.status, 200);
            for wrong in malformed {
                assert_eq!(status_for(&http, wrong).await, 429, "`{wrong}` {rig:?}");
            }
            let bytes = http.request("/").header("x-forwarded-for", &b"\xff\xfe"[..]);
            assert_eq!(http.send(bytes).await.status, 429, "{rig:?}");
        }
    });
}

#[tokio::test]
async fn addresses_of_one_ipv6_network_share_a_count() {
    with_both!(|rig| {
        for app in per_address(&rig, TRUSTED) {
            let http = serve(app).await;
            for (forwarded_for, status) in [
                ("2001:db8:0:1::1", 200),
                ("2001:db8:0:1:ffff::2", 429),
                ("[2001:db8:0:1::3]:443", 429),
                ("2001:db8:0:2::1", 200),
                ("2001:db8:0:2::2", 429),
            ] {
                let seen = status_for(&http, forwarded_for).await;
                assert_eq!(seen, status, "{forwarded_for} {rig:?}");
            }
        }
    });
}
