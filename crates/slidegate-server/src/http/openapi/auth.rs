//! The description of `/v1/auth`.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;
use serde_json::{Map, Value, json};
use slidegate::Problem as Denial;

use super::super::auth::ForwardAuthQuery;
use super::super::problem::{PROBLEM_JSON, ProblemBody};

/// All methods that OpenAPI has. The endpoint accepts any method.
const METHODS: [&str; 8] = ["get", "head", "post", "put", "patch", "delete", "options", "trace"];

/// Headers that the proxy writes, in addition to headers of its client.
const FORWARDED_HEADERS: [(&str, &str); 4] = [
    ("X-Forwarded-For", "Who asked whom, by address: each proxy has added who asked it."),
    ("X-Forwarded-Method", "The method of the request; the attribute `method`."),
    ("X-Forwarded-Uri", "The path of the request; the attribute `path` is this without the query."),
    ("X-Forwarded-Host", "The host that the request is for; the attribute `host`."),
];

/// Returns the description of the path, with one operation per method.
pub fn path_item(
    input_schemas: &mut SchemaGenerator,
    output_schemas: &mut SchemaGenerator,
) -> Value {
    let denial = output_schemas.subschema_for::<Denial>();
    let problem = output_schemas.subschema_for::<ProblemBody<'_>>();
    let parameters = parameters(ForwardAuthQuery::json_schema(input_schemas).as_value());
    let denied = json!({
        "description": "The request is denied, with this status or with 429, or 503 if only the lack of a \
            store denies it; or the question makes no sense, or its proxy is not trusted.",
        "headers": header_references(&["RateLimit-Policy", "RateLimit", "Retry-After"]),
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
                    "headers": header_references(&["RateLimit-Policy", "RateLimit"]),
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

fn parameters(query: &Value) -> Vec<Value> {
    let query_parameters = query["properties"].as_object().into_iter().flatten().map(|(name, schema)| {
        json!({ "name": name, "in": "query", "description": schema["description"], "schema": schema })
    });
    let header_parameters = FORWARDED_HEADERS.into_iter().map(|(name, description)| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "header", "description": description, "schema": schema })
    });
    query_parameters.chain(header_parameters).collect()
}

fn header_references(names: &[&str]) -> Map<String, Value> {
    let header = |name: &&str| {
        ((*name).to_owned(), json!({ "$ref": format!("#/components/headers/{name}") }))
    };
    names.iter().map(header).collect()
}
