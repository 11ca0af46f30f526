//! Tests of invalid HTTP requests: the response status and body describe the error.

use serde_json::json;
use ureq::http::Request;

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};

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
    let example = "send a JSON object such as {\"attributes\":{\"client\":\"alice\"}}";
    let with_example = |problem: &str| format!("{problem}; {example}");
    let cost_expected =
        "is not accepted; send a whole number, 0 or more, without quotes".to_owned();
    let value_expected = |location: &str, json: &str| {
        format!(
            "{location}: attribute `a`: {json} is not a string, an integer or a boolean; send text in \
             double quotes, or omit the attribute"
        )
    };
    let cases = [
        (text(""), with_example("line 1 column 0: the body ends within a value")),
        (
            text("[\"api\",{},1]"),
            with_example("line 1 column 0: invalid type: sequence, expected an object"),
        ),
        (text("null"), with_example("line 1 column 4: invalid type: null, expected an object")),
        (text("tenant=acme&plan=pro"), with_example("line 1 column 2: expected ident")),
        (text("'{\"attributes\":{}}'"), with_example("line 1 column 1: expected value")),
        (
            text("{\"attributes\":{}"),
            with_example("line 1 column 16: the body ends within an object"),
        ),
        (text("{\"attributes\":{}}}"), with_example("line 1 column 18: trailing characters")),
        (text("{\n \"attributes\":{\n \"a\":}}"), with_example("line 3 column 6: expected value")),
        (text("{'attributes':{}}"), with_example("line 1 column 2: key must be a string")),
        (text("{attributes:{}}"), with_example("line 1 column 2: key must be a string")),
        (
            text("{\"domain\":\"api\"}"),
            with_example("line 1 column 16: missing field `attributes`"),
        ),
        (
            text("{\"attribute\":{}}"),
            text(
                "line 1 column 12: unknown field `attribute`, expected one of `domain`, `attributes`, ",
            ),
        ),
        (text("{\"client\":\"alice\"}"), text("unknown field `client`, expected one of ")),
        (text("{\"client\":\"alice\"}"), with_example("")),
        (
            text("{\"\\ud800\":1}"),
            text("line 1 column 9: unknown field `\u{fffd}`, expected one of "),
        ),
        (text("{\"descriptors\":[]}"), text("unknown field `descriptors`, expected one of ")),
        (
            text("{\"attributes\":{},\"attributes\":{}}"),
            with_example("line 1 column 29: duplicate field `attributes`"),
        ),
        (
            text("{\"attributes\":null}"),
            with_example(
                "line 1 column 18: invalid type: null, expected an object with a value for each attribute",
            ),
        ),
        (
            text("{\"attributes\":[]}"),
            text("line 1 column 14: invalid type: sequence, expected an"),
        ),
        (text("{\"attributes\":{\"a\":null}}"), value_expected("line 1 column 24", "null")),
        (text("{\"attributes\":{\"a\":{}}}"), value_expected("line 1 column 22", "{}")),
        (text("{\"attributes\":{\"a\":[1]}}"), value_expected("line 1 column 23", "[1]")),
        (text("{\"attributes\":{\"a\":1.5}}"), value_expected("line 1 column 23", "1.5")),
        (text("{\"attributes\":{\"a\":1e3}}"), value_expected("line 1 column 23", "1e3")),
        (text("{\"attributes\":{\"a\":-0}}"), value_expected("line 1 column 22", "-0")),
        (text("{\"attributes\":{\"a\":10.0.0.1}}"), value_expected("line 1 column 23", "10.0")),
        (
            text("{\"attributes\":{\"a\":\"1\",\"a\":\"2\"}}"),
            text("line 1 column 31: duplicate attribute `a`; send each attribute once"),
        ),
        (
            text("{\"domain\":7,\"attributes\":{}}"),
            with_example("line 1 column 11: invalid type: integer `7`, expected a string"),
        ),
        (
            body_with_attribute_count(65).replace("name-64", "name-63"),
            text("duplicate attribute `name-63`; send each attribute once"),
        ),
        (body_with_cost("-1"), format!("line 1 column 27: `cost`: -1 {cost_expected}")),
        (body_with_cost("1.5"), cost_expected.clone()),
        (body_with_cost("-1.0"), cost_expected.clone()),
        (body_with_cost("\"1\""), cost_expected.clone()),
        (body_with_cost("null"), cost_expected),
    ];
    for (body, detail) in cases {
        for path in ["/v1/check", "/v1/peek"] {
            assert_problem(&client.post(path, &body), 400, "Bad Request", &detail);
        }
    }
}

#[test]
fn error_repeats_only_beginning_of_long_text() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let long = "x, expected; ".repeat(1_000);
    for body in [
        format!("{{\"{long}\":1}}"),
        format!("\"{long}\""),
        format!("{{\"attributes\":\"{long}\"}}"),
        format!("{{\"attributes\":{{\"{long}\":1,\"{long}\":2}}}}"),
        format!("{{\"attributes\":{{\"{long}\":[\"{long}\"]}}}}"),
        format!("{{\"attributes\":{{}},\"cost\":\"{long}\"}}"),
        format!("{{\"attributes\":{{}},\"idempotency_key\":\"{long}\"}}"),
    ] {
        for (path, detail) in [("/v1/check", "…"), ("/json", "; send a RateLimitRequest")] {
            let response = client.post(path, &body);
            assert_problem(&response, 400, "Bad Request", detail);
            assert!(response.body.len() < 1_000, "{}", response.body);
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
            assert_eq!(client.post("/v1/check", &body).status, 400);
            assert_eq!(client.post("/json", &body).status, 400);
        }
        let descriptors = format!(r#"{{"descriptors":{nested}}}"#);
        assert_eq!(client.post("/json", descriptors).status, 400);
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
