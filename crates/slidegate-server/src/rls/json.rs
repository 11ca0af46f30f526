//! Messages of Envoy's rate limit service, in the JSON mapping of Protocol Buffers.

mod request;

use std::sync::LazyLock;

use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor};
use serde::Serialize;
use serde_json::Serializer;
use serde_json::error::Category;
use thiserror::Error;

use self::request::{JsonObject, RequestJson};
use super::messages::{FILE_DESCRIPTOR_SET, RateLimitRequest, RateLimitResponse};
use crate::json_reader;

/// The reason why a message cannot be parsed from JSON or written as JSON.
#[derive(Debug, Error)]
pub enum JsonError {
    /// The text is not a valid message.
    #[error("{0}")]
    Invalid(String),
    /// The server cannot convert the response message to JSON.
    #[error("response message cannot be converted to JSON: {0}")]
    Internal(String),
}

static PROTOBUF_DESCRIPTOR_POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET));

/// Parses a rate limit request. Unlike the JSON mapping of Protocol Buffers, accepts text that is not Unicode (bytes
/// that are not UTF-8, or half of a surrogate pair), since clients choose the values.
pub fn parse(text: &[u8]) -> Result<RateLimitRequest, JsonError> {
    match serde_json::from_slice(text) {
        Ok(JsonObject::<RequestJson>(request)) => Ok(request.into()),
        Err(error) => Err(JsonError::Invalid(describe_error(text, &error))),
    }
}

/// Returns the location, the problem and a remedy for a text that is not a rate limit request.
fn describe_error(text: &[u8], error: &serde_json::Error) -> String {
    if let Err(syntax_error) = json_reader::check_syntax(text) {
        return syntax_error.to_string();
    }
    let location = format!("line {} column {}", error.line(), error.column());
    let problem = error.to_string();
    let problem = problem.strip_suffix(&format!(" at {location}")).unwrap_or(&problem);
    let remedy = match error.classify() {
        // The syntax is valid, so the text has a value that serde_json cannot represent.
        Category::Syntax if problem != "number out of range" => {
            return format!(
                "{location}: text is not Unicode, and only `domain`, `key` and `value` may contain \
                 such text; remove unpaired surrogates such as `\\ud800`, and send UTF-8"
            );
        }
        _ if problem.contains("field `attributes`") => {
            "send attributes to /v1/check, or entries such as [{\"key\":\"client\",\"value\":\"alice\"}]"
        }
        _ if problem.contains("expected a string") => "write the value in double quotes",
        _ => "send a RateLimitRequest of Envoy's rate limit service, as in docs/reference/grpc.md",
    };
    format!("{location}: {problem}; {remedy}")
}

/// Serializes a rate limit response as JSON.
pub fn serialize(response: &RateLimitResponse) -> Result<Vec<u8>, JsonError> {
    let mut message = DynamicMessage::new(find_protobuf_message_descriptor("RateLimitResponse")?);
    message.transcode_from(response).map_err(to_internal_json_error)?;
    let mut text = Vec::new();
    message.serialize(&mut Serializer::new(&mut text)).map_err(to_internal_json_error)?;
    Ok(text)
}

fn find_protobuf_message_descriptor(name: &str) -> Result<MessageDescriptor, JsonError> {
    let pool = PROTOBUF_DESCRIPTOR_POOL.as_ref().map_err(to_internal_json_error)?;
    let found = pool.get_message_by_name(&format!("envoy.service.ratelimit.v3.{name}"));
    found.ok_or_else(|| to_internal_json_error(format!("unknown message `{name}`")))
}

fn to_internal_json_error(error: impl ToString) -> JsonError {
    JsonError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;
    use serde_json::json;

    use super::*;
    use crate::rls::messages::envoy::service::ratelimit::v3::rate_limit_response::{
        DescriptorStatus, RateLimit,
    };

    #[test]
    fn json_request_accepts_camel_and_snake_case() {
        let parse = |text: &str| parse(text.as_bytes());
        let spellings = [
            r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
                "limit":{"requestsPerUnit":3,"unit":"WEEK"},"hitsAddend":"4","isNegativeHits":true}]}"#,
            r#"{"domain":"d","hits_addend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
                "limit":{"requests_per_unit":3,"unit":7},"hits_addend":4,"is_negative_hits":true}]}"#,
        ];
        let [one, other] = spellings.map(|text| parse(text).unwrap());
        assert_eq!(one, other);
        assert_eq!((one.hits_addend, one.descriptors[0].hits_addend), (2, Some(4)));
        let with_floats = spellings[1]
            .replace("hits_addend\":4", "hits_addend\":4.0")
            .replace("unit\":7", "unit\":7.0");
        assert_eq!(one, parse(&with_floats).unwrap());
        for invalid in ["", "{", "[]", "{} {}", r#"{"nothing":1}"#, r#"{"domain":7}"#] {
            assert!(matches!(parse(invalid), Err(JsonError::Invalid(_))), "{invalid}");
        }
    }

    #[test]
    fn invalid_json_request_has_location_and_remedy() {
        for (text, expected) in [
            (r#"{"descriptors":[{"hitsAddend":4.5}]}"#, "line 1 column 33: invalid value: "),
            ("[]", "line 1 column 1: the body is a list; send a JSON object"),
            (r#"{"domain":"a"#, "the body ends early, after byte 12 and within a string"),
            (r#"{"attributes":{}}"#, "unknown field `attributes`, expected one of "),
            (r#"{"attributes":{}}"#, "; send attributes to /v1/check"),
            (r#"{"domain":7}"#, "integer `7`, expected a string; write the value in double quotes"),
            (r#"{"domain":null,"\ud800":1}"#, "text is not Unicode, and only `domain`"),
            (r#"{"descriptors":[{"hitsAddend":"\udc00"}]}"#, "remove unpaired surrogates"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("line 1 column ") && error.contains(expected), "{error}");
        }
    }

    #[test]
    fn json_response_omits_unset_fields() {
        let limit =
            RateLimit { requests_per_unit: 5, unit: 2, name: "a".into(), unit_multiplier: Some(3) };
        let status = DescriptorStatus {
            code: 2,
            current_limit: Some(limit),
            limit_remaining: 0,
            duration_until_reset: Some(Duration { seconds: 7, nanos: 0 }),
        };
        let response =
            RateLimitResponse { overall_code: 2, statuses: vec![status], ..Default::default() };
        let text: serde_json::Value =
            serde_json::from_slice(&serialize(&response).unwrap()).unwrap();
        let limit =
            json!({ "requestsPerUnit": 5, "unit": "MINUTE", "name": "a", "unitMultiplier": 3 });
        let status =
            json!({ "code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": "7s" });
        assert_eq!(text, json!({ "overallCode": "OVER_LIMIT", "statuses": [status] }));
    }
}
