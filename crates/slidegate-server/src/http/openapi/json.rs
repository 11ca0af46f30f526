//! `/json`, whose messages are defined by Protocol Buffers and not by types that know JSON.

use serde_json::{Value, json};

use crate::rls::MAX_DESCRIPTORS;

/// The operation; `responses` adds what any request may be answered.
pub fn operation(responses: impl Fn(Value) -> Value) -> Value {
    json!({
        "operationId": "json",
        "summary": "What Envoy's rate limit service is asked over gRPC, as JSON.",
        "description": "RateLimitRequest and RateLimitResponse of envoy.service.ratelimit.v3, in the JSON of \
            Protocol Buffers: names may also be written with underscores, numbers as strings.",
        "requestBody": {
            "required": true,
            "content": { "application/json": { "schema": request(), "example": example() } },
        },
        "responses": responses(json!({
            "200": answer("The request may pass.", "OK"),
            "429": answer("The request is denied; rawBody is a problem in base64.", "OVER_LIMIT"),
        })),
    })
}

fn request() -> Value {
    json!({
        "type": "object",
        "required": ["descriptors"],
        "additionalProperties": false,
        "properties": {
            "domain": text(),
            "descriptors": {
                "type": "array",
                "minItems": 1,
                "maxItems": MAX_DESCRIPTORS,
                "items": descriptor(),
            },
            "hitsAddend": units(32),
        },
    })
}

fn descriptor() -> Value {
    let entry = json!({
        "type": "object",
        "additionalProperties": false,
        "properties": { "key": text(), "value": text() },
    });
    let mut limits: Vec<Value> = UNITS.iter().map(limit).collect();
    limits.push(json!({ "type": "null" }));
    json!({
        "type": "object",
        "additionalProperties": false,
        "properties": {
            "entries": { "type": ["array", "null"], "items": entry },
            "limit": { "anyOf": limits },
            "hitsAddend": units(64),
            "isNegativeHits": { "type": ["boolean", "null"] },
        },
    })
}

/// Units of a limit: name, number, and how many fit into the longest window.
const UNITS: [(&str, u32, u32); 7] = [
    ("SECOND", 1, 366 * 86_400),
    ("MINUTE", 2, 366 * 1_440),
    ("HOUR", 3, 366 * 24),
    ("DAY", 4, 366),
    ("MONTH", 5, 12),
    ("YEAR", 6, 1),
    ("WEEK", 7, 52),
];

/// Returns the schema of a limit in one unit.
fn limit(&(name, number, most): &(&str, u32, u32)) -> Value {
    // A string has fewer digits than the largest number, except for 1.
    let pattern = match most.ilog10() {
        0 => "^1$".to_owned(),
        digits => format!("^[1-9][0-9]{{0,{}}}$", digits - 1),
    };
    json!({
        "type": "object",
        "required": ["unit"],
        "additionalProperties": false,
        "properties": {
            "requestsPerUnit": units(32),
            "unit": { "enum": [name, number] },
            "unitMultiplier": { "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": most },
                { "type": "string", "pattern": pattern },
                { "type": "null" },
            ] },
        },
    })
}

fn text() -> Value {
    json!({ "type": ["string", "null"] })
}

/// A number of so many bits, as Protocol Buffers take it.
fn units(bits: u32) -> Value {
    // What is larger no number of JSON tells exactly; whoever means so many writes a string.
    let most = (1_u64 << bits.min(53)) - 1;
    json!({ "anyOf": [
        { "type": "integer", "minimum": 0, "maximum": most },
        { "type": "string", "pattern": "^[0-9]{1,9}$" },
        { "type": "null" },
    ] })
}

fn answer(description: &str, code: &str) -> Value {
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
            "statuses": { "type": "array", "items": status() },
            "responseHeadersToAdd": { "type": "array", "items": header },
            "rawBody": { "type": "string", "contentEncoding": "base64" },
        },
    });
    json!({
        "description": description,
        "content": { "application/json": { "schema": schema } },
    })
}

fn status() -> Value {
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

fn example() -> Value {
    json!({
        "domain": "default",
        "descriptors": [{ "entries": [{ "key": "client", "value": "alice" }] }],
    })
}
