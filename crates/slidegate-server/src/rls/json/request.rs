//! Deserializes rate limit requests from JSON.
//!
//! This code is written by hand. Deserialization by Protocol Buffers reflection would reject text that is not Unicode.

use std::fmt;
use std::marker::PhantomData;

use prost::bytes::Bytes;
use serde::de::value::MapAccessDeserializer;
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};

use crate::rls::messages::RateLimitRequest;
use crate::rls::messages::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
use crate::rls::messages::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
use crate::rls::messages::envoy::r#type::v3::RateLimitUnit;

/// A value that is deserialized only from a JSON object. Derived serde code would also accept an array of the field
/// values in the order of declaration.
pub struct JsonObject<T>(pub T);

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct RequestJson {
    domain: Option<JsonByteString>,
    descriptors: Option<Vec<JsonObject<DescriptorJson>>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonIntegerUpTo<{ u32::MAX as u64 }>>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct DescriptorJson {
    entries: Option<Vec<JsonObject<DescriptorEntryJson>>>,
    limit: Option<JsonObject<LimitOverrideJson>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<JsonIntegerUpTo<{ u64::MAX }>>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct DescriptorEntryJson {
    key: Option<JsonByteString>,
    value: Option<JsonByteString>,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
struct LimitOverrideJson {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<JsonIntegerUpTo<{ u32::MAX as u64 }>>,
    unit: Option<TimeUnitEnumValue>,
    #[serde(alias = "unit_multiplier")]
    unit_multiplier: Option<JsonIntegerUpTo<{ u32::MAX as u64 }>>,
}

/// A JSON string that may contain any bytes.
struct JsonByteString(Vec<u8>);

/// A whole number up to `MAX`, written as a number or as a string of digits.
struct JsonIntegerUpTo<const MAX: u64>(u64);

/// The Protobuf enum value of a time unit. In JSON, a unit is written as its name or as this number.
struct TimeUnitEnumValue(i32);

impl From<RequestJson> for RateLimitRequest {
    fn from(json: RequestJson) -> Self {
        let descriptors = json.descriptors.unwrap_or_default();
        Self {
            domain: bytes_or_empty(json.domain),
            descriptors: descriptors.into_iter().map(|JsonObject(json)| json.into()).collect(),
            hits_addend: json.hits_addend.map_or(0, |JsonIntegerUpTo(units)| units as u32),
        }
    }
}

impl From<DescriptorJson> for RateLimitDescriptor {
    fn from(json: DescriptorJson) -> Self {
        let entry = |JsonObject(DescriptorEntryJson { key, value })| Entry {
            key: bytes_or_empty(key),
            value: bytes_or_empty(value),
        };
        let limit = |JsonObject(LimitOverrideJson { requests_per_unit, unit, unit_multiplier })| {
            RateLimitOverride {
                requests_per_unit: requests_per_unit
                    .map_or(0, |JsonIntegerUpTo(units)| units as u32),
                unit: unit.map_or(0, |TimeUnitEnumValue(unit)| unit),
                unit_multiplier: unit_multiplier.map(|JsonIntegerUpTo(units)| units as u32),
            }
        };
        Self {
            entries: json.entries.unwrap_or_default().into_iter().map(entry).collect(),
            limit: json.limit.map(limit),
            hits_addend: json.hits_addend.map(|JsonIntegerUpTo(units)| units),
            is_negative_hits: json.is_negative_hits.unwrap_or_default(),
        }
    }
}

fn bytes_or_empty(text: Option<JsonByteString>) -> Bytes {
    text.map_or(Bytes::new(), |JsonByteString(bytes)| bytes.into())
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for JsonObjectVisitor<T> {
            type Value = JsonObject<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonObject<T>, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
            }
        }

        deserializer.deserialize_map(JsonObjectVisitor(PhantomData))
    }
}

impl<'de> Deserialize<'de> for JsonByteString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonByteStringVisitor;

        impl Visitor<'_> for JsonByteStringVisitor {
            type Value = JsonByteString;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E: Error>(self, text: &[u8]) -> Result<JsonByteString, E> {
                Ok(JsonByteString(text.to_owned()))
            }
        }

        deserializer.deserialize_bytes(JsonByteStringVisitor)
    }
}

impl<'de, const MAX: u64> Deserialize<'de> for JsonIntegerUpTo<MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct JsonIntegerUpToVisitor<const MAX: u64>;

        impl<const MAX: u64> Visitor<'_> for JsonIntegerUpToVisitor<MAX> {
            type Value = JsonIntegerUpTo<MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {MAX}")
            }

            fn visit_u64<E: Error>(self, units: u64) -> Result<JsonIntegerUpTo<MAX>, E> {
                if units > MAX {
                    return Err(E::invalid_value(Unexpected::Unsigned(units), &self));
                }
                Ok(JsonIntegerUpTo(units))
            }

            /// Accepts 4.0 as 4: JSON has only one kind of number.
            fn visit_f64<E: Error>(self, units: f64) -> Result<JsonIntegerUpTo<MAX>, E> {
                /// The maximum up to which `f64` represents every whole number exactly.
                const MAX_EXACT_F64_INTEGER: f64 = (1_u64 << 53) as f64;
                if units.fract() != 0.0 || !(0.0..=MAX_EXACT_F64_INTEGER).contains(&units) {
                    return Err(E::invalid_value(Unexpected::Float(units), &self));
                }
                self.visit_u64(units as u64)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<JsonIntegerUpTo<MAX>, E> {
                let digits = text.bytes().all(|byte| byte.is_ascii_digit());
                match text.parse() {
                    Ok(units) if digits => self.visit_u64(units),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(JsonIntegerUpToVisitor)
    }
}

impl<'de> Deserialize<'de> for TimeUnitEnumValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TimeUnitEnumValueVisitor;

        impl Visitor<'_> for TimeUnitEnumValueVisitor {
            type Value = TimeUnitEnumValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a unit from SECOND to WEEK, or its number")
            }

            /// Accepts any number, even if no time unit has it. Unknown units are rejected later, when the message is
            /// converted: the error then contains the position of the descriptor, as for gRPC messages.
            fn visit_u64<E: Error>(self, number: u64) -> Result<TimeUnitEnumValue, E> {
                Ok(TimeUnitEnumValue(i32::try_from(number).unwrap_or(i32::MAX)))
            }

            fn visit_f64<E: Error>(self, number: f64) -> Result<TimeUnitEnumValue, E> {
                if number.fract() != 0.0 {
                    return Err(E::invalid_value(Unexpected::Float(number), &self));
                }
                Ok(TimeUnitEnumValue(number as i32))
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<TimeUnitEnumValue, E> {
                let unit = RateLimitUnit::from_str_name(name);
                let unit = unit.ok_or_else(|| E::invalid_value(Unexpected::Str(name), &self))?;
                Ok(TimeUnitEnumValue(unit.into()))
            }
        }

        deserializer.deserialize_any(TimeUnitEnumValueVisitor)
    }
}
