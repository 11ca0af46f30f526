//! Messages of Envoy's rate limit service, in the JSON mapping of Protocol Buffers.

use std::fmt;
use std::sync::LazyLock;

use prost_reflect::{DescriptorError, DescriptorPool, DynamicMessage, MessageDescriptor};
use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Serializer;
use thiserror::Error;

use super::messages::{FILE_DESCRIPTOR_SET, RateLimitRequest, RateLimitResponse};
use crate::client_text::excerpt;
use crate::json::describe_json_error;

/// The reason why a message cannot be parsed from JSON or written as JSON.
#[derive(Debug, Error)]
pub enum JsonError {
    /// The text is not a valid message.
    #[error("{0}")]
    Invalid(String),
    /// The server cannot convert the message.
    #[error("message cannot be converted: {0}")]
    Internal(String),
}

static PROTOBUF_DESCRIPTOR_POOL: LazyLock<Result<DescriptorPool, DescriptorError>> =
    LazyLock::new(|| DescriptorPool::decode(FILE_DESCRIPTOR_SET));

/// Parses a rate limit request from text that [`repair_json`](crate::json::repair_json) has made readable.
pub fn parse(text: &str) -> Result<RateLimitRequest, JsonError> {
    let descriptor = find_protobuf_message_descriptor("RateLimitRequest")?;
    let mut deserializer = serde_json::Deserializer::from_str(text);
    let message = DynamicMessage::deserialize(descriptor, &mut deserializer)
        .map_err(to_invalid_json_error)?;
    deserializer.end().map_err(to_invalid_json_error)?;
    serde_json::from_str::<JsonWithoutDuplicateFields>(text).map_err(to_invalid_json_error)?;
    message.transcode_to().map_err(to_internal_json_error)
}

/// A JSON value whose objects contain each field once. prost-reflect uses the last of several fields with the same
/// name, but JSON parsers disagree on which of them counts.
struct JsonWithoutDuplicateFields;

impl<'de> Deserialize<'de> for JsonWithoutDuplicateFields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonWithoutDuplicateFields)
    }
}

impl<'de> Visitor<'de> for JsonWithoutDuplicateFields {
    type Value = Self;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self, A::Error> {
        // A list suffices: a message has few fields with at most two spellings each, and prost-reflect has rejected
        // other names.
        let mut names: Vec<String> = Vec::new();
        while let Some((name, Self)) = map.next_entry::<String, Self>()? {
            // `hits_addend` and `hitsAddend` are the same field.
            let normalized = name.replace('_', "").to_ascii_lowercase();
            if names.contains(&normalized) {
                let name = excerpt(&name);
                return Err(A::Error::custom(format!("duplicate field `{name}`")));
            }
            names.push(normalized);
        }
        Ok(self)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self, A::Error> {
        while let Some(Self) = list.next_element()? {}
        Ok(self)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_str<E>(self, _: &str) -> Result<Self, E> {
        Ok(self)
    }

    fn visit_unit<E>(self) -> Result<Self, E> {
        Ok(self)
    }
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

fn to_invalid_json_error(error: serde_json::Error) -> JsonError {
    let remedy =
        "send a RateLimitRequest of Envoy's rate limit service, as in docs/reference/grpc.md";
    JsonError::Invalid(format!("{}; {remedy}", describe_json_error(&error)))
}

fn to_internal_json_error(error: impl ToString) -> JsonError {
    JsonError::Internal(error.to_string())
}

#[cfg(test)]
mod tests {
    use prost_types::Duration;
    use serde_json::json;

    use super::*;
    use crate::wire::rls::messages::envoy::service::ratelimit::v3::rate_limit_response::{
        DescriptorStatus, RateLimit,
    };

    #[test]
    fn json_request_accepts_camel_and_snake_case() {
        let spellings = [
            r#"{"domain":"d","hitsAddend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
                "limit":{"requestsPerUnit":3,"unit":"WEEK"},"hitsAddend":"4","isNegativeHits":true}]}"#,
            r#"{"domain":"d","hits_addend":2,"descriptors":[{"entries":[{"key":"k","value":"v"}],
                "limit":{"requests_per_unit":3,"unit":7},"hits_addend":4,"is_negative_hits":true}]}"#,
        ];
        let [one, other] = spellings.map(|text| parse(text).unwrap());
        assert_eq!(one, other);
        assert_eq!((one.hits_addend, one.descriptors[0].hits_addend), (2, Some(4)));
        let with_floats = spellings[1].replace("hits_addend\":4", "hits_addend\":4.0");
        assert_eq!(one, parse(&with_floats).unwrap());
        for invalid in ["", "{", "[]", "{} {}", r#"{"nothing":1}"#, r#"{"domain":7}"#] {
            assert!(matches!(parse(invalid), Err(JsonError::Invalid(_))), "{invalid}");
        }
    }

    #[test]
    fn invalid_json_request_has_location_and_remedy() {
        for (text, expected) in [
            (
                r#"{"descriptors":[{"hitsAddend":4.5}]}"#,
                "column 33: expected integer value; send a",
            ),
            ("[]", "column 0: invalid type: sequence, expected a map; send a RateLimitRequest"),
            (r#"{"domain":"a"#, "column 12: the body ends within a string; send"),
            ("{} {}", "column 4: trailing characters; send"),
            (r#"{"attributes":{}}"#, "column 13: unrecognized field name 'attributes'; send a"),
            (r#"{"domain":7}"#, "column 11: invalid type: integer `7`, expected a string; send a"),
            (r#"{"domain":"a","domain":"b"}"#, "column 27: duplicate field `domain`; send a"),
            (r#"{"hitsAddend":1,"hits_addend":2}"#, "duplicate field `hits_addend`"),
            (
                r#"{"descriptors":[{"entries":[{"key":"a","key":"b"}]}]}"#,
                "duplicate field `key`; send a",
            ),
        ] {
            let error = parse(text).unwrap_err().to_string();
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
