//! The hostile requests: long, many, empty, repeated and invalid headers, unusual paths, methods and bodies.

/// A request that tries to evade a limit.
pub struct HostileRequest {
    pub name: String,
    pub bytes: Vec<u8>,
    /// Whether every proxy accepts the request. Such a request reaches the service if the client is within its limit.
    pub is_valid: bool,
}

/// A list of hostile requests with names.
#[derive(Default)]
struct HostileRequestList(Vec<HostileRequest>);

impl HostileRequestList {
    /// Adds a valid request, which every proxy forwards if the client is within its limit.
    fn add_valid_request(&mut self, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        self.0.push(HostileRequest {
            name: name.into(),
            bytes: bytes.as_ref().to_vec(),
            is_valid: true,
        });
    }

    /// Adds an unusual or invalid request, which some proxies reject even if the client is within its limit.
    fn add_unusual_request(&mut self, name: impl Into<String>, bytes: impl AsRef<[u8]>) {
        self.0.push(HostileRequest {
            name: name.into(),
            bytes: bytes.as_ref().to_vec(),
            is_valid: false,
        });
    }
}

/// Returns the bytes of a GET request for `/` with these header lines.
pub fn build_get_request(headers: impl AsRef<[u8]>) -> Vec<u8> {
    build_request("GET / HTTP/1.1", [b"host: shop.example\r\n", headers.as_ref()].concat())
}

/// Returns the bytes of a request with this request line and these header lines.
pub fn build_request(line: impl AsRef<[u8]>, headers: impl AsRef<[u8]>) -> Vec<u8> {
    [line.as_ref(), b"\r\n", headers.as_ref(), b"\r\n"].concat()
}

/// Returns the bytes of a GET request for this path.
fn build_request_for_path(path: impl AsRef<[u8]>) -> Vec<u8> {
    build_request([b"GET ", path.as_ref(), b" HTTP/1.1"].concat(), "host: shop.example\r\n")
}

/// Returns the bytes of a request for `/` with this method.
fn build_request_with_method(method: &str) -> Vec<u8> {
    build_request(format!("{method} / HTTP/1.1"), "host: shop.example\r\n")
}

/// Returns `count` header lines with different names, each with a value of `length` bytes.
fn render_header_lines(count: usize, length: usize) -> String {
    let value = "v".repeat(length);
    (0..count).map(|nth| format!("x-many-{nth}: {value}\r\n")).collect()
}

/// Returns a header value with a length of `length` bytes.
fn header_value_with_length(length: usize) -> String {
    "a".repeat(length)
}

/// Returns all requests that the tests send to evade a limit.
pub fn hostile_requests() -> Vec<HostileRequest> {
    let mut list = HostileRequestList::default();
    add_requests_with_long_or_many_headers(&mut list);
    add_requests_with_unusual_headers(&mut list);
    add_requests_with_forged_identity_headers(&mut list);
    add_requests_with_unusual_paths_or_hosts(&mut list);
    add_requests_with_unusual_methods_or_bodies(&mut list);
    list.0
}

