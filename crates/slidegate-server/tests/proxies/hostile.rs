//! Hostile requests: after a limit is exhausted, none of them reaches the service behind any proxy.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::common::Server;
use crate::envoy;
use crate::launch::{Backends, caddy, haproxy, nginx, traefik};
use crate::process::Proxy;
use crate::project_path;
use crate::raw_client::send;
use crate::servers::wait_until;
use crate::upstream::Upstream;

/// A policy that counts by address, and by key if present, for `/v1/auth` and for Envoy.
const BY_ADDRESS: &str = "
rules:
  - { name: address, per: [ip], limits: [3/h] }
  - { name: key, per: [header.x-api-key], limits: [100000/h] }
  - { name: envoy-address, domain: edge, per: [remote_address], limits: [3/h] }
  - { name: envoy-key, domain: edge, per: [api_key], limits: [100000/h] }
";

/// A policy that counts by key only.
const BY_KEY: &str = "
rules:
  - { name: key, per: [header.x-api-key], limits: [1/h] }
  - { name: envoy-key, domain: edge, per: [api_key], limits: [1/h] }
";

/// The last byte of the client address that has exhausted its limit.
const EXHAUSTED: u8 = 2;

/// The last byte of the address of another client.
const OTHER: u8 = 99;

/// A request that tries to evade a limit.
struct HostileRequest {
    name: String,
    bytes: Vec<u8>,
    /// Whether every proxy serves the request if the client is within its limit.
    is_valid: bool,
}

/// A list of requests with names.
#[derive(Default)]
struct RequestTable(Vec<HostileRequest>);

impl RequestTable {
    /// Adds a request that every proxy serves to a client within its limit.
    fn valid(&mut self, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        self.0.push(HostileRequest {
            name: name.into(),
            bytes: bytes.as_ref().to_vec(),
            is_valid: true,
        });
    }

    /// Adds a request that some proxies reject.
    fn odd(&mut self, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        self.0.push(HostileRequest {
            name: name.into(),
            bytes: bytes.as_ref().to_vec(),
            is_valid: false,
        });
    }
}

/// Returns a request for `/` with these header lines.
fn get(headers: impl AsRef<[u8]>) -> Vec<u8> {
    request("GET / HTTP/1.1", [b"host: shop.example\r\n", headers.as_ref()].concat())
}

/// Returns a request with this request line and these header lines.
fn request(line: impl AsRef<[u8]>, headers: impl AsRef<[u8]>) -> Vec<u8> {
    [line.as_ref(), b"\r\n", headers.as_ref(), b"\r\n"].concat()
}

/// Returns a request for this path, without a body.
fn path(path: impl AsRef<[u8]>) -> Vec<u8> {
    request([b"GET ", path.as_ref(), b" HTTP/1.1"].concat(), "host: shop.example\r\n")
}

/// Returns a request with this method.
fn method(method: &str) -> Vec<u8> {
    request(format!("{method} / HTTP/1.1"), "host: shop.example\r\n")
}

/// Returns `count` header lines with values of `length` bytes.
fn header_lines(count: usize, length: usize) -> String {
    let value = "v".repeat(length);
    (0..count).map(|nth| format!("x-many-{nth}: {value}\r\n")).collect()
}

/// Returns a value of `length` bytes.
fn long_value(length: usize) -> String {
    "a".repeat(length)
}

/// Returns all hostile requests.
fn hostile_requests() -> Vec<HostileRequest> {
    let mut table = RequestTable::default();
    add_long_and_many_values(&mut table);
    add_odd_values(&mut table);
    add_forged_identities(&mut table);
    add_paths_and_hosts(&mut table);
    add_methods_and_bodies(&mut table);
    table.0
}

