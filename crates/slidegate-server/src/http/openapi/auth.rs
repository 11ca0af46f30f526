//! The description of `/v1/auth`.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;
use serde_json::{Map, Value, json};
use slidegate::Problem as Denial;

use super::super::auth::Terms;
use super::super::problem::{PROBLEM_JSON, ProblemBody};

/// Any method is taken; these are all that OpenAPI knows.
const METHODS: [&str; 8] = ["get", "head", "post", "put", "patch", "delete", "options", "trace"];

/// What a proxy says in headers, beside those of its client.
const FORWARDED: [(&str, &str); 4] = [
    ("X-Forwarded-For", "Who asked whom, by address: each proxy has added who asked it."),
    ("X-Forwarded-Method", "The method of the request; the attribute `method`."),
    ("X-Forwarded-Uri", "The path of the request; the attribute `path` is this without the query."),
    ("X-Forwarded-Host", "The host that the request is for; the attribute `host`."),
];

/// The path with all of its methods.
pub fn described(read: &mut SchemaGenerator, written: &mut SchemaGenerator) -> Value {
    let denial = written.subschema_for::<Denial>();
    let problem = written.subschema_for::<ProblemBody<'_>>();
    let parameters = parameters(Terms::json_schema(read).as_value());
    let denied = json!({
        "description": "The request is denied, with this status or with 429, or 503 if only the lack of a \
            store denies it; or the question makes no sense, or its proxy is not trusted.",
        "headers": headers(&["RateLimit-Policy", "RateLimit", "Retry-After"]),
        "content": { PROBLEM_JSON: { "schema": { "anyOf": [denial, problem] } } },
    });
    let operation = |method: &str| {
        json!({
            "operationId": format!("auth_{method}"),
            "summary": "Whether the request may pass that a proxy tells of. If it may, one unit is charged.",
            "description": "A header that the policy names, such as `header.x-api-key`, is an attribute, unless it is \
                empty. Other headers of the client are not read.",
            "parameters": parameters,
            "responses": {
                "200": {
                    "description": "The request may pass.",
                    "headers": headers(&["RateLimit-Policy", "RateLimit"]),
                },
                "4XX": denied,
                "5XX": denied,
            },
        })
    };
    METHODS
        .map(|method| (method.to_owned(), operation(method)))
        .into_iter()
        .collect::<Map<_, _>>()
        .into()
}

fn parameters(terms: &Value) -> Vec<Value> {
    let of_query = terms["properties"].as_object().into_iter().flatten().map(|(name, schema)| {
        json!({ "name": name, "in": "query", "description": schema["description"], "schema": schema })
    });
    let of_headers = FORWARDED.into_iter().map(|(name, description)| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "header", "description": description, "schema": schema })
    });
    of_query.chain(of_headers).collect()
}

fn headers(names: &[&str]) -> Map<String, Value> {
    let header = |name: &&str| {
        ((*name).to_owned(), json!({ "$ref": format!("#/components/headers/{name}") }))
    };
    names.iter().map(header).collect()
}
