//! Tests that no web page reads the admin listener by DNS rebinding, or sends it requests across origins.

use ureq::http::Request;

use crate::common::Server;
use crate::http::client::Client;

const POLICY: &str = "rules: [{ name: all, limits: [100/min] }]";

const EXPLAIN_BODY: &str = r#"{"attributes":{}}"#;

/// Sends a request with these headers to the admin listener. Returns the status and the body of the response.
fn send(server: &Server, method: &str, path: &str, headers: &[(&str, &str)]) -> (u16, String) {
    let request = Request::builder().method(method).uri(path);
    let request =
        headers.iter().fold(request, |request, (name, value)| request.header(*name, *value));
    let body = if method == "POST" { EXPLAIN_BODY } else { "" };
    let client = Client::with_address(server.admin_address());
    let response = client.send(request.body(body.into()).unwrap());
    (response.status, response.body)
}

#[test]
fn unknown_host_is_rejected_where_keys_are_shown() {
    let server = Server::start_with_admin(POLICY, &["--admin-host", "slidegate.internal,other"]);
    for (method, path, status) in
        [("GET", "/v1/top", 200), ("GET", "/v1/cluster", 404), ("POST", "/v1/explain", 200)]
    {
        for host in ["127.0.0.1:6070", "[::1]", "localhost:1", "Slidegate.internal:9090", "other"] {
            let (found, body) = send(&server, method, path, &[("host", host)]);
            assert_eq!(found, status, "{method} {path} {host}: {body}");
        }
        for host in ["evil.example", "127.0.0.1.evil.example:6070", "internal"] {
            let (found, body) = send(&server, method, path, &[("host", host)]);
            assert_eq!(found, 421, "{method} {path} {host}: {body}");
            assert!(body.contains(host) && body.contains("--admin-host"), "{body}");
        }
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        let (status, body) = send(&server, "GET", path, &[("host", "slidegate.svc:6070")]);
        assert_eq!(status, 200, "{path}: {body}");
    }
}

#[test]
fn host_name_of_listener_is_accepted() {
    let server = Server::start_with(POLICY, &["--admin", "localhost:0"]);
    assert_eq!(send(&server, "GET", "/v1/top", &[("host", "localhost:80")]).0, 200);
}

#[test]
fn post_of_other_origin_is_rejected() {
    let server = Server::start_with_admin(POLICY, &[]);
    let own = format!("http://{}", server.admin_address());
    for (name, value, status) in [
        ("origin", &*own, 200),
        ("origin", "http://evil.example", 403),
        ("origin", "http://127.0.0.1:1", 403),
        ("origin", "null", 403),
        ("sec-fetch-site", "cross-site", 403),
        ("sec-fetch-site", "same-site", 403),
        ("sec-fetch-site", "same-origin", 200),
        ("sec-fetch-site", "none", 200),
    ] {
        let (found, body) = send(&server, "POST", "/v1/explain", &[(name, value)]);
        assert_eq!(found, status, "{name}: {value}: {body}");
    }
    // A link on another page, which cannot read the response.
    assert_eq!(send(&server, "GET", "/v1/top", &[("sec-fetch-site", "cross-site")]).0, 200);
}
