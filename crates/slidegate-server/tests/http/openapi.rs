//! `/v1/openapi.json` is true: real answers are as it says.

use serde_json::{Value, json};

use crate::client::{Answer, Client};
use crate::common::Server;

const POLICY: &str = "rules: [{ name: all, per: [client], limits: [1/h, 5/d] }]";
const METHODS: [&str; 5] = ["GET", "POST", "PUT", "PATCH", "DELETE"];

struct Description(Value);

impl Description {
    fn of(client: &Client) -> Self {
        let answer = client.call("GET", "/v1/openapi.json");
        assert_eq!((answer.status, answer.header("content-type")), (200, Some("application/json")));
        Self(answer.json())
    }

    /// The response that is described for this status.
    fn response(&self, method: &str, path: &str, status: u16) -> &Value {
        let operation = &self.0["paths"][path][method.to_ascii_lowercase()];
        let response = &operation["responses"][status.to_string()];
        assert!(response.is_object(), "{method} {path} describes no {status}");
        match response["$ref"].as_str() {
            Some(elsewhere) => self.0.pointer(elsewhere.strip_prefix('#').unwrap()).unwrap(),
            None => response,
        }
    }

    fn is_valid(&self, schema: &Value, value: &Value) -> bool {
        let mut schema = schema.clone();
        schema["components"] = self.0["components"].clone();
        jsonschema::draft202012::new(&schema).unwrap().is_valid(value)
    }

    /// The answer has the described media type, its body fits the schema, and so do its headers.
    #[track_caller]
    fn assert_describes(&self, method: &str, path: &str, status: u16, answer: &Answer) {
        assert_eq!(answer.status, status);
        let response = self.response(method, path, status);
        let content_type = answer.header("content-type").unwrap().split(';').next().unwrap();
        let schema = &response["content"][content_type]["schema"];
        let body = if content_type == "text/plain" { json!(answer.body) } else { answer.json() };
        assert!(schema.is_object() && self.is_valid(schema, &body), "{body} does not fit {schema}");
    }
}

#[test]
fn every_answer_is_as_described() {
    let server = Server::start_with(POLICY, &["--client-timeout", "1"]);
    let client = Client::of(&server);
    let description = Description::of(&client);
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
        description.assert_describes(method, path, status, &client.post(path, body));
    }
    for path in ["/healthz", "/v1/openapi.json"] {
        description.assert_describes("GET", path, 200, &client.call("GET", path));
    }
}

#[test]
fn the_headers_of_a_decision_are_those_described() {
    let server = Server::start(POLICY);
    let client = Client::of(&server);
    let description = Description::of(&client);
    for status in [200, 429] {
        let answer = client.post("/v1/check", r#"{"attributes":{"client":"alice"}}"#);
        let described = &description.response("POST", "/v1/check", status)["headers"];
        let own = |name: &&str| !["content-type", "content-length", "date"].contains(name);
        let mut found: Vec<_> =
            answer.headers.keys().map(|name| name.as_str()).filter(own).collect();
        let mut expected: Vec<_> =
            described.as_object().unwrap().keys().map(|name| name.to_ascii_lowercase()).collect();
        found.sort_unstable();
        expected.sort_unstable();
        assert_eq!((answer.status, found), (status, expected.iter().map(|name| &**name).collect()));
    }
}

#[test]
fn problems_outside_of_the_description_have_its_form_too() {
    let server = Server::start(POLICY);
    let client = Client::of(&server);
    let description = Description::of(&client);
    let schema = json!({"$ref": "#/components/schemas/Problem"});
    for (method, path, status) in [("GET", "/nowhere", 404), ("GET", "/v1/check", 405)] {
        let answer = client.call(method, path);
        assert_eq!(answer.status, status);
        assert!(description.is_valid(&schema, &answer.json()));
    }
}

#[test]
fn a_path_takes_exactly_the_methods_described() {
    let server = Server::start(POLICY);
    let client = Client::of(&server);
    for (path, operations) in Description::of(&client).0["paths"].as_object().unwrap() {
        let described = METHODS.map(|method| operations.get(method.to_ascii_lowercase()).is_some());
        let taken = METHODS.map(|method| client.call(method, path).status != 405);
        assert_eq!(taken, described, "{path}");
    }
}

#[test]
fn the_described_bounds_are_the_real_ones() {
    let server = Server::start(POLICY);
    let client = Client::of(&server);
    let description = Description::of(&client);
    let schema = json!({"$ref": "#/components/schemas/Ask"});
    let of_attributes = |count: usize| {
        let attributes = (0..count).map(|nth| (format!("name-{nth}"), "value".into()));
        json!({"attributes": serde_json::Map::from_iter(attributes)})
    };
    let of_name = |bytes| json!({"attributes": {"n".repeat(bytes): "value"}});
    let of_value = |bytes| json!({"attributes": {"name": "v".repeat(bytes)}});
    let of_domain = |bytes| json!({"attributes": {}, "domain": "d".repeat(bytes)});
    let of_cost = |cost: f64| json!({"attributes": {}, "cost": cost});
    let cases = [
        (of_attributes(1_000), true),
        (of_name(1_025), true),
        (of_value(100_000), true),
        (of_domain(1_025), true),
        (of_cost(0.0), true),
        (of_cost(536_870_912.0), true),
        (of_cost(1e30), true),
        (of_cost(-1.0), false),
        (of_cost(0.5), false),
        (json!({"attributes": {}, "costs": 1}), false),
        (json!({"domain": "api"}), false),
        (json!({"attributes": {"a": null}}), false),
    ];
    for (ask, good) in cases {
        assert_eq!(description.is_valid(&schema, &ask), good, "{ask}");
        assert_eq!(client.check(&ask).status != 400, good, "{ask}");
    }
}

#[test]
fn every_example_fits_its_schema() {
    let server = Server::start(POLICY);
    let description = Description::of(&Client::of(&server));
    let mut examples = 0;
    let mut media = vec![&description.0["paths"]];
    while let Some(value) = media.pop() {
        let schema = &value["schema"];
        let several =
            value["examples"].as_object().into_iter().flat_map(|several| several.values());
        for example in several.map(|example| &example["value"]).chain(value.get("example")) {
            assert!(description.is_valid(schema, example), "{example} does not fit {schema}");
            examples += 1;
        }
        media.extend(value.as_object().into_iter().flat_map(|members| members.values()));
    }
    assert_eq!(
        examples, 13,
        "two requests and three responses of check and of peek, one of each of report, one of json"
    );
}