fn add_long_and_many_values(table: &mut RequestTable) {
    table.valid(
        "counted header of 1,025 bytes",
        get(format!("x-api-key: {}\r\n", long_value(1_025))),
    );
    table.valid(
        "counted header of 7,000 bytes",
        get(format!("x-api-key: {}\r\n", long_value(7_000))),
    );
    table
        .odd("counted header of 9,000 bytes", get(format!("x-api-key: {}\r\n", long_value(9_000))));
    table.odd(
        "counted header of 14,900 bytes",
        get(format!("x-api-key: {}\r\n", long_value(14_900))),
    );
    table.odd("counted header of 50 KB", get(format!("x-api-key: {}\r\n", long_value(50_000))));
    table.valid(
        "plan of 1,025 bytes",
        get(format!("x-plan: {}\r\nx-api-key: k\r\n", long_value(1_025))),
    );
    let key = long_value(50_000);
    table.odd("key of 50 KB and a plan", get(format!("x-plan: p\r\nx-api-key: {key}\r\n")));
    let chat = format!("host: a\r\nx-plan: p\r\nx-api-key: {key}\r\n");
    table.odd("key of 50 KB in a chat", request("GET /v1/chat HTTP/1.1", chat));
    for count in [94, 110, 200, 600] {
        let bytes = get(header_lines(count, 1));
        if count < 100 {
            table.valid(format!("{count} headers"), bytes);
        } else {
            table.odd(format!("{count} headers"), bytes);
        }
    }
    table.odd("21 KB of headers", get(header_lines(21, 1_000)));
    // Sizes near the buffer of HAProxy: a request fits, but the longer subrequest to slidegate may not.
    for length in (14_000..=16_600).step_by(200) {
        let bytes = get([header_lines(1, 7_000), header_lines(1, length - 7_000)].concat());
        table.odd(format!("headers of {length} bytes"), bytes);
    }
    table.valid("cookie of 7 KB", get(format!("cookie: a={}\r\n", long_value(7_000))));
    table.odd("cookie of 60 KB", get(format!("cookie: a={}\r\n", long_value(60_000))));
    table.odd("cookie of 900 KB", get(format!("cookie: a={}\r\n", long_value(900_000))));
    table.odd("header name of 9,000 bytes", get(format!("{}: v\r\n", long_value(9_000))));
    table.odd("method of 3,000 bytes", method(&"M".repeat(3_000)));
    table.odd(
        "host of 7,000 bytes",
        request("GET / HTTP/1.1", format!("host: {}\r\n", long_value(7_000))),
    );
}

fn add_odd_values(table: &mut RequestTable) {
    for name in ["x-api-key", "x-unrelated", "x-forwarded-for", "cookie", "user-agent", "x-plan"] {
        for (byte, value) in [("0xff", b"k\xff"), ("0x01", b"k\x01"), ("0x7f", b"k\x7f")] {
            let bytes = get([name.as_bytes(), b": ", value, b"\r\n"].concat());
            table.odd(format!("{byte} in {name}"), bytes);
        }
    }
    table.odd("0x00 in x-api-key", get(b"x-api-key: k\0\r\n"));
    table.odd("0xff in host", request("GET / HTTP/1.1", b"host: shop\xff.example\r\n"));
    table.odd("0x01 in host", request("GET / HTTP/1.1", b"host: shop\x01.example\r\n"));
    table.odd("invalid traceparent", get("traceparent: 00-zz\r\ntracestate: \x01\r\n"));
    table.valid("empty counted header", get("x-api-key:\r\n"));
    table.valid("blank counted header", get("x-api-key: \t \r\n"));
    table.odd("folded counted header", get("x-api-key: k\r\n other\r\n"));
    table.odd("folded header", get("x-unrelated: a\r\n\tb\r\n"));
    table.odd("header without colon", get("x-api-key\r\n"));
    table.odd("header without name", get(": k\r\n"));
    table.odd("blank before colon", get("x-api-key : k\r\n"));
    table.odd("control byte in name", get("x-\x01key: k\r\n"));
    table.odd("bare line feeds", b"GET / HTTP/1.1\nhost: shop.example\nx-api-key: k\n\n");
    table.odd("bare carriage return", get("x-api-key: a\rx-forwarded-for: 198.51.100.1\r\n"));
    let kept = "if-none-match: *\r\nrange: bytes=0-0\r\nif-modified-since: 0\r\n";
    table.valid("conditional request", get(kept));
}