fn add_requests_with_long_or_many_headers(list: &mut HostileRequestList) {
    list.add_valid_request(
        "counted header of 1,025 bytes",
        build_get_request(format!("x-api-key: {}\r\n", header_value_with_length(1_025))),
    );
    list.add_valid_request(
        "counted header of 7,000 bytes",
        build_get_request(format!("x-api-key: {}\r\n", header_value_with_length(7_000))),
    );
    list.add_unusual_request(
        "counted header of 9,000 bytes",
        build_get_request(format!("x-api-key: {}\r\n", header_value_with_length(9_000))),
    );
    list.add_unusual_request(
        "counted header of 14,900 bytes",
        build_get_request(format!("x-api-key: {}\r\n", header_value_with_length(14_900))),
    );
    list.add_unusual_request(
        "counted header of 50 KB",
        build_get_request(format!("x-api-key: {}\r\n", header_value_with_length(50_000))),
    );
    list.add_valid_request(
        "plan of 1,025 bytes",
        build_get_request(format!(
            "x-plan: {}\r\nx-api-key: k\r\n",
            header_value_with_length(1_025)
        )),
    );
    let key = header_value_with_length(50_000);
    list.add_unusual_request(
        "key of 50 KB and a plan",
        build_get_request(format!("x-plan: p\r\nx-api-key: {key}\r\n")),
    );
    let chat = format!("host: a\r\nx-plan: p\r\nx-api-key: {key}\r\n");
    list.add_unusual_request(
        "key of 50 KB in a chat",
        build_request("GET /v1/chat HTTP/1.1", chat),
    );
    for count in [94, 110, 200, 600] {
        let bytes = build_get_request(render_header_lines(count, 1));
        if count < 100 {
            list.add_valid_request(format!("{count} headers"), bytes);
        } else {
            list.add_unusual_request(format!("{count} headers"), bytes);
        }
    }
    list.add_unusual_request("21 KB of headers", build_get_request(render_header_lines(21, 1_000)));
    // Sizes near the buffer of HAProxy: a request fits, but the longer subrequest to slidegate may not.
    for length in (14_000..=16_600).step_by(200) {
        let bytes = build_get_request(
            [render_header_lines(1, 7_000), render_header_lines(1, length - 7_000)].concat(),
        );
        list.add_unusual_request(format!("headers of {length} bytes"), bytes);
    }
    list.add_valid_request(
        "cookie of 7 KB",
        build_get_request(format!("cookie: a={}\r\n", header_value_with_length(7_000))),
    );
    list.add_unusual_request(
        "cookie of 60 KB",
        build_get_request(format!("cookie: a={}\r\n", header_value_with_length(60_000))),
    );
    list.add_unusual_request(
        "cookie of 900 KB",
        build_get_request(format!("cookie: a={}\r\n", header_value_with_length(900_000))),
    );
    list.add_unusual_request(
        "header name of 9,000 bytes",
        build_get_request(format!("{}: v\r\n", header_value_with_length(9_000))),
    );
    list.add_unusual_request(
        "method of 3,000 bytes",
        build_request_with_method(&"M".repeat(3_000)),
    );
    list.add_unusual_request(
        "host of 7,000 bytes",
        build_request("GET / HTTP/1.1", format!("host: {}\r\n", header_value_with_length(7_000))),
    );
}

fn add_requests_with_unusual_headers(list: &mut HostileRequestList) {
    for name in ["x-api-key", "x-unrelated", "x-forwarded-for", "cookie", "user-agent", "x-plan"] {
        for (byte, value) in [("0xff", b"k\xff"), ("0x01", b"k\x01"), ("0x7f", b"k\x7f")] {
            let bytes = build_get_request([name.as_bytes(), b": ", value, b"\r\n"].concat());
            list.add_unusual_request(format!("{byte} in {name}"), bytes);
        }
    }
    list.add_unusual_request("0x00 in x-api-key", build_get_request(b"x-api-key: k\0\r\n"));
    list.add_unusual_request(
        "0xff in host",
        build_request("GET / HTTP/1.1", b"host: shop\xff.example\r\n"),
    );
    list.add_unusual_request(
        "0x01 in host",
        build_request("GET / HTTP/1.1", b"host: shop\x01.example\r\n"),
    );
    list.add_unusual_request(
        "invalid traceparent",
        build_get_request("traceparent: 00-zz\r\ntracestate: \x01\r\n"),
    );
    list.add_valid_request("empty counted header", build_get_request("x-api-key:\r\n"));
    list.add_valid_request("blank counted header", build_get_request("x-api-key: \t \r\n"));
    list.add_unusual_request(
        "folded counted header",
        build_get_request("x-api-key: k\r\n other\r\n"),
    );
    list.add_unusual_request("folded header", build_get_request("x-unrelated: a\r\n\tb\r\n"));
    list.add_unusual_request("header without colon", build_get_request("x-api-key\r\n"));
    list.add_unusual_request("header without name", build_get_request(": k\r\n"));
    list.add_unusual_request("blank before colon", build_get_request("x-api-key : k\r\n"));
    list.add_unusual_request("control byte in name", build_get_request("x-\x01key: k\r\n"));
    list.add_unusual_request(
        "bare line feeds",
        b"GET / HTTP/1.1\nhost: shop.example\nx-api-key: k\n\n",
    );
    list.add_unusual_request(
        "bare carriage return",
        build_get_request("x-api-key: a\rx-forwarded-for: 198.51.100.1\r\n"),
    );
    let kept = "if-none-match: *\r\nrange: bytes=0-0\r\nif-modified-since: 0\r\n";
    list.add_valid_request("conditional request", build_get_request(kept));
}

