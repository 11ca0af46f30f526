//! `/v1/openapi.json`: the OpenAPI 3.1 document of the HTTP listener.
//!
//! Most schemas are generated from the types that parse requests and write responses, so that the document agrees with
//! the code.

mod auth;
mod json;
mod permits;
mod reservations;

use std::future::{Ready, ready};

use axum::body::Bytes;
use axum::http::{HeaderName, header};
use schemars::generate::{SchemaGenerator, SchemaSettings};
use serde_json::{Map, Value, json};

use super::check_request::{CheckRequest, PeekRequest, ReportRequest};
use crate::health::Readiness;
use crate::rendering::check_response::CheckResponse;
use crate::rendering::problem::{PROBLEM_JSON, ProblemBody};

type OpenApiDocumentResponse = ([(HeaderName, &'static str); 1], Bytes);

/// Generates the OpenAPI document once, and returns a handler that serves it.
pub fn handler() -> impl Fn() -> Ready<OpenApiDocumentResponse> + Clone + Send + Sync + 'static {
    let bytes = Bytes::from(document().to_string());
    move || ready(([(header::CONTENT_TYPE, "application/json")], bytes.clone()))
}

/// Generates the OpenAPI document.
pub fn document() -> Value {
    let settings = || {
        SchemaSettings::draft2020_12()
            .with(|settings| settings.definitions_path = "/components/schemas".into())
    };
    let mut input_schemas = settings().for_deserialize().into_generator();
    let mut output_schemas = settings().for_serialize().into_generator();
    let check = input_schemas.subschema_for::<CheckRequest<'_>>();
    let peek = input_schemas.subschema_for::<PeekRequest<'_>>();
    let report = input_schemas.subschema_for::<ReportRequest<'_>>();
    let decision = output_schemas.subschema_for::<CheckResponse<'_>>();
    let readiness = output_schemas.subschema_for::<Readiness>();
    let problem = output_schemas.subschema_for::<ProblemBody<'_>>();
    let auth = auth::path_item(&mut input_schemas, &mut output_schemas);
    let reservations = reservations::path_items(&mut input_schemas, &mut output_schemas);
    let permits = permits::path_items(&mut input_schemas, &mut output_schemas);
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "slidegate",
            "description": "A rate limiter. `/v1/check` decides by a policy whether a request is allowed. \
                Invalid requests receive a problem document (RFC 9457), whose `detail` states the problem and \
                the remedy. Its status is 404 for an unknown path, and 405 for a method that the path does not \
                accept.",
            "version": env!("CARGO_PKG_VERSION"),
            "license": { "name": "MIT OR Apache-2.0", "identifier": "MIT OR Apache-2.0" },
        },
        "servers": [{ "url": "/" }],
        "paths": build_openapi_path_items(
            [check.as_value(), peek.as_value(), report.as_value()],
            decision.as_value(),
            readiness.as_value(),
            &auth,
            reservations,
            permits,
        ),
        "components": {
            "schemas": collect_schema_definitions([input_schemas, output_schemas]),
            "headers": response_header_descriptions(),
            "responses": build_common_error_responses(problem.as_value()),
        },
    })
}