fn add_forged_identities(table: &mut RequestTable) {
    table.odd("counted header twice", get("x-api-key: a\r\nx-api-key: b\r\n"));
    table.odd("counted header 80 times", get("x-api-key: a\r\n".repeat(80)));
    table.odd("counted header with comma", get("x-api-key: a, b\r\n"));
    table.odd("underscores in names", get("x_api_key: a\r\nX_FORWARDED_FOR: 198.51.100.1\r\n"));
    let forged = "X-FORWARDED-FOR: 198.51.100.1\r\nX-Forwarded-Method: OPTIONS\r\n\
        X-Forwarded-Uri: /forged\r\nX-Forwarded-Host: forged.example\r\nX-Real-IP: 198.51.100.2\r\n\
        Forwarded: for=198.51.100.3\r\nTrue-Client-IP: 198.51.100.4\r\nX-Original-Uri: /forged\r\n\
        X-Envoy-External-Address: 198.51.100.5\r\nX-Envoy-Internal: true\r\n";
    table.valid("forged identity", get(forged));
    table.valid("forged identity twice", get(forged.repeat(2)));
    table.valid("loopback as X-Forwarded-For", get("x-forwarded-for: 127.0.0.1\r\n"));
    table.valid("garbage as X-Forwarded-For", get("x-forwarded-for: ,, [::1 ;\"\r\n"));
    table.valid("empty X-Forwarded-For", get("x-forwarded-for:\r\n"));
    let entries = "198.51.100.1, ".repeat(500);
    table.valid("X-Forwarded-For of 500 entries", get(format!("x-forwarded-for: {entries}\r\n")));
    let line = "x-forwarded-for: 198.51.100.1\r\n";
    table.odd("X-Forwarded-For 90 times", get(line.repeat(90)));
    for named in ["x-api-key", "x-forwarded-for, x-forwarded-host, x-real-ip", "host, close"] {
        let bytes = get(format!("connection: {named}\r\nx-api-key: k\r\n"));
        table.odd(format!("connection names {named}"), bytes);
    }
    let every = "connection: x-forwarded-for, x-forwarded-method, x-forwarded-uri, x-api-key\r\n";
    table.odd("connection names what is forwarded", get([every, forged].concat()));
}

fn add_paths_and_hosts(table: &mut RequestTable) {
    table.valid("path of 7 KB", path(format!("/{}", long_value(7_000))));
    table.odd("path of 60 KB", path(format!("/{}", long_value(60_000))));
    table.odd("path of 900 KB", path(format!("/{}", long_value(900_000))));
    for length in (14_000..=16_600).step_by(200) {
        table.odd(format!("path of {length} bytes"), path(format!("/{}", long_value(length))));
    }
    table.valid("query of 7 KB", path(format!("/?{}", long_value(7_000))));
    table.odd("query of 60 KB", path(format!("/?{}", long_value(60_000))));
    table.odd("query of 900 KB", path(format!("/?{}", long_value(900_000))));
    table.valid("query for slidegate", path("/?domain=other&deny_status=200"));
    let odd: [&[u8]; 16] = [
        b"/%ff%00",
        b"/%0d%0aX-Forwarded-For:%20198.51.100.1%0d%0a",
        b"/%",
        b"/%zz",
        b"/\xff",
        b"/\x01",
        b"/a b",
        b"/#fragment",
        b"//",
        b"/../..",
        b"/..%2f..%5c",
        b"/\\",
        b"?query",
        b"noslash",
        b"*",
        b"/v1/auth?",
    ];
    for odd in odd {
        let name = format!("path {}", odd.escape_ascii());
        table.odd(name, path(odd));
    }
    table.odd("location of nginx", path("/slidegate"));
    for uri in
        ["http://other.example/", "https://other.example:99/a?b", "http://", "ftp://a/", "//"]
    {
        table.odd(format!("absolute URI {uri}"), path(uri));
    }
    for host in
        ["", " ", "a b", "a, b", "SHOP.example.:80", "[::1", "shop.example:x", "a/b?c#d", "%00"]
    {
        let bytes = request("GET / HTTP/1.1", format!("host: {host}\r\n"));
        table.odd(format!("host `{host}`"), bytes);
    }
    table.odd("two hosts", get("host: other.example\r\n"));
    table.odd("no host", request("GET / HTTP/1.1", ""));
    table.odd("HTTP/1.0 without host", request("GET / HTTP/1.0", ""));
    table.odd("HTTP/0.9", "GET /\r\n");
    table.odd("HTTP/1.2", request("GET / HTTP/1.2", "host: shop.example\r\n"));
    table.odd("HTTP/2.0", request("GET / HTTP/2.0", "host: shop.example\r\n"));
}