fn add_requests_with_forged_identity_headers(list: &mut HostileRequestList) {
    list.add_unusual_request(
        "counted header twice",
        build_get_request("x-api-key: a\r\nx-api-key: b\r\n"),
    );
    list.add_unusual_request(
        "counted header 80 times",
        build_get_request("x-api-key: a\r\n".repeat(80)),
    );
    list.add_unusual_request("counted header with comma", build_get_request("x-api-key: a, b\r\n"));
    list.add_unusual_request(
        "underscores in names",
        build_get_request("x_api_key: a\r\nX_FORWARDED_FOR: 198.51.100.1\r\n"),
    );
    let forged = "X-FORWARDED-FOR: 198.51.100.1\r\nX-Forwarded-Method: OPTIONS\r\n\
        X-Forwarded-Uri: /forged\r\nX-Forwarded-Host: forged.example\r\nX-Real-IP: 198.51.100.2\r\n\
        Forwarded: for=198.51.100.3\r\nTrue-Client-IP: 198.51.100.4\r\nX-Original-Uri: /forged\r\n\
        X-Envoy-External-Address: 198.51.100.5\r\nX-Envoy-Internal: true\r\n";
    list.add_valid_request("forged identity", build_get_request(forged));
    list.add_valid_request("forged identity twice", build_get_request(forged.repeat(2)));
    list.add_valid_request(
        "loopback as X-Forwarded-For",
        build_get_request("x-forwarded-for: 127.0.0.1\r\n"),
    );
    list.add_valid_request(
        "garbage as X-Forwarded-For",
        build_get_request("x-forwarded-for: ,, [::1 ;\"\r\n"),
    );
    list.add_valid_request("empty X-Forwarded-For", build_get_request("x-forwarded-for:\r\n"));
    let entries = "198.51.100.1, ".repeat(500);
    list.add_valid_request(
        "X-Forwarded-For of 500 entries",
        build_get_request(format!("x-forwarded-for: {entries}\r\n")),
    );
    let line = "x-forwarded-for: 198.51.100.1\r\n";
    list.add_unusual_request("X-Forwarded-For 90 times", build_get_request(line.repeat(90)));
    for named in ["x-api-key", "x-forwarded-for, x-forwarded-host, x-real-ip", "host, close"] {
        let bytes = build_get_request(format!("connection: {named}\r\nx-api-key: k\r\n"));
        list.add_unusual_request(format!("connection names {named}"), bytes);
    }
    let every = "connection: x-forwarded-for, x-forwarded-method, x-forwarded-uri, x-api-key\r\n";
    list.add_unusual_request(
        "connection names what is forwarded",
        build_get_request([every, forged].concat()),
    );
}