fn build_openapi_path_items(
    [check, peek, report]: [&Value; 3],
    decision: &Value,
    readiness: &Value,
    auth: &Value,
    [reserve, settle]: [Value; 2],
    [release, renew]: [Value; 2],
) -> Value {
    json!({
        "/v1/check": { "post": add_idempotency_responses(build_decision_operation(
            "check",
            "Decides about a request, and charges its cost if the request is allowed",
            check,
            decision,
        )) },
        "/v1/peek": { "post": build_decision_operation(
            "peek",
            "Returns the decision of `/v1/check`, and charges nothing",
            peek,
            decision,
        ) },
        "/v1/reserve": { "post": reserve },
        "/v1/settle": { "post": settle },
        "/v1/release": { "post": release },
        "/v1/renew": { "post": renew },
        "/v1/report": { "post": add_idempotency_responses(json!({
            "operationId": "report",
            "summary": "Records consumed units, also above the maximum of a limit",
            "description": "Never denies. `cost` charges the rules that state no cost, and `costs` charges the \
                rules with a named cost. Rules with a constant cost are skipped. `limits` in the response \
                contains every limit that was charged.",
            "requestBody": {
                "required": true,
                "content": { "application/json": { "schema": report, "examples": report_request_examples() } },
            },
            "responses": add_common_error_responses(json!({ "200": build_decision_response(
                "The units are recorded. `degraded` is true if the store was unavailable.",
                &[],
                decision,
                &report_response_example(),
            ) })),
        })) },
        "/v1/auth": auth,
        "/json": { "post": json::operation(add_common_error_responses) },
        "/v1/openapi.json": { "get": {
            "operationId": "openapi",
            "summary": "Returns this OpenAPI document",
            "responses": add_common_error_responses(json!({ "200": {
                "description": "An OpenAPI 3.1 document.",
                "content": { "application/json": { "schema": { "type": "object" } } },
            } })),
        } },
        "/readyz": { "get": {
            "operationId": "readyz",
            "summary": "Returns whether the server is ready for requests, and the reasons",
            "responses": add_common_error_responses(json!({
                "200": build_readiness_response("The server is ready.", readiness),
                "503": build_readiness_response(
                    "The server is stopping, a background task has ended, or the store is unavailable and `--ready-needs-store` is set.",
                    readiness,
                ),
            })),
        } },
        "/healthz": { "get": {
            "operationId": "healthz",
            "summary": "Returns whether the server is alive",
            "responses": add_common_error_responses(json!({ "200": {
                "description": "The server is alive.",
                "content": { "text/plain": { "schema": { "const": "ok" } } },
            } })),
        } },
    })
}

fn build_readiness_response(description: &str, readiness: &Value) -> Value {
    json!({ "description": description, "content": { "application/json": { "schema": readiness } } })
}

fn collect_schema_definitions(generators: [SchemaGenerator; 2]) -> Map<String, Value> {
    generators.into_iter().flat_map(|mut generator| generator.take_definitions(true)).collect()
}

fn build_decision_operation(id: &str, summary: &str, request: &Value, decision: &Value) -> Value {
    json!({
        "operationId": id,
        "summary": summary,
        "description": "The body is read as JSON. The header Content-Type is ignored.",
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": request, "examples": check_request_examples() } },
        },
        "responses": add_common_error_responses(json!({
            "200": build_decision_response(
                "The request is allowed.",
                &["RateLimit-Policy", "RateLimit"],
                decision,
                &allowed_decision_example(),
            ),
            "429": build_decision_response(
                "The request is denied. A rule with `deny_status` has another status.",
                &["RateLimit-Policy", "RateLimit", "Retry-After"],
                decision,
                &denied_decision_example(),
            ),
            "503": build_decision_response(
                "The request is denied, because the store is unavailable and a rule denies requests without it.",
                &[],
                decision,
                &store_unavailable_decision_example(),
            ),
        })),
    })
}

fn build_decision_response(
    description: &str,
    headers: &[&str],
    decision: &Value,
    example: &Value,
) -> Value {
    let headers: Map<_, _> = headers
        .iter()
        .map(|name| ((*name).to_owned(), json!({ "$ref": format!("#/components/headers/{name}") })))
        .collect();
    json!({
        "description": description,
        "headers": headers,
        "content": { "application/json": { "schema": decision, "example": example } },
    })
}

/// Status and description of each error response that every operation may return.
const COMMON_ERROR_RESPONSES: [(&str, &str); 4] = [
    ("400", "The request is invalid. `detail` states the position, the problem and the remedy."),
    ("408", "The body did not arrive within `--client-timeout`."),
    ("413", "The body is larger than 1 MiB."),
    ("431", "The request head is larger than 64 KiB, or has more than 500 headers."),
];

/// Extends `own`, the responses of one operation. Adds references to the error responses that every operation may
/// return.
fn add_common_error_responses(mut own: Value) -> Value {
    for (status, _) in COMMON_ERROR_RESPONSES {
        own[status] = json!({ "$ref": format!("#/components/responses/{status}") });
    }
    own
}

/// Status and description of each error response to a call with an idempotency key.
const IDEMPOTENCY_ERROR_RESPONSES: [(&str, &str); 2] = [
    (
        "409",
        "The call contradicts an earlier one, or the first call with this key is still being decided.",
    ),
    ("422", "The idempotency key was used for another request."),
];

/// Adds references to the error responses to a call with an idempotency key.
fn add_idempotency_responses(mut operation: Value) -> Value {
    for (status, _) in IDEMPOTENCY_ERROR_RESPONSES {
        operation["responses"][status] =
            json!({ "$ref": format!("#/components/responses/{status}") });
    }
    operation
}