fn add_methods_and_bodies(table: &mut RequestTable) {
    for name in ["HEAD", "OPTIONS", "DELETE"] {
        table.valid(name, method(name));
    }
    for name in ["TRACE", "CONNECT", "get", "BREW", "M-SEARCH", "G\u{e9}T", "PRI", "A'`|~"] {
        table.odd(format!("method {name}"), method(name));
    }
    table.valid("content-length 0", get("content-length: 0\r\n"));
    let post = |headers: &str, body: &str| {
        let head = request("POST / HTTP/1.1", format!("host: shop.example\r\n{headers}"));
        [&head, body.as_bytes()].concat()
    };
    let chunks = "3\r\nabc\r\n0\r\n\r\n";
    table.valid("chunked body", post("transfer-encoding: chunked\r\n", chunks));
    let trailer = "3\r\nabc\r\n0\r\nx-api-key: t\r\nx-forwarded-for: 198.51.100.1\r\n\r\n";
    let trailers = "transfer-encoding: chunked\r\ntrailer: x-api-key\r\nte: trailers\r\n";
    table.odd("chunked body with trailers", post(trailers, trailer));
    table.odd("invalid chunks", post("transfer-encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n"));
    table.odd("other coding", post("transfer-encoding: gzip, chunked\r\n", chunks));
    table.odd("hidden coding", post("transfer-encoding: \x0bchunked\r\n", chunks));
    let both = "content-length: 3\r\ntransfer-encoding: chunked\r\n";
    table.odd("content-length and chunks", post(both, chunks));
    table.odd("two lengths", post("content-length: 3\r\ncontent-length: 4\r\n", "abcd"));
    table.odd("negative length", post("content-length: -3\r\n", "abc"));
    table.odd("huge length", post("content-length: 99999999999999999999\r\n", "abc"));
    table.odd("body of 30 KB", post("content-length: 30000\r\n", &long_value(30_000)));
    table.odd("body of 2 MB", post("content-length: 2000000\r\n", &long_value(2_000_000)));
    let get_body =
        request("GET /v1/auth? HTTP/1.1", "host: shop.example\r\ntransfer-encoding: chunked\r\n");
    table.odd("GET with chunks for /v1/auth", [&get_body, chunks.as_bytes()].concat());
    let expect = "expect: 100-continue\r\ncontent-length: 3\r\n";
    table.odd("expect continue", post(expect, "abc"));
    table.odd("expect something else", post("expect: 200-ok\r\ncontent-length: 3\r\n", "abc"));
    let upgrade = "connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
        dGhlIHNhbXBsZSBub25jZQ==\r\n";
    table.odd("websocket", get(format!("{upgrade}upgrade: websocket\r\n")));
    let h2c = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    table.odd("upgrade to HTTP/2", get(h2c));
    table.odd("grpc", post("content-type: application/grpc\r\nte: trailers\r\n", ""));
    table.odd("pipelined", get("").repeat(5));
}