fn add_requests_with_unusual_paths_or_hosts(list: &mut HostileRequestList) {
    list.add_valid_request(
        "path of 7 KB",
        build_request_for_path(format!("/{}", header_value_with_length(7_000))),
    );
    list.add_unusual_request(
        "path of 60 KB",
        build_request_for_path(format!("/{}", header_value_with_length(60_000))),
    );
    list.add_unusual_request(
        "path of 900 KB",
        build_request_for_path(format!("/{}", header_value_with_length(900_000))),
    );
    for length in (14_000..=16_600).step_by(200) {
        list.add_unusual_request(
            format!("path of {length} bytes"),
            build_request_for_path(format!("/{}", header_value_with_length(length))),
        );
    }
    list.add_valid_request(
        "query of 7 KB",
        build_request_for_path(format!("/?{}", header_value_with_length(7_000))),
    );
    list.add_unusual_request(
        "query of 60 KB",
        build_request_for_path(format!("/?{}", header_value_with_length(60_000))),
    );
    list.add_unusual_request(
        "query of 900 KB",
        build_request_for_path(format!("/?{}", header_value_with_length(900_000))),
    );
    list.add_valid_request(
        "query for slidegate",
        build_request_for_path("/?domain=other&deny_status=200"),
    );
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
        list.add_unusual_request(name, build_request_for_path(odd));
    }
    list.add_unusual_request("location of nginx", build_request_for_path("/slidegate"));
    for uri in
        ["http://other.example/", "https://other.example:99/a?b", "http://", "ftp://a/", "//"]
    {
        list.add_unusual_request(format!("absolute URI {uri}"), build_request_for_path(uri));
    }
    for host in
        ["", " ", "a b", "a, b", "SHOP.example.:80", "[::1", "shop.example:x", "a/b?c#d", "%00"]
    {
        let bytes = build_request("GET / HTTP/1.1", format!("host: {host}\r\n"));
        list.add_unusual_request(format!("host `{host}`"), bytes);
    }
    list.add_unusual_request("two hosts", build_get_request("host: other.example\r\n"));
    list.add_unusual_request("no host", build_request("GET / HTTP/1.1", ""));
    list.add_unusual_request("HTTP/1.0 without host", build_request("GET / HTTP/1.0", ""));
    list.add_unusual_request("HTTP/0.9", "GET /\r\n");
    list.add_unusual_request("HTTP/1.2", build_request("GET / HTTP/1.2", "host: shop.example\r\n"));
    list.add_unusual_request("HTTP/2.0", build_request("GET / HTTP/2.0", "host: shop.example\r\n"));
}

fn add_requests_with_unusual_methods_or_bodies(list: &mut HostileRequestList) {
    for name in ["HEAD", "OPTIONS", "DELETE"] {
        list.add_valid_request(name, build_request_with_method(name));
    }
    for name in ["TRACE", "CONNECT", "get", "BREW", "M-SEARCH", "G\u{e9}T", "PRI", "A'`|~"] {
        list.add_unusual_request(format!("method {name}"), build_request_with_method(name));
    }
    list.add_valid_request("content-length 0", build_get_request("content-length: 0\r\n"));
    let post = |headers: &str, body: &str| {
        let head = build_request("POST / HTTP/1.1", format!("host: shop.example\r\n{headers}"));
        [&head, body.as_bytes()].concat()
    };
    let chunks = "3\r\nabc\r\n0\r\n\r\n";
    list.add_valid_request("chunked body", post("transfer-encoding: chunked\r\n", chunks));
    let trailer = "3\r\nabc\r\n0\r\nx-api-key: t\r\nx-forwarded-for: 198.51.100.1\r\n\r\n";
    let trailers = "transfer-encoding: chunked\r\ntrailer: x-api-key\r\nte: trailers\r\n";
    list.add_unusual_request("chunked body with trailers", post(trailers, trailer));
    list.add_unusual_request(
        "invalid chunks",
        post("transfer-encoding: chunked\r\n", "zz\r\nabc\r\n0\r\n\r\n"),
    );
    list.add_unusual_request("other coding", post("transfer-encoding: gzip, chunked\r\n", chunks));
    list.add_unusual_request("hidden coding", post("transfer-encoding: \x0bchunked\r\n", chunks));
    let both = "content-length: 3\r\ntransfer-encoding: chunked\r\n";
    list.add_unusual_request("content-length and chunks", post(both, chunks));
    list.add_unusual_request(
        "two lengths",
        post("content-length: 3\r\ncontent-length: 4\r\n", "abcd"),
    );
    list.add_unusual_request("negative length", post("content-length: -3\r\n", "abc"));
    list.add_unusual_request(
        "huge length",
        post("content-length: 99999999999999999999\r\n", "abc"),
    );
    list.add_unusual_request(
        "body of 30 KB",
        post("content-length: 30000\r\n", &header_value_with_length(30_000)),
    );
    list.add_unusual_request(
        "body of 2 MB",
        post("content-length: 2000000\r\n", &header_value_with_length(2_000_000)),
    );
    let get_body = build_request(
        "GET /v1/auth? HTTP/1.1",
        "host: shop.example\r\ntransfer-encoding: chunked\r\n",
    );
    list.add_unusual_request(
        "GET with chunks for /v1/auth",
        [&get_body, chunks.as_bytes()].concat(),
    );
    let expect = "expect: 100-continue\r\ncontent-length: 3\r\n";
    list.add_unusual_request("expect continue", post(expect, "abc"));
    list.add_unusual_request(
        "expect something else",
        post("expect: 200-ok\r\ncontent-length: 3\r\n", "abc"),
    );
    let upgrade = "connection: upgrade\r\nsec-websocket-version: 13\r\nsec-websocket-key: \
        dGhlIHNhbXBsZSBub25jZQ==\r\n";
    list.add_unusual_request(
        "websocket",
        build_get_request(format!("{upgrade}upgrade: websocket\r\n")),
    );
    let h2c = "connection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABk\r\n";
    list.add_unusual_request("upgrade to HTTP/2", build_get_request(h2c));
    list.add_unusual_request(
        "grpc",
        post("content-type: application/grpc\r\nte: trailers\r\n", ""),
    );
    list.add_unusual_request("pipelined", build_get_request("").repeat(5));
}

