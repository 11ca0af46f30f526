//! Tests that compare a server with its OpenAPI description at `/v1/openapi.json`: paths, fields, and real responses.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use crate::common::Server;
use crate::http::client::{Client, HttpResponse};

const POLICY: &str = "rules: [{ name: all, per: [client], limits: [1/h, 5/d] }]";
const HTTP_METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

/// The OpenAPI description of a server, as parsed JSON.
struct OpenApiDescription(Value);

impl OpenApiDescription {
    /// Fetches the OpenAPI description from `/v1/openapi.json`.
    fn fetch(client: &Client) -> Self {
        let response = client.call("GET", "/v1/openapi.json");
        assert_eq!(
            (response.status, response.header("content-type")),
            (200, Some("application/json"))
        );
        Self(response.json())
    }

    /// Returns the OpenAPI description of the response with this status. Panics if the operation has no such response.
    fn response_description(&self, method: &str, path: &str, status: u16) -> &Value {
        let operation = &self.0["paths"][path][method.to_ascii_lowercase()];
        let response_description = &operation["responses"][status.to_string()];
        assert!(response_description.is_object(), "{method} {path} has no description of {status}");
        match response_description["$ref"].as_str() {
            Some(reference) => self.0.pointer(reference.strip_prefix('#').unwrap()).unwrap(),
            None => response_description,
        }
    }

    /// Returns `true` if a JSON value matches a JSON Schema, and has no field that the schema does not describe. The
    /// schema may refer to components of the OpenAPI description.
    fn is_valid_against_schema(&self, schema: &Value, value: &Value) -> bool {
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        for component in schema["components"]["schemas"].as_object_mut().unwrap().values_mut() {
            if component["properties"].is_object() {
                component["additionalProperties"] = json!(false);
            }
        }
        jsonschema::draft202012::new(&schema).unwrap().is_valid(value)
    }

    /// Asserts that a response has this status, a media type that the OpenAPI description lists, and a body that
    /// matches the schema.
    #[track_caller]
    fn assert_response_matches_description(
        &self,
        method: &str,
        path: &str,
        status: u16,
        response: &HttpResponse,
    ) {
        assert_eq!(response.status, status);
        let response_description = self.response_description(method, path, status);
        let content_type = response.header("content-type").unwrap().split(';').next().unwrap();
        let schema = &response_description["content"][content_type]["schema"];
        let body =
            if content_type == "text/plain" { json!(response.body) } else { response.json() };
        assert!(
            schema.is_object() && self.is_valid_against_schema(schema, &body),
            "{body} does not match {schema}"
        );
    }
}

#[test]
fn responses_match_openapi_description() {
    let server = Server::start_with(POLICY, &["--client-timeout", "1s"]);
    let client = Client::new(&server);
    let openapi = OpenApiDescription::fetch(&client);
    let alice = r#"{"attributes":{"client":"alice"}}"#;
    let rls =
        r#"{"domain":"default","descriptors":[{"entries":[{"key":"client","value":"rls"}]}]}"#;
    let cases = [
        ("POST", "/v1/peek", alice.to_owned(), 200),
        ("POST", "/v1/check", alice.to_owned(), 200),
        ("POST", "/v1/check", alice.to_owned(), 429),
        ("POST", "/v1/peek", alice.to_owned(), 429),
        ("POST", "/v1/check", r#"{"attributes":{}}"#.to_owned(), 200),
        ("POST", "/v1/check", r#"{"attributes":{"client":"bob"},"cost":9}"#.to_owned(), 429),
        ("POST", "/v1/check", "{}".to_owned(), 400),
        ("POST", "/json", rls.to_owned(), 200),
        ("POST", "/json", rls.to_owned(), 429),
        ("POST", "/json", "{}".to_owned(), 400),
        ("POST", "/v1/check", " ".repeat((1 << 20) + 1), 413),
        ("POST", "/v1/peek", " ".repeat((1 << 20) + 1), 413),
    ];
    for (method, path, body, status) in cases {
        openapi.assert_response_matches_description(method, path, status, &client.post(path, body));
    }
    for path in ["/healthz", "/v1/openapi.json"] {
        openapi.assert_response_matches_description("GET", path, 200, &client.call("GET", path));
    }
}

#[test]
fn decision_headers_match_openapi_description() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let openapi = OpenApiDescription::fetch(&client);
    for status in [200, 429] {
        let response = client.post("/v1/check", r#"{"attributes":{"client":"alice"}}"#);
        let described = &openapi.response_description("POST", "/v1/check", status)["headers"];
        let is_rate_limit_header =
            |name: &&str| !["content-type", "content-length", "date"].contains(name);
        let mut found: Vec<_> = response
            .headers
            .keys()
            .map(|name| name.as_str())
            .filter(is_rate_limit_header)
            .collect();
        let mut expected: Vec<_> =
            described.as_object().unwrap().keys().map(|name| name.to_ascii_lowercase()).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!(
            (response.status, found),
            (status, expected.iter().map(|name| &**name).collect())
        );
    }
}

#[test]
fn errors_outside_openapi_operations_match_problem_schema() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let openapi = OpenApiDescription::fetch(&client);
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    for (method, path, status) in [("GET", "/nowhere", 404), ("GET", "/v1/check", 405)] {
        let response = client.call(method, path);
        assert_eq!(response.status, status);
        assert!(openapi.is_valid_against_schema(&schema, &response.json()));
    }
}

#[test]
fn paths_accept_exactly_methods_in_openapi() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    for (path, operations) in OpenApiDescription::fetch(&client).0["paths"].as_object().unwrap() {
        let described =
            HTTP_METHODS.map(|method| operations.get(method.to_ascii_lowercase()).is_some());
        let accepted = HTTP_METHODS.map(|method| client.call(method, path).status != 405);
        assert_eq!(accepted, described, "{path}");
    }
}