/// Returns requests with the exhausted key `k` in different spellings, none of which may count as another key.
fn spellings_of_key() -> Vec<HostileRequest> {
    let mut table = RequestTable::default();
    table.valid("plain", get("x-api-key: k\r\n"));
    table.valid("upper case", get("X-API-KEY: k\r\n"));
    table.valid("padded", get("x-api-key: \t  k \t \r\n"));
    table.valid("close", get("x-api-key: k\r\nconnection: close, x-other\r\n"));
    table.odd("hop-by-hop", get("x-api-key: k\r\nconnection: x-api-key\r\n"));
    table.odd(
        "hop-by-hop twice",
        get("connection: close\r\nx-api-key: k\r\nConnection: X-Api-Key\r\n"),
    );
    table.odd("another behind", get("x-api-key: k\r\nx-api-key: other\r\n"));
    table.odd("another with underscores", get("x_api_key: other\r\nx-api-key: k\r\n"));
    table.odd("folded", get("x-api-key:\r\n k\r\n"));
    table.odd("HTTP/1.0", request("GET / HTTP/1.0", "x-api-key: k\r\n"));
    table.odd("absolute URI", request("GET http://a/ HTTP/1.1", "host: a\r\nx-api-key: k\r\n"));
    table.valid("many headers", get(format!("{}x-api-key: k\r\n", header_lines(90, 1))));
    table.valid("long headers", get(format!("{}x-api-key: k\r\n", header_lines(7, 900))));
    table.odd("control byte elsewhere", get("x-unrelated: \x01\r\nx-api-key: k\r\n"));
    table.odd("0xff elsewhere", get(b"x-unrelated: \xff\r\nx-api-key: k\r\n"));
    let trailer = "transfer-encoding: chunked\r\n\r\n0\r\nx-api-key: other\r\n";
    table.odd("another as trailer", get(format!("x-api-key: k\r\n{trailer}")));
    table.0
}

/// A function that starts a proxy for slidegate and a service.
type StartProxy = fn(&Server, &Upstream) -> Proxy;

/// A proxy with slidegate and a service.
struct ProxySetup {
    proxy: Proxy,
    upstream: Upstream,
    _slidegate: Server,
}

impl ProxySetup {
    fn start(start: StartProxy, policy: &str) -> Self {
        let slidegate = Server::start_with_grpc(policy, &[]);
        let upstream = Upstream::start();
        let proxy = start(&slidegate, &upstream);
        Self { proxy, upstream, _slidegate: slidegate }
    }

    fn send(&self, from: u8, bytes: &[u8]) -> Option<u16> {
        send(self.proxy.address, from, bytes)
    }

    /// Repeats a request until it is denied.
    fn exhaust(&self, from: u8, bytes: &[u8]) {
        wait_until("the limit is exhausted", || self.send(from, bytes) == Some(429));
    }
}

