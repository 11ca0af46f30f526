//! Whatever comes over the network, the answer says what is wrong with it.

use serde_json::json;
use ureq::http::Request;

use crate::client::{Answer, Client};
use crate::common::Server;

const ONE_RULE: &str = "rules: [{ name: all, domain: api, limits: [2/h] }]";

#[track_caller]
pub fn assert_problem(answer: &Answer, status: u16, title: &str, detail: &str) {
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    let problem = answer.json();
    let expected = json!({
        "type": "about:blank", "title": title, "status": status, "detail": problem["detail"]
    });
    assert_eq!((answer.status, &problem), (status, &expected));
    let found = problem["detail"].as_str().unwrap();
    assert!(found.contains(detail), "`{found}` does not say `{detail}`");
}

fn of_attributes(count: usize) -> String {
    let attributes = (0..count).map(|nth| (format!("name-{nth}"), "value".into()));
    json!({"attributes": serde_json::Map::from_iter(attributes)}).to_string()
}

fn of_name(bytes: usize) -> String {
    json!({"attributes": {"n".repeat(bytes): "value"}}).to_string()
}

fn of_value(bytes: usize) -> String {
    json!({"attributes": {"name": "v".repeat(bytes)}}).to_string()
}

fn of_domain(bytes: usize) -> String {
    json!({"domain": "d".repeat(bytes), "attributes": {}}).to_string()
}

fn of_cost(cost: &str) -> String {
    format!(r#"{{"attributes":{{}},"cost":{cost}}}"#)
}

/// A good body of so many bytes, most of them blanks.
fn padded(bytes: usize) -> String {
    let body = r#"{"attributes":{}}"#;
    body.to_owned() + &" ".repeat(bytes - body.len())
}

#[test]
fn a_body_that_makes_no_sense_is_400_and_says_where() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    let text = |text: &str| text.to_owned();
    let an_object = "the body must be a JSON object";
    let a_cost = "expected a whole number of units, 0 or more";
    let cases = [
        (text(""), an_object),
        (text("[\"api\",{},1]"), an_object),
        (text("null"), an_object),
        (text("tenant=acme"), an_object),
        (text("{\"attributes\":{}"), "EOF while parsing an object at line 1 column 16"),
        (text("{\"attributes\":{}}}"), "trailing characters at line 1 column 18"),
        (text("{\n \"attributes\":{\n \"a\":}}"), "expected value at line 3 column 6"),
        (text("{\"domain\":\"api\"}"), "missing field `attributes`"),
        (text("{\"attributes\":{},\"expense\":1}"), "unknown field `expense`"),
        (text("{\"attributes\":{},\"attributes\":{}}"), "duplicate field `attributes`"),
        (text("{\"attributes\":null}"), "expected an object of attributes"),
        (text("{\"attributes\":[]}"), "expected an object of attributes"),
        (text("{\"attributes\":{\"a\":1}}"), "integer `1`, expected a string"),
        (text("{\"attributes\":{\"a\":null}}"), "null, expected a string"),
        (text("{\"attributes\":{\"a\":{}}}"), "map, expected a string"),
        (text("{\"attributes\":{\"a\":\"1\",\"a\":\"2\"}}"), "duplicate attribute `a`"),
        (text("{\"domain\":7,\"attributes\":{}}"), "integer `7`, expected a string"),
        (of_attributes(65).replace("name-64", "name-63"), "duplicate attribute `name-63`"),
        (of_cost("-1"), a_cost),
        (of_cost("1.5"), a_cost),
        (of_cost("-1.0"), a_cost),
        (of_cost("\"1\""), a_cost),
        (of_cost("null"), a_cost),
    ];
    for (body, detail) in cases {
        for path in ["/v1/check", "/v1/peek"] {
            assert_problem(&client.post(path, &body), 400, "Bad Request", detail);
        }
    }
}