/// Returns requests that contain the exhausted API key `k` in different spellings. No spelling may be counted as
/// another key.
pub fn requests_with_exhausted_key_spellings() -> Vec<HostileRequest> {
    let mut list = HostileRequestList::default();
    list.add_valid_request("plain", build_get_request("x-api-key: k\r\n"));
    list.add_valid_request("upper case", build_get_request("X-API-KEY: k\r\n"));
    list.add_valid_request("padded", build_get_request("x-api-key: \t  k \t \r\n"));
    list.add_valid_request(
        "close",
        build_get_request("x-api-key: k\r\nconnection: close, x-other\r\n"),
    );
    list.add_unusual_request(
        "hop-by-hop",
        build_get_request("x-api-key: k\r\nconnection: x-api-key\r\n"),
    );
    list.add_unusual_request(
        "hop-by-hop twice",
        build_get_request("connection: close\r\nx-api-key: k\r\nConnection: X-Api-Key\r\n"),
    );
    list.add_unusual_request(
        "another behind",
        build_get_request("x-api-key: k\r\nx-api-key: other\r\n"),
    );
    list.add_unusual_request(
        "another with underscores",
        build_get_request("x_api_key: other\r\nx-api-key: k\r\n"),
    );
    list.add_unusual_request("folded", build_get_request("x-api-key:\r\n k\r\n"));
    list.add_unusual_request("HTTP/1.0", build_request("GET / HTTP/1.0", "x-api-key: k\r\n"));
    list.add_unusual_request(
        "absolute URI",
        build_request("GET http://a/ HTTP/1.1", "host: a\r\nx-api-key: k\r\n"),
    );
    list.add_valid_request(
        "many headers",
        build_get_request(format!("{}x-api-key: k\r\n", render_header_lines(90, 1))),
    );
    list.add_valid_request(
        "long headers",
        build_get_request(format!("{}x-api-key: k\r\n", render_header_lines(7, 900))),
    );
    list.add_unusual_request(
        "control byte elsewhere",
        build_get_request("x-unrelated: \x01\r\nx-api-key: k\r\n"),
    );
    list.add_unusual_request(
        "0xff elsewhere",
        build_get_request(b"x-unrelated: \xff\r\nx-api-key: k\r\n"),
    );
    let trailer = "transfer-encoding: chunked\r\n\r\n0\r\nx-api-key: other\r\n";
    list.add_unusual_request(
        "another as trailer",
        build_get_request(format!("x-api-key: k\r\n{trailer}")),
    );
    list.0
}