/// Asserts that no hostile request passes from an address that has exhausted its limit.
fn assert_exhausted_address_never_passes(start: StartProxy) {
    let setup = ProxySetup::start(start, BY_ADDRESS);
    setup.exhaust(EXHAUSTED, &get(""));
    let forwarded_before = setup.upstream.request_count();
    let mut passed = Vec::new();
    for hostile in hostile_requests() {
        let before = setup.upstream.request_count();
        let status = setup.send(EXHAUSTED, &hostile.bytes);
        if setup.upstream.request_count() > before {
            passed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert_eq!(setup.send(EXHAUSTED, &get("")), Some(429), "the limit is no longer exhausted");
    assert!(passed.is_empty(), "{} requests passed: {passed:#?}", passed.len());
    assert_eq!(setup.upstream.request_count(), forwarded_before, "a request passed later");

    // Valid requests of other clients pass, which excludes a proxy that rejects everything.
    assert_eq!(setup.send(OTHER, &get("")), Some(200));
    let valid = hostile_requests().into_iter().filter(|hostile| hostile.is_valid);
    let mut failed = Vec::new();
    for (hostile, from) in valid.zip(100..) {
        let before = setup.upstream.request_count();
        let status = setup.send(from, &hostile.bytes);
        if setup.upstream.request_count() != before + 1 {
            failed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert!(failed.is_empty(), "valid requests of other clients failed: {failed:#?}");
}

/// Asserts that the exhausted key does not reach the service in any spelling.
fn assert_exhausted_key_never_passes(start: StartProxy) {
    let setup = ProxySetup::start(start, BY_KEY);
    setup.exhaust(EXHAUSTED, &get("x-api-key: k\r\n"));
    let mut passed = Vec::new();
    for hostile in spellings_of_key() {
        let before = setup.upstream.request_count();
        let status = setup.send(EXHAUSTED, &hostile.bytes);
        let heads = setup.upstream.heads_after(before);
        let has_key = |line: &String| line.to_ascii_lowercase().starts_with("x-api-key:");
        if hostile.is_valid && status != Some(429) || heads.iter().flatten().any(has_key) {
            passed.push(format!("{}: {status:?}", hostile.name));
        }
    }
    assert!(passed.is_empty(), "{} requests passed: {passed:#?}", passed.len());
    assert_eq!(setup.send(EXHAUSTED, &get("x-api-key: other\r\n")), Some(200));
}

/// A server in place of slidegate with a fixed response. Its health check succeeds.
struct FakeSlidegate {
    address: SocketAddr,
    request_count: Arc<AtomicUsize>,
}

impl FakeSlidegate {
    /// Starts the server. An empty `response` closes the connection of each request, and `None` never responds.
    fn start(response: Option<&'static str>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let request_count = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&request_count);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                // A proxy may close the connection first.
                thread::spawn(move || respond(&stream, response, &counter));
            }
        });
        Self { address, request_count }
    }
}

/// Reads a request, counts it unless it is a health check, and writes the response.
fn respond(
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

/// Statuses that deny a request, also if the proxy fails open.
const REJECTIONS: [&str; 8] = [
    "302 Found",
    "400 Bad Request",
    "401 Unauthorized",
    "403 Forbidden",
    "404 Not Found",
    "418 Teapot",
    "429 Too Many Requests",
    "431 Too Large",
];

/// Failures of slidegate: a status, a closed connection, and no response.
const FAILURES: [Option<&str>; 6] =
    [Some("500 Error"), Some("502 Error"), Some("503 Error"), Some("504 Error"), Some(""), None];

/// Asserts that rejections deny, and that failures pass only if `fails_open`, with these edits of the proxy's file.
fn assert_only_configured_failures_pass(
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
            send(proxy.address, EXHAUSTED, &get(""));
            slidegate.request_count.load(Ordering::SeqCst) > 0
        });
        let before = upstream.request_count();
        (send(proxy.address, EXHAUSTED, &get("")), upstream.request_count() > before)
    };
    for rejection in REJECTIONS {
        let (status, has_passed) = send_with_response(Some(rejection));
        assert!(!has_passed && status != Some(200), "{rejection}: {status:?}");
        if rejection.starts_with('4') {
            assert!(status.is_some_and(|status| (400..500).contains(&status)), "{status:?}");
        }
    }
    for failure in FAILURES {
        let (status, has_passed) = send_with_response(failure);
        assert_eq!(
            (has_passed, status == Some(200)),
            (fails_open, fails_open),
            "{failure:?}: {status:?}"
        );
    }
}

/// Asserts that a 503 with a problem denies. A rule denies this way while its store is down, which is a decision and
/// not a failure of slidegate.
fn assert_denial_without_store_is_no_failure(start: fn(&Backends) -> Proxy) {
    let slidegate =
        FakeSlidegate::start(Some("503 Unavailable\r\ncontent-type: application/problem+json"));
    let upstream = Upstream::start();
    let proxy =
        start(&Backends { slidegate: slidegate.address, service: upstream.address(), edits: &[] });
    wait_until("the request is denied", || send(proxy.address, EXHAUSTED, &get("")) == Some(503));
    let before = upstream.request_count();
    assert_eq!(send(proxy.address, EXHAUSTED, &get("")), Some(503));
    assert_eq!(upstream.request_count(), before);
}

/// Returns the addresses of the servers behind a proxy.
fn backends(server: &Server, upstream: &Upstream) -> Backends {
    Backends { slidegate: server.address(), service: upstream.address(), edits: &[] }
}

/// Starts Envoy with its file in `deploy/` and a longer timeout, so that it does not fail open on a busy machine.
fn envoy(server: &Server, upstream: &Upstream) -> Proxy {
    let replacements = [("timeout: 0.25s", "timeout: 10s")];
    let file = project_path("deploy/envoy/envoy.yaml");
    envoy::start(&file, server.grpc(), upstream.address(), &replacements)
}

