//! Tests of invalid HTTP requests: the response status and body describe the error.

use serde_json::json;
use ureq::http::Request;

use crate::client::{Client, HttpResponse};
use crate::common::Server;

const POLICY: &str = "rules: [{ name: all, domain: api, limits: [2/h] }]";

/// Asserts that a response is a problem document (RFC 9457) with this status and title, whose detail contains `detail`.
#[track_caller]
pub fn assert_problem(response: &HttpResponse, status: u16, title: &str, detail: &str) {
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    let problem = response.json();
    let expected = json!({
        "type": "about:blank", "title": title, "status": status, "detail": problem["detail"]
    });
    assert_eq!((response.status, &problem), (status, &expected));
    let found = problem["detail"].as_str().unwrap();
    assert!(found.contains(detail), "`{found}` does not contain `{detail}`");
}

fn body_with_attribute_count(count: usize) -> String {
    let attributes = (0..count).map(|nth| (format!("name-{nth}"), "value".into()));
    json!({"attributes": serde_json::Map::from_iter(attributes)}).to_string()
}

fn body_with_attribute_name_length(bytes: usize) -> String {
    json!({"attributes": {"n".repeat(bytes): "value"}}).to_string()
}

fn body_with_attribute_value_length(bytes: usize) -> String {
    json!({"attributes": {"name": "v".repeat(bytes)}}).to_string()
}

fn body_with_domain_length(bytes: usize) -> String {
    json!({"domain": "d".repeat(bytes), "attributes": {}}).to_string()
}

fn body_with_cost(cost: &str) -> String {
    format!(r#"{{"attributes":{{}},"cost":{cost}}}"#)
}

/// Returns a valid body that is padded with spaces to a length of `bytes` bytes.
fn body_padded_to_length(bytes: usize) -> String {
    let body = r#"{"attributes":{}}"#;
    body.to_owned() + &" ".repeat(bytes - body.len())
}

#[test]
fn invalid_body_is_400_with_location() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let text = |text: &str| text.to_owned();
    let cost_expected = "send a whole number of units, 0 or more";
    let cases = [
        (text(""), "line 1 column 1: the body is empty; send a JSON object such as"),
        (text("[\"api\",{},1]"), "line 1 column 1: the body is a list; send a JSON object"),
        (text("null"), "the body is not an object; send a JSON object"),
        (text("tenant=acme&plan=pro"), "the body is form-encoded"),
        (text("'{\"attributes\":{}}'"), "the body is enclosed in single quotes"),
        (
            text("{\"attributes\":{}"),
            "line 1 column 16: the body ends early, after byte 16 and within an object; send the \
             whole JSON object, and check Content-Length",
        ),
        (text("{\"attributes\":{}}}"), "line 1 column 18: `}` follows the JSON object"),
        (
            text("{\n \"attributes\":{\n \"a\":}}"),
            "line 3 column 6: a value is missing; add it, or remove its name",
        ),
        (text("{'attributes':{}}"), "line 1 column 2: single quotes are not JSON"),
        (text("{attributes:{}}"), "field name `attributes` is not in double quotes"),
        (text("{\"domain\":\"api\"}"), "field `attributes` is missing; send {\"attributes\""),
        (
            text("{\"attribute\":{}}"),
            "line 1 column 2: unknown field `attribute`; did you mean `attributes`?",
        ),
        (text("{\"key\":\"alice\"}"), "unknown field `key`; did you mean `attributes`?"),
        (text("{\"keys\":[\"alice\"]}"), "unknown field `keys`; did you mean `attributes`?"),
        (text("{\"attributes\":{},\"hits\":1}"), "unknown field `hits`; did you mean `cost`?"),
        (
            text("{\"client\":\"alice\"}"),
            "unknown field `client`; if it is an attribute, send {\"attributes\":{\"client\":…}}",
        ),
        (
            text("{\"attributes\":{},\"expense\":{}}"),
            "unknown field `expense`; known fields are `domain`",
        ),
        (
            text("{\"\\ud800\":1}"),
            "line 1 column 2: field name with an unpaired surrogate or bytes that are not UTF-8",
        ),
        (text("{\"descriptors\":[]}"), "unknown field `descriptors`; send `attributes`"),
        (
            text("{\"attributes\":{},\"attributes\":{}}"),
            "duplicate field `attributes`; send it once",
        ),
        (text("{\"attributes\":null}"), "line 1 column 15: `attributes` is null; send an object"),
        (text("{\"attributes\":[]}"), "`attributes` is a list; send an object such as"),
        (text("{\"attributes\":{\"a\":null}}"), "attribute `a` is null; send a string, or omit"),
        (text("{\"attributes\":{\"a\":{}}}"), "attribute `a` is an object; send a string"),
        (text("{\"attributes\":{\"a\":[1]}}"), "attribute `a` is a list; send a string"),
        (text("{\"attributes\":{\"a\":1.5}}"), "line 1 column 20: attribute `a` is the number 1.5"),
        (text("{\"attributes\":{\"a\":1e3}}"), "send it as a string: \"1e3\""),
        (text("{\"attributes\":{\"a\":-0}}"), "send it as a string: \"-0\""),
        (text("{\"attributes\":{\"a\":10.0.0.1}}"), "`10.0.0.1` is not a JSON number"),
        (
            text("{\"attributes\":{\"a\":\"1\",\"a\":\"2\"}}"),
            "line 1 column 24: duplicate attribute `a`",
        ),
        (text("{\"domain\":7,\"attributes\":{}}"), "`domain` is a number; send a string"),
        (
            body_with_attribute_count(65).replace("name-64", "name-63"),
            "duplicate attribute `name-63`",
        ),
        (body_with_cost("-1"), cost_expected),
        (body_with_cost("1.5"), cost_expected),
        (body_with_cost("-1.0"), cost_expected),
        (body_with_cost("\"1\""), cost_expected),
        (body_with_cost("null"), cost_expected),
    ];
    for (body, detail) in cases {
        for path in ["/v1/check", "/v1/peek"] {
            assert_problem(&client.post(path, &body), 400, "Bad Request", detail);
        }
    }
}