fn build_common_error_responses(schema: &Value) -> Map<String, Value> {
    let problem = |(status, description): (&str, &str)| {
        let content = json!({ PROBLEM_JSON: { "schema": schema } });
        (status.to_owned(), json!({ "description": description, "content": content }))
    };
    let responses = COMMON_ERROR_RESPONSES.into_iter().chain(IDEMPOTENCY_ERROR_RESPONSES);
    responses.chain(reservations::ERROR_RESPONSES).map(problem).collect()
}

fn response_header_descriptions() -> Value {
    json!({
        "RateLimit-Policy": {
            "description": "Every limit that applies and was evaluated, in the format of \
                draft-ietf-httpapi-ratelimit-headers. Missing if no limit applies, or if `--headers` selects \
                another format.",
            "schema": { "type": "string" },
            "example": r#""per-client.10s";q=5;w=10, "everybody";q=1000;w=1"#,
        },
        "RateLimit": {
            "description": "The status of the limit that determined the decision. Missing if RateLimit-Policy is missing.",
            "schema": { "type": "string" },
            "example": r#""per-client.10s";r=4;t=10"#,
        },
        "Retry-After": {
            "description": "Seconds until the request fits. Missing if it never fits.",
            "schema": { "type": "integer", "minimum": 0 },
            "example": 10,
        },
    })
}

fn check_request_examples() -> Value {
    json!({
        "usual": {
            "summary": "One unit of one client",
            "value": { "attributes": { "client": "alice" } },
        },
        "whole": {
            "summary": "All fields",
            "value": {
                "domain": "api",
                "attributes": { "tenant": "acme", "path": "/exports/7", "user": 42, "beta": true },
                "cost": 2,
                "costs": { "tokens": 1800 },
            },
        },
    })
}

fn report_request_examples() -> Value {
    json!({
        "tokens": {
            "summary": "1800 tokens of one client",
            "value": { "attributes": { "client": "alice" }, "costs": { "tokens": 1800 } },
        },
    })
}

fn report_response_example() -> Value {
    json!({
        "allowed": true,
        "reason": null,
        "rule": null,
        "limit": null,
        "remaining": null,
        "reset_after_ms": null,
        "retry_after_ms": null,
        "degraded": false,
        "limits": [{
            "rule": "tokens",
            "limit": { "name": "1h", "max": 90_000, "window_ms": 3_600_000 },
            "algorithm": "sliding_log",
            "allowed": true,
            "observed": false,
            "remaining": 88_200,
            "reset_after_ms": 3_600_000,
            "retry_after_ms": null,
        }],
    })
}

fn allowed_decision_example() -> Value {
    json!({
        "allowed": true,
        "reason": null,
        "rule": "per-client",
        "limit": { "name": "10s", "max": 5, "window_ms": 10_000 },
        "remaining": 4,
        "reset_after_ms": 10_000,
        "retry_after_ms": null,
        "degraded": false,
        "limits": [{
            "rule": "per-client",
            "limit": { "name": "10s", "max": 5, "window_ms": 10_000 },
            "algorithm": "sliding_log",
            "allowed": true,
            "observed": false,
            "remaining": 4,
            "reset_after_ms": 10_000,
            "retry_after_ms": null,
        }],
    })
}

fn store_unavailable_decision_example() -> Value {
    json!({
        "allowed": false,
        "reason": "store_unavailable",
        "rule": null,
        "limit": null,
        "remaining": null,
        "reset_after_ms": null,
        "retry_after_ms": null,
        "degraded": true,
        "limits": [],
    })
}

fn denied_decision_example() -> Value {
    json!({
        "allowed": false,
        "reason": "limit_exceeded",
        "rule": "per-client",
        "limit": { "name": "10s", "max": 5, "window_ms": 10_000 },
        "remaining": 0,
        "reset_after_ms": 9_995,
        "retry_after_ms": 9_972,
        "degraded": false,
        "limits": [{
            "rule": "per-client",
            "limit": { "name": "10s", "max": 5, "window_ms": 10_000 },
            "algorithm": "sliding_log",
            "allowed": false,
            "observed": false,
            "remaining": 0,
            "reset_after_ms": 9_995,
            "retry_after_ms": 9_972,
        }],
    })
}