#[test]
fn requests_accept_exactly_fields_in_openapi() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let openapi = OpenApiDescription::fetch(&client);
    let fields_of = |schema: &Value| -> BTreeSet<String> {
        let name = schema["$ref"].as_str().unwrap().strip_prefix('#').unwrap();
        openapi.0.pointer(name).unwrap()["properties"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let operations = openapi.0["paths"].as_object().unwrap().iter();
    let schemas: Vec<_> = operations
        .filter(|(path, _)| path.starts_with("/v1/"))
        .map(|(path, item)| {
            (path, &item["post"]["requestBody"]["content"]["application/json"]["schema"])
        })
        .filter(|(_, schema)| schema.is_object())
        .map(|(path, schema)| (path, fields_of(schema)))
        .collect();
    assert_eq!(schemas.len(), 7, "check, peek, report, reserve, settle, release, renew");
    let all: BTreeSet<&String> = schemas.iter().flat_map(|(_, fields)| fields).collect();
    for (path, fields) in &schemas {
        for field in &all {
            let response = client.post(path, json!({ *field: null }).to_string());
            let is_unknown = response.json()["detail"].as_str().unwrap().contains("unknown field");
            assert_eq!(
                (response.status, is_unknown),
                (400, !fields.contains(*field)),
                "{path} {field}"
            );
        }
    }
}

#[test]
fn server_enforces_bounds_of_openapi_schema() {
    let server = Server::start(POLICY);
    let client = Client::new(&server);
    let openapi = OpenApiDescription::fetch(&client);
    let schema = json!({"$ref": "#/components/schemas/CheckRequest"});
    let with_attributes = |count: usize| {
        let attributes = (0..count).map(|nth| (format!("name-{nth}"), "value".into()));
        json!({"attributes": serde_json::Map::from_iter(attributes)})
    };
    let with_name = |bytes| json!({"attributes": {"n".repeat(bytes): "value"}});
    let with_value = |bytes| json!({"attributes": {"name": "v".repeat(bytes)}});
    let with_domain = |bytes| json!({"attributes": {}, "domain": "d".repeat(bytes)});
    let with_cost = |cost: f64| json!({"attributes": {}, "cost": cost});
    let cases = [
        (with_attributes(1_000), true),
        (with_name(1_025), true),
        (with_value(100_000), true),
        (with_domain(1_025), true),
        (with_cost(0.0), true),
        (with_cost(9_007_199_254_740_991.0), true),
        (with_cost(1e30), true),
        (with_cost(-1.0), false),
        (with_cost(0.5), false),
        (json!({"attributes": {}, "costs": 1}), false),
        (json!({"domain": "api"}), false),
        (json!({"attributes": {"a": null}}), false),
        (json!({"attributes": {"a": [], "b": "c"}}), false),
        (json!({"attributes": {"a": 1.5}}), false),
        (json!({"attributes": {"a": 42, "b": -7, "c": true}}), true),
        (json!({"attributes": {"a": u64::MAX, "b": i64::MIN}}), true),
    ];
    for (request, is_valid) in cases {
        assert_eq!(openapi.is_valid_against_schema(&schema, &request), is_valid, "{request}");
        assert_eq!(client.check(&request).status != 400, is_valid, "{request}");
    }
}

#[test]
fn openapi_schemas_have_names_of_api_types() {
    let server = Server::start(POLICY);
    let openapi = OpenApiDescription::fetch(&Client::new(&server));
    let schemas = openapi.0["components"]["schemas"].as_object().unwrap();
    let names: Vec<&str> = schemas.keys().map(String::as_str).collect();
    assert_eq!(
        names,
        [
            "CheckRequest",
            "CheckResponse",
            "Denial",
            "Limit",
            "LimitStatus",
            "PeekRequest",
            "PermitRequest",
            "PolicyReadiness",
            "Problem",
            "Readiness",
            "Reason",
            "ReleaseResponse",
            "RenewResponse",
            "ReportRequest",
            "ReserveRequest",
            "ReserveResponse",
            "SettleRequest",
            "SettleResponse",
            "StoreReadiness",
        ]
    );
}

#[test]
fn openapi_examples_match_their_schemas() {
    let server = Server::start(POLICY);
    let openapi = OpenApiDescription::fetch(&Client::new(&server));
    let mut examples = 0;
    let mut media = vec![&openapi.0["paths"]];
    while let Some(value) = media.pop() {
        let schema = &value["schema"];
        let named_examples = value["examples"]
            .as_object()
            .into_iter()
            .flat_map(|named_examples| named_examples.values());
        for example in named_examples.map(|example| &example["value"]).chain(value.get("example")) {
            assert!(
                openapi.is_valid_against_schema(schema, example),
                "{example} does not match {schema}"
            );
            examples += 1;
        }
        media.extend(value.as_object().into_iter().flat_map(|members| members.values()));
    }
    assert_eq!(
        examples, 23,
        "two requests and three responses of check and peek, one of each of report and settle, one request and three \
         responses of reserve, two of release and renew each, one of json"
    );
}