#[test]
fn long_and_many_attributes_are_decided() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for body in [of_attributes(10_000), of_name(100_000), of_value(1_000_000), of_domain(100_000)] {
        assert_eq!(client.post("/v1/check", &body).status, 200, "{}", &body[..40]);
    }
    assert_eq!(client.post("/v1/check", padded(1 << 20)).status, 200);
}

#[test]
fn body_over_1_mib_is_413() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for path in ["/v1/check", "/v1/peek", "/json"] {
        let detail = "the body is over 1048576 bytes";
        assert_problem(&client.post(path, padded((1 << 20) + 1)), 413, "Payload Too Large", detail);
    }
}

#[test]
fn deep_nesting_is_400() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let nested = open.repeat(10_000) + "1" + &close.repeat(10_000);
        for body in [nested.clone(), format!(r#"{{"attributes":{{"a":{nested}}}}}"#)] {
            assert_eq!(client.post("/v1/check", body).status, 400);
        }
    }
}

#[test]
fn a_whole_number_may_be_written_with_a_point() {
    let server = Server::start("rules: [{ name: all, limits: [5/h], algorithm: sliding_log }]");
    let client = Client::of(&server);
    let left = ["2.0", "0.0", "20e-1"].map(|cost| {
        let answer = client.post("/v1/check", of_cost(cost));
        (answer.status, answer.json()["remaining"].clone())
    });
    assert_eq!(left, [(200, json!(3)), (200, json!(3)), (200, json!(1))]);
}

#[test]
fn bad_input_charges_nothing() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for _ in 0..3 {
        let body = r#"{"domain":"api","attributes":{},"cost":1,"extra":0}"#;
        assert_eq!(client.post("/v1/check", body).status, 400);
    }
    let good = json!({"domain": "api", "attributes": {}});
    assert_eq!([(); 3].map(|()| client.check(&good).status), [200, 200, 429]);
}

#[test]
fn the_content_type_does_not_matter() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for content_type in ["application/x-www-form-urlencoded", "application/json", "nonsense"] {
        let request = Request::post("/v1/check").header("content-type", content_type);
        let answer = client.send(request.body(br#"{"attributes":{}}"#.to_vec()).unwrap());
        assert_eq!(answer.status, 200, "{content_type}");
    }
}

#[test]
fn a_path_that_leads_nowhere_is_404() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for path in ["/", "/v1", "/v1/check/", "/v2/check"] {
        let detail = format!("path `{path}` does not exist");
        assert_problem(&client.call("GET", path), 404, "Not Found", &detail);
    }
}

#[test]
fn another_method_is_405_and_says_which_is_right() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    let cases = [
        ("GET", "/v1/check", "POST"),
        ("PUT", "/v1/check", "POST"),
        ("DELETE", "/v1/peek", "POST"),
        ("OPTIONS", "/v1/check", "POST"),
        ("POST", "/healthz", "GET,HEAD"),
        ("PUT", "/v1/openapi.json", "GET,HEAD"),
    ];
    for (method, path, right) in cases {
        let answer = client.call(method, path);
        let detail = format!("`{path}` does not accept {method}");
        assert_problem(&answer, 405, "Method Not Allowed", &detail);
        assert_eq!(answer.header("allow"), Some(right));
    }
}

#[test]
fn head_is_told_what_get_is_without_the_body() {
    let server = Server::start(ONE_RULE);
    let client = Client::of(&server);
    for (path, status) in [("/healthz", 200), ("/v1/openapi.json", 200), ("/nowhere", 404)] {
        let answers = ["GET", "HEAD"].map(|method| client.call(method, path));
        let lengths = answers.each_ref().map(|answer| answer.header("content-length"));
        assert_eq!(answers.each_ref().map(|answer| answer.status), [status; 2]);
        assert_eq!((lengths[0], &*answers[1].body), (lengths[1], ""));
    }
    assert_eq!(client.call("HEAD", "/v1/check").status, 405);
}

#[test]
fn healthz_says_ok() {
    let server = Server::start(ONE_RULE);
    let answer = Client::of(&server).call("GET", "/healthz");
    assert_eq!((answer.status, &*answer.body), (200, "ok"));
}