#[test]
fn nginx_exhausted_address_passes_no_hostile_request() {
    assert_exhausted_address_never_passes(|server, upstream| nginx(&backends(server, upstream)));
}

#[test]
fn caddy_exhausted_address_passes_no_hostile_request() {
    assert_exhausted_address_never_passes(|server, upstream| caddy(&backends(server, upstream)));
}

#[test]
fn traefik_exhausted_address_passes_no_hostile_request() {
    assert_exhausted_address_never_passes(|server, upstream| traefik(&backends(server, upstream)));
}

#[test]
fn haproxy_exhausted_address_passes_no_hostile_request() {
    assert_exhausted_address_never_passes(|server, upstream| haproxy(&backends(server, upstream)));
}

#[test]
fn envoy_exhausted_address_passes_no_hostile_request() {
    assert_exhausted_address_never_passes(envoy);
}

#[test]
fn nginx_exhausted_key_passes_in_no_spelling() {
    assert_exhausted_key_never_passes(|server, upstream| nginx(&backends(server, upstream)));
}

#[test]
fn caddy_exhausted_key_passes_in_no_spelling() {
    assert_exhausted_key_never_passes(|server, upstream| caddy(&backends(server, upstream)));
}

#[test]
fn traefik_exhausted_key_passes_in_no_spelling() {
    assert_exhausted_key_never_passes(|server, upstream| traefik(&backends(server, upstream)));
}

#[test]
fn haproxy_exhausted_key_passes_in_no_spelling() {
    assert_exhausted_key_never_passes(|server, upstream| haproxy(&backends(server, upstream)));
}

#[test]
fn envoy_exhausted_key_passes_in_no_spelling() {
    assert_exhausted_key_never_passes(envoy);
}

#[test]
fn nginx_failures_pass_only_if_configured() {
    assert_only_configured_failures_pass(nginx, &[], true);
    assert_only_configured_failures_pass(
        nginx,
        &[(r#""~5\d\d$" @open;"#, r#""~5\d\d$" @closed;"#)],
        false,
    );
}

#[test]
fn caddy_denial_without_store_is_no_failure() {
    assert_denial_without_store_is_no_failure(caddy);
}

#[test]
fn haproxy_denial_without_store_is_no_failure() {
    assert_denial_without_store_is_no_failure(haproxy);
}

#[test]
fn caddy_failures_pass_only_if_configured() {
    assert_only_configured_failures_pass(caddy, &[], true);
    const CLOSED: (&str, &str) = ("reverse_proxy @unasked 127.0.0.1:9000", "respond @unasked 503");
    assert_only_configured_failures_pass(caddy, &[CLOSED], false);
}

#[test]
fn traefik_failures_never_pass() {
    assert_only_configured_failures_pass(traefik, &[], false);
}

#[test]
fn haproxy_failures_pass_only_if_configured() {
    assert_only_configured_failures_pass(haproxy, &[], true);
    assert_only_configured_failures_pass(
        haproxy,
        &[("-m str allowed failed }", "-m str allowed }")],
        false,
    );
}

/// The route for tokens is defined in the file in `deploy/`.
#[test]
fn envoy_exhausted_tokens_pass_in_no_spelling_of_path() {
    const TOKENS: &str = "
rules:
  - { name: t, domain: edge, when: { meter: tokens }, per: [api_key], limits: [9/h], charge: always }
";
    let setup = ProxySetup::start(envoy, TOKENS);
    let chat = |path: &str| {
        let headers = "host: shop.example\r\nx-api-key: k\r\nx-tokens-used: 10\r\n";
        request(format!("GET {path} HTTP/1.1"), headers)
    };
    setup.exhaust(EXHAUSTED, &chat("/v1/chat"));
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
        let status = setup.send(EXHAUSTED, &chat(path));
        assert_eq!(setup.upstream.request_count(), forwarded_before, "{path}: {status:?}");
    }
    assert_eq!(setup.send(EXHAUSTED, &chat("/v1")), Some(200));
}
