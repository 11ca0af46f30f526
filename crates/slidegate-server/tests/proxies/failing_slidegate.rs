//! Tests of the proxies while slidegate fails, rejects a request, or denies it because its store is down.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::proxies::hostile::requests::build_get_request;
use crate::proxies::launch::{Backends, start_caddy, start_haproxy, start_nginx, start_traefik};
use crate::proxies::process::Proxy;
use crate::proxies::raw_client::send_bytes;
use crate::proxies::upstream::Upstream;
use crate::redis_server::wait_until;

/// The last byte of the address of the client.
const CLIENT_LAST_BYTE: u8 = 2;

/// A server that replaces slidegate and gives every request the same response. Its health check succeeds.
struct FakeSlidegate {
    address: SocketAddr,
    request_count: Arc<AtomicUsize>,
}

impl FakeSlidegate {
    /// Starts the fake server, which responds with the status line `response` to every request except health checks. If
    /// `response` is empty, the server closes the connection instead. If `response` is `None`, the server never
    /// responds.
    fn start(response: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let request_count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&request_count);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                // A proxy may close the connection first.
                thread::spawn(move || respond_to_proxy(&stream, response, &counter));
            }
        });
        Self { address, request_count }
    }
}

/// Reads a request of the proxy, increments `request_count` unless the request is a health check, and writes the
/// response.
fn respond_to_proxy(
    mut stream: &TcpStream,
    response: Option<&str>,
    request_count: &AtomicUsize,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or(Ok(String::new()))?;
    while lines.next().is_some_and(|line| line.is_ok_and(|line| !line.is_empty())) {}
    if first.starts_with("GET /readyz") {
        return stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n");
    }
    request_count.fetch_add(1, Ordering::SeqCst);
    match response {
        Some("") => Ok(()),
        Some(status) => {
            let end = "content-length: 0\r\nconnection: close\r\n\r\n";
            stream.write_all(format!("HTTP/1.1 {status}\r\n{end}").as_bytes())
        }
        // The proxy gives up first.
        None => stream.read(&mut [0]).map(drop),
    }
}

/// Status lines of slidegate responses that reject a request. A proxy must deny the request after each of them, even if
/// the proxy fails open.
const SLIDEGATE_REJECTION_STATUSES: [&str; 8] = [
    "302 Found",
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "418 Teapot",
    "429 Too Many Requests",
    "431 Too Large",
];

/// Responses of a failing slidegate: an error status, a closed connection (an empty string), or no response (`None`).
const SLIDEGATE_FAILURE_RESPONSES: [Option<&str>; 6] =
    [Some("500 Error"), Some("502 Error"), Some("503 Error"), Some("504 Error"), Some(""), None];

/// Starts a proxy with these edits of its configuration file. Asserts that the proxy denies requests for which
/// slidegate responds with a status in [`SLIDEGATE_REJECTION_STATUSES`]. For [`SLIDEGATE_FAILURE_RESPONSES`], the proxy
/// must forward requests if `fails_open` is `true`, and deny them otherwise.
fn assert_fails_open_as_configured(
    start: fn(&Backends) -> Proxy,
    edits: &'static [(&'static str, &'static str)],
    fails_open: bool,
) {
    let send_with_response = |response| {
        let (upstream, slidegate) = (Upstream::start(), FakeSlidegate::start(response));
        let backends =
            Backends { slidegate: slidegate.address, service: upstream.address(), edits };
        let proxy = start(&backends);
        // Traefik reads its files after it listens, and HAProxy checks the health of its servers first.
        wait_until("the proxy calls slidegate", || {
            send_bytes(proxy.address, CLIENT_LAST_BYTE, &build_get_request(""));
            slidegate.request_count.load(Ordering::SeqCst) > 0
        });
        let before = upstream.request_count();
        (
            send_bytes(proxy.address, CLIENT_LAST_BYTE, &build_get_request("")),
            upstream.request_count() > before,
        )
    };
    for rejection in SLIDEGATE_REJECTION_STATUSES {
        let (status, has_passed) = send_with_response(Some(rejection));
        assert!(!has_passed && status != Some(200), "{rejection}: {status:?}");
        if rejection.starts_with('4') {
            assert!(status.is_some_and(|status| (400..500).contains(&status)), "{status:?}");
        }
    }
    for failure in SLIDEGATE_FAILURE_RESPONSES {
        let (status, has_passed) = send_with_response(failure);
        assert_eq!(
            (has_passed, status == Some(200)),
            (fails_open, fails_open),
            "{failure:?}: {status:?}"
        );
    }
}

/// The status line and the headers of slidegate's denial while its store is down.
const STORE_OUTAGE_DENIAL: &str = "503 Unavailable\r\ncontent-type: application/problem+json";

/// The same denial with `deny_status=403`.
const STORE_OUTAGE_DENIAL_TO_NGINX: &str = "403 Forbidden\r\ncontent-type: application/problem+json\r\nslidegate-reason: store_unavailable";

/// Asserts that the proxy denies a request with 503 if slidegate responds with `denial`. A rule with
/// `on_store_error: deny` denies this way while its store is down, which is a decision and not a failure of slidegate.
fn assert_store_outage_denial_is_enforced(start: fn(&Backends) -> Proxy, denial: &'static str) {
    let slidegate = FakeSlidegate::start(Some(denial));
    let upstream = Upstream::start();
    let proxy =
        start(&Backends { slidegate: slidegate.address, service: upstream.address(), edits: &[] });
    wait_until("the request is denied", || {
        send_bytes(proxy.address, CLIENT_LAST_BYTE, &build_get_request("")) == Some(503)
    });
    let before = upstream.request_count();
    assert_eq!(send_bytes(proxy.address, CLIENT_LAST_BYTE, &build_get_request("")), Some(503));
    assert_eq!(upstream.request_count(), before);
}

#[test]
fn nginx_fails_open_only_if_configured() {
    assert_fails_open_as_configured(start_nginx, &[], true);
    assert_fails_open_as_configured(
        start_nginx,
        &[(r#""~5\d\d$" @open;"#, r#""~5\d\d$" @closed;"#)],
        false,
    );
}

#[test]
fn nginx_enforces_denial_during_store_outage() {
    assert_store_outage_denial_is_enforced(start_nginx, STORE_OUTAGE_DENIAL_TO_NGINX);
}

#[test]
fn caddy_enforces_denial_during_store_outage() {
    assert_store_outage_denial_is_enforced(start_caddy, STORE_OUTAGE_DENIAL);
}

#[test]
fn haproxy_enforces_denial_during_store_outage() {
    assert_store_outage_denial_is_enforced(start_haproxy, STORE_OUTAGE_DENIAL);
}

#[test]
fn caddy_fails_open_only_if_configured() {
    assert_fails_open_as_configured(start_caddy, &[], true);
    const CADDY_FAIL_CLOSED_CONFIG_EDIT: (&str, &str) =
        ("reverse_proxy @unasked 127.0.0.1:9000", "respond @unasked 503");
    assert_fails_open_as_configured(start_caddy, &[CADDY_FAIL_CLOSED_CONFIG_EDIT], false);
}

#[test]
fn traefik_never_fails_open() {
    assert_fails_open_as_configured(start_traefik, &[], false);
}

#[test]
fn haproxy_fails_open_only_if_configured() {
    assert_fails_open_as_configured(start_haproxy, &[], true);
    assert_fails_open_as_configured(
        start_haproxy,
        &[("-m str allowed failed }", "-m str allowed }")],
        false,
    );
}
