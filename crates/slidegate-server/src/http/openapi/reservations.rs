//! The descriptions of `/v1/reserve` and `/v1/settle`.

use schemars::generate::SchemaGenerator;
use serde_json::{Value, json};

use super::super::check_request::{ReserveRequest, SettleRequest};
use super::{
    add_common_error_responses, add_idempotency_responses, allowed_decision_example,
    build_decision_response, denied_decision_example, store_unavailable_decision_example,
};
use crate::rendering::check_response::{ReserveResponse, SettleResponse};

/// Status and description of each error response to a settlement that other operations do not have.
pub const ERROR_RESPONSES: [(&str, &str); 3] = [
    (
        "410",
        "The reservation or the permit has expired, or too many newer calls are remembered. The charge of a reservation stays.",
    ),
    (
        "421",
        "Another instance made the reservation or the permit, and only that instance can change it.",
    ),
    (
        "503",
        "The store is unavailable. Repeat the call: a settlement or a release is applied once.",
    ),
];

/// Returns the descriptions of `/v1/reserve` and `/v1/settle`.
pub fn path_items(input: &mut SchemaGenerator, output: &mut SchemaGenerator) -> [Value; 2] {
    let reserve = input.subschema_for::<ReserveRequest<'_>>();
    let settle = input.subschema_for::<SettleRequest<'_>>();
    let reserved = output.subschema_for::<ReserveResponse<'_>>();
    let settled = output.subschema_for::<SettleResponse>();
    [
        reserve_operation(reserve.as_value(), reserved.as_value()),
        settle_operation(settle.as_value(), settled.as_value()),
    ]
}

fn reserve_operation(request: &Value, response: &Value) -> Value {
    let example = |decision: Value, token: Value, expires_in_ms: Value| {
        let mut example = decision;
        example["reservation"] = token;
        example["expires_in_ms"] = expires_in_ms;
        example
    };
    let denied = |decision| example(decision, Value::Null, Value::Null);
    let operation = json!({
        "operationId": "reserve",
        "summary": "Decides as `/v1/check` does, and returns a token with which the charge is corrected later",
        "description": "The costs are estimates. `/v1/settle` corrects them. Without a settlement, the estimates stay charged.",
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": request, "examples": { "tokens": {
                "summary": "An estimate of 2000 tokens",
                "value": {
                    "attributes": { "client": "alice" },
                    "costs": { "tokens": 2000 },
                    "idempotency_key": "3f0c5b1e-6c50-4b58-9d5e-0a3f6e3c1a77",
                    "ttl_ms": 120_000,
                },
            } } } },
        },
        "responses": add_common_error_responses(json!({
            "200": build_decision_response(
                "The request is allowed, and its estimate is charged.",
                &["RateLimit-Policy", "RateLimit"],
                response,
                &example(allowed_decision_example(), json!("AQ…"), json!(120_000)),
            ),
            "429": build_decision_response(
                "The request is denied. A rule with `deny_status` has another status.",
                &["RateLimit-Policy", "RateLimit", "Retry-After"],
                response,
                &denied(denied_decision_example()),
            ),
            "503": build_decision_response(
                "The request is denied, because the store is unavailable and a rule denies requests without it.",
                &[],
                response,
                &denied(store_unavailable_decision_example()),
            ),
        })),
    });
    add_idempotency_responses(operation)
}

fn settle_operation(request: &Value, response: &Value) -> Value {
    let mut responses = add_common_error_responses(json!({ "200": {
        "description": "The charge is corrected. The response is the same if the settlement is repeated.",
        "content": { "application/json": { "schema": response, "example": { "settled": true } } },
    } }));
    for status in ["409", "410", "421", "503"] {
        responses[status] = json!({ "$ref": format!("#/components/responses/{status}") });
    }
    json!({
        "operationId": "settle",
        "summary": "Corrects the charge of a reservation to the actual costs, once",
        "description": "Can be repeated. `{\"cost\": 0}` without `costs` cancels the reservation: all its charges \
            are reverted. Otherwise, costs that are not sent stay at their estimates, and so do rules with a constant cost.",
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": request, "examples": { "tokens": {
                "summary": "1830 tokens were used",
                "value": { "reservation": "AQ…", "costs": { "tokens": 1830 } },
            } } } },
        },
        "responses": responses,
    })
}
