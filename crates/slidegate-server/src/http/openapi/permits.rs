//! The descriptions of `/v1/release` and `/v1/renew`.

use schemars::generate::SchemaGenerator;
use serde_json::{Value, json};

use super::super::check_request::PermitRequest;
use super::add_common_error_responses;
use crate::rendering::check_response::{ReleaseResponse, RenewResponse};

/// Returns the descriptions of `/v1/release` and `/v1/renew`.
pub fn path_items(input: &mut SchemaGenerator, output: &mut SchemaGenerator) -> [Value; 2] {
    let permit = input.subschema_for::<PermitRequest<'_>>();
    let released = output.subschema_for::<ReleaseResponse>();
    let renewed = output.subschema_for::<RenewResponse>();
    [
        operation(
            ("release", "Releases a permit, so that another request can get one"),
            "Can be repeated. Charges of rates stay. A permit that is not released expires.",
            permit.as_value(),
            ("The permit is not live any more.", released.as_value(), json!({ "released": true })),
            &["421", "503"],
        ),
        operation(
            ("renew", "Renews a permit, so that it expires a whole `permit_ttl` from now"),
            "A permit that has been released or has expired cannot be renewed.",
            permit.as_value(),
            (
                "The permit is renewed. Its token stays the same.",
                renewed.as_value(),
                json!({ "renewed": true, "permit_ttl_ms": 60_000 }),
            ),
            &["410", "421", "503"],
        ),
    ]
}

fn operation(
    (id, summary): (&str, &str),
    description: &str,
    request: &Value,
    (ok, response, example): (&str, &Value, Value),
    errors: &[&str],
) -> Value {
    let mut responses = add_common_error_responses(json!({ "200": {
        "description": ok,
        "content": { "application/json": { "schema": response, "example": example } },
    } }));
    for status in errors {
        responses[status] = json!({ "$ref": format!("#/components/responses/{status}") });
    }
    json!({
        "operationId": id,
        "summary": summary,
        "description": description,
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": request, "examples": { "permit": {
                "summary": "A permit",
                "value": { "permit": "Ag…" },
            } } } },
        },
        "responses": responses,
    })
}
