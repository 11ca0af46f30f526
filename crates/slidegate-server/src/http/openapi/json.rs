//! The OpenAPI description of `/json`.
//!
//! The messages of `/json` are defined in Protocol Buffers, so no schema can be derived from Rust types: the schemas
//! are written by hand.

use serde_json::{Value, json};

use crate::rls::MAX_DESCRIPTORS;

/// Returns the OpenAPI operation of `POST /json`. `add_common_error_responses` adds the error responses that every
/// operation may return.
pub fn operation(add_common_error_responses: impl Fn(Value) -> Value) -> Value {
    json!({
        "operationId": "json",
        "summary": "Envoy's rate limit service over HTTP, with JSON messages",
        "description": "The messages RateLimitRequest and RateLimitResponse of envoy.service.ratelimit.v3, in the \
            JSON mapping of Protocol Buffers. Field names may contain underscores, and numbers may be strings. \
            Values of entries must be strings.",
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": rls_request_schema(), "example": rls_request_example() } },
        },
        "responses": add_common_error_responses(json!({
            "200": build_openapi_rls_response("The request is allowed.", "OK"),
            "429": build_openapi_rls_response("The request is denied. `rawBody` is a problem document in base64.", "OVER_LIMIT"),
        })),
    })
}

fn rls_request_schema() -> Value {
    json!({
        "type": "object",
        "required": ["descriptors"],
        "additionalProperties": false,
        "properties": {
            "domain": string_or_null_schema(),
            "descriptors": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_DESCRIPTORS,
                "items": rls_descriptor_schema(),
            },
            "hitsAddend": unsigned_integer_schema(32),
        },
    })
}

fn rls_descriptor_schema() -> Value {
    let entry = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": { "key": string_or_null_schema(), "value": string_or_null_schema() },
    });
    let mut limits: Vec<Value> =
        TIME_UNITS_WITH_MAX_MULTIPLIER.iter().map(rls_limit_schema).collect();
    limits.push(json!({ "type": "null" }));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "entries": { "type": ["array", "null"], "items": entry },
            "limit": { "anyOf": limits },
            "hitsAddend": unsigned_integer_schema(64),
            "isNegativeHits": { "type": ["boolean", "null"] },
        },
    })
}

/// The name, the Protobuf enum value and the largest multiplier of each time unit. With a larger multiplier, the window
/// would exceed the maximum of 366 days.
const TIME_UNITS_WITH_MAX_MULTIPLIER: [(&str, u32, u32); 7] = [
    ("SECOND", 1, 366 * 86_400),
    ("MINUTE", 2, 366 * 1_440),
    ("HOUR", 3, 366 * 24),
    ("DAY", 4, 366),
    ("MONTH", 5, 12),
    ("YEAR", 6, 1),
    ("WEEK", 7, 52),
];

/// Returns the schema of a limit that a request to `/json` contains, if the limit has this time unit.
fn rls_limit_schema(&(name, number, max_multiplier): &(&str, u32, u32)) -> Value {
    // A string has fewer digits than the largest number, except for 1.
    let pattern = match max_multiplier.ilog10() {
        0 => "^1$".to_owned(),
        digits => format!("^[1-9][0-9]{{0,{}}}$", digits - 1),
    };
    json!({
        "type": "object",
        "required": ["unit"],
        "additionalProperties": false,
        "properties": {
            "requestsPerUnit": unsigned_integer_schema(32),
            "unit": { "enum": [name, number] },
            "unitMultiplier": { "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": max_multiplier },
                { "type": "string", "pattern": pattern },
                { "type": "null" },
            ] },
        },
    })
}

fn string_or_null_schema() -> Value {
    json!({ "type": ["string", "null"] })
}

/// Returns the schema of an unsigned integer of `bits` bits in the JSON mapping of Protocol Buffers.
fn unsigned_integer_schema(bits: u32) -> Value {
    // JSON numbers are exact up to 53 bits. Clients must write larger values as strings.
    let max = (1_u64 << bits.min(53)) - 1;
    json!({ "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": max },
        { "type": "string", "pattern": "^[0-9]{1,9}$" },
        { "type": "null" },
    ] })
}

fn build_openapi_rls_response(description: &str, code: &str) -> Value {
    let header = json!({
        "type": "object",
        "required": ["key", "value"],
        "properties": { "key": { "type": "string" }, "value": { "type": "string" } },
    });
    let schema = json!({
        "type": "object",
        "required": ["overallCode", "statuses"],
        "additionalProperties": false,
        "properties": {
            "overallCode": { "const": code },
            "statuses": { "type": "array", "items": descriptor_status_schema() },
            "responseHeadersToAdd": { "type": "array", "items": header },
            "rawBody": { "type": "string", "contentEncoding": "base64" },
            "dynamicMetadata": {
                "type": "object",
                "required": ["permit"],
                "additionalProperties": false,
                "properties": { "permit": { "type": "string" } },
            },
        },
    });
    json!({
        "description": description,
        "content": { "application/json": { "schema": schema } },
    })
}

fn descriptor_status_schema() -> Value {
    let units = || json!({ "type": "integer", "minimum": 0, "maximum": u32::MAX });
    json!({
        "type": "object",
        "required": ["code"],
        "additionalProperties": false,
        "properties": {
            "code": { "enum": ["OK", "OVER_LIMIT"] },
            "currentLimit": {
                "type": "object",
                "required": ["name"],
                "additionalProperties": false,
                "properties": {
                    "requestsPerUnit": units(),
                    "unit": { "type": "string" },
                    "name": { "type": "string" },
                    "unitMultiplier": { "type": "integer", "minimum": 2, "maximum": u32::MAX },
                },
            },
            "limitRemaining": units(),
            "durationUntilReset": { "type": "string", "pattern": "^[0-9]+s$" },
        },
    })
}

fn rls_request_example() -> Value {
    json!({
        "domain": "default",
        "descriptors": [{ "entries": [{ "key": "client", "value": "alice" }] }],
    })
}