#[test]
fn long_or_many_attributes_are_accepted() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for body in [
        body_with_attribute_count(10_000),
        body_with_attribute_name_length(100_000),
        body_with_attribute_value_length(1_000_000),
        body_with_domain_length(100_000),
    ] {
        assert_eq!(client.post("/v1/check", &body).status, 200, "{}", &body[..40]);
    }
    assert_eq!(client.post("/v1/check", body_padded_to_length(1 << 20)).status, 200);
}

#[test]
fn body_over_1_mib_is_413() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for path in ["/v1/check", "/v1/peek", "/json"] {
        let detail = "the body is over 1048576 bytes";
        assert_problem(
            &client.post(path, body_padded_to_length((1 << 20) + 1)),
            413,
            "Payload Too Large",
            detail,
        );
    }
}

#[test]
fn deeply_nested_json_is_400() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = open.repeat(10_000) + "1" + &close.repeat(10_000);
        for body in [nested.clone(), format!(r#"{{"attributes":{{"a":{nested}}}}}"#)] {
            assert_eq!(client.post("/v1/check", body).status, 400);
        }
    }
}

#[test]
fn integer_cost_in_decimal_notation_is_accepted() {
    let server = Server::start("rules: [{ name: all, limits: [5/h], algorithm: sliding_log }]");
    let client = Client::new(&server);
    let results = ["2.0", "0.0", "20e-1"].map(|cost| {
        let response = client.post("/v1/check", body_with_cost(cost));
        (response.status, response.json()["remaining"].clone())
    });
    assert_eq!(results, [(200, json!(3)), (200, json!(3)), (200, json!(1))]);
}

#[test]
fn bad_input_charges_nothing() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for _ in 0..3 {
        let body = r#"{"domain":"api","attributes":{},"cost":1,"extra":0}"#;
        assert_eq!(client.post("/v1/check", body).status, 400);
    }
    let good = json!({"domain": "api", "attributes": {}});
    assert_eq!([(); 3].map(|()| client.check(&good).status), [200, 200, 429]);
}

#[test]
fn content_type_is_ignored() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for content_type in ["application/x-www-form-urlencoded", "application/json", "nonsense"] {
        let request = Request::post("/v1/check").header("content-type", content_type);
        let response = client.send(request.body(br#"{"attributes":{}}"#.to_vec()).unwrap());
        assert_eq!(response.status, 200, "{content_type}");
    }
}

#[test]
fn unknown_path_is_404() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for path in ["/", "/v1", "/check", "/v1/check/", "/metrics"] {
        let detail = format!("path `{path}` does not exist; --http serves POST /v1/check, ");
        assert_problem(&client.call("GET", path), 404, "Not Found", &detail);
    }
}

#[test]
fn wrong_method_is_405_with_allow_header() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let cases = [
        ("GET", "/v1/check", "POST"),
        ("PUT", "/v1/check", "POST"),
        ("DELETE", "/v1/peek", "POST"),
        ("OPTIONS", "/v1/check", "POST"),
        ("POST", "/healthz", "GET,HEAD"),
        ("PUT", "/v1/openapi.json", "GET,HEAD"),
    ];
    for (method, path, right) in cases {
        let response = client.call(method, path);
        let remedy = "use a method that the header Allow lists";
        let detail = format!("`{path}` does not accept {method}; {remedy}");
        assert_problem(&response, 405, "Method Not Allowed", &detail);
        assert_eq!(response.header("allow"), Some(right));
    }
}

#[test]
fn head_response_is_get_response_without_body() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for (path, status) in [("/healthz", 200), ("/v1/openapi.json", 200), ("/nowhere", 404)] {
        let responses = ["GET", "HEAD"].map(|method| client.call(method, path));
        let lengths = responses.each_ref().map(|response| response.header("content-length"));
        assert_eq!(responses.each_ref().map(|response| response.status), [status; 2]);
        assert_eq!((lengths[0], &*responses[1].body), (lengths[1], ""));
    }
    assert_eq!(client.call("HEAD", "/v1/check").status, 405);
}

#[test]
fn healthz_returns_ok() {
    let server = Server::start(POLICY);
    let response = Client::new(&server).call("GET", "/healthz");
    assert_eq!((response.status, &*response.body), (200, "ok"));
}
