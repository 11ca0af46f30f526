//! The OpenAPI description of `/v1/auth`.

use schemars::JsonSchema;
use schemars::generate::SchemaGenerator;
use serde_json::{Map, Value, json};
use slidegate::Problem;

use super::super::auth::ForwardAuthQuery;
use crate::rendering::problem::{PROBLEM_JSON, ProblemBody};

/// All HTTP methods that OpenAPI can describe. `/v1/auth` accepts any method.
const OPENAPI_METHODS: [&str; 8] =
    ["get", "head", "post", "put", "patch", "delete", "options", "trace"];

/// Name and description of each header that the proxy adds to the headers of its client.
const FORWARDED_HEADER_DESCRIPTIONS: [(&str, &str); 4] = [
    (
        "X-Forwarded-For",
        "The addresses of the client and of all proxies except the last. Each proxy appends the address of its peer.",
    ),
    ("X-Forwarded-Method", "The method of the request, which is the attribute `method`."),
    ("X-Forwarded-Uri", "The path and the query of the request. The path is the attribute `path`."),
    ("X-Forwarded-Host", "The host of the request, which is the attribute `host`."),
];

/// Returns the OpenAPI path item of `/v1/auth`, with one operation per method.
pub fn path_item(
    input_schemas: &mut SchemaGenerator,
    output_schemas: &mut SchemaGenerator,
) -> Value {
    let denial = output_schemas.subschema_for::<Problem>();
    let problem = output_schemas.subschema_for::<ProblemBody<'_>>();
    let parameters =
        build_query_and_header_parameters(ForwardAuthQuery::json_schema(input_schemas).as_value());
    let denied = json!({
        "description": "The request is denied, with status 429 by default, or 503 if it is denied only because the \
            store is unavailable. Status 400 means that the query is invalid, or that the proxy is not trusted.",
        "headers": references_to_openapi_headers(&["RateLimit-Policy", "RateLimit", "Retry-After"]),
        "content": { PROBLEM_JSON: { "schema": { "anyOf": [denial, problem] } } },
    });
    let operation = |method: &str| {
        json!({
            "operationId": format!("auth_{method}"),
            "summary": "Decides about the request that a proxy describes, and charges one unit if the request is allowed",
            "description": "Each header that the policy names, such as `header.x-api-key`, is an attribute, unless it \
                is empty. Other headers of the client are ignored.",
            "parameters": parameters,
            "responses": {
                "200": {
                    "description": "The request is allowed.",
                    "headers": references_to_openapi_headers(&["RateLimit-Policy", "RateLimit"]),
                },
                "4XX": denied,
                "5XX": denied,
            },
        })
    };
    OPENAPI_METHODS
        .map(|method| (method.to_owned(), operation(method)))
        .into_iter()
        .collect::<Map<_, _>>()
        .into()
}

fn build_query_and_header_parameters(query: &Value) -> Vec<Value> {
    let query_parameters = query["properties"].as_object().into_iter().flatten().map(|(name, schema)| {
        json!({ "name": name, "in": "query", "description": schema["description"], "schema": schema })
    });
    let header_parameters = FORWARDED_HEADER_DESCRIPTIONS.into_iter().map(|(name, description)| {
        let schema = json!({ "type": "string" });
        json!({ "name": name, "in": "header", "description": description, "schema": schema })
    });
    query_parameters.chain(header_parameters).collect()
}

fn references_to_openapi_headers(names: &[&str]) -> Map<String, Value> {
    let header = |name: &&str| {
        ((*name).to_owned(), json!({ "$ref": format!("#/components/headers/{name}") }))
    };
    names.iter().map(header).collect()
}
