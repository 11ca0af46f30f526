//! The body of a check, read without copying. Whatever is wrong with it is told with its place.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::{DEFAULT_DOMAIN, Descriptor, MAX_UNITS, Request};

use super::problem::Problem;

/// Attributes that a request may have.
pub const MAX_ATTRIBUTES: usize = 64;

/// Bytes that the name of a domain or an attribute may have.
pub const MAX_NAME: usize = 128;

/// Bytes that the value of an attribute may have.
pub const MAX_VALUE: usize = 1024;

/// What the client asks about.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask<'b> {
    /// Whose rules apply; `default` if it is not given.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b, MAX_NAME>,
    /// What is known of the request.
    #[serde(borrow)]
    attributes: Attributes<'b>,
    /// Units that the request takes; 1 if it is not given, and 0 to ask whether one would fit.
    #[serde(default)]
    cost: Cost,
}

impl<'b> Ask<'b> {
    /// Reads a body.
    pub fn read(body: &'b [u8]) -> Result<Self, Problem> {
        // Serde would take an array for the fields in their order.
        if body.trim_ascii_start().first() != Some(&b'{') {
            return Err(Problem::bad_request(
                r#"the body must be a JSON object such as {"attributes":{"client":"alice"}}"#,
            ));
        }
        serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &str {
        &self.domain.0
    }

    /// The body as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let attributes = self.attributes.0.iter().map(|(name, value)| (&*name.0, &*value.0));
        Request::new(&self.domain.0, Descriptor::new(attributes).cost(self.cost.0))
    }
}

/// The domain of who names none.
pub fn default_domain<'b>() -> Text<'b, MAX_NAME> {
    Text(Cow::Borrowed(DEFAULT_DOMAIN))
}

/// A string of at most `MAX` bytes.
#[derive(PartialEq)]
pub struct Text<'b, const MAX: usize>(Cow<'b, str>);

impl<const MAX: usize> Text<'_, MAX> {
    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl<'de: 'b, 'b, const MAX: usize> Deserialize<'de> for Text<'b, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Short<const MAX: usize>;

        impl<const MAX: usize> Short<MAX> {
            fn check<E: Error>(self, text: Cow<'_, str>) -> Result<Text<'_, MAX>, E> {
                if text.len() > MAX {
                    return Err(E::invalid_length(text.len(), &self));
                }
                Ok(Text(text))
            }
        }

        impl<'de, const MAX: usize> Visitor<'de> for Short<MAX> {
            type Value = Text<'de, MAX>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a string of at most {MAX} bytes")
            }

            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                self.check(Cow::Borrowed(text))
            }

            /// A string with escapes does not stand in the body as it is.
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                self.check(Cow::Owned(text.to_owned()))
            }
        }

        deserializer.deserialize_str(Short::<MAX>)
    }
}

impl<const MAX: usize> JsonSchema for Text<'_, MAX> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        format!("Text{MAX}").into()
    }

    /// JSON Schema counts characters, and we count bytes: it is exact for ASCII.
    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "string",
            "maxLength": MAX,
            "description": format!("At most {MAX} bytes of UTF-8."),
        })
    }
}

/// What is known of the request, each name once.
struct Attributes<'b>(Vec<(Text<'b, MAX_NAME>, Text<'b, MAX_VALUE>)>);

impl<'de: 'b, 'b> Deserialize<'de> for Attributes<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Few;

        impl<'de> Visitor<'de> for Few {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "an object of at most {MAX_ATTRIBUTES} attributes with strings as values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut attributes: Vec<(Text<'_, MAX_NAME>, _)> = Vec::new();
                while let Some(name) = map.next_key()? {
                    if attributes.len() == MAX_ATTRIBUTES {
                        return Err(A::Error::invalid_length(MAX_ATTRIBUTES + 1, &self));
                    }
                    // Readers disagree on which of two counts: a way past a limit.
                    if attributes.iter().any(|(other, _)| *other == name) {
                        let message = format_args!("attribute `{}` stands here twice", name.0);
                        return Err(A::Error::custom(message));
                    }
                    attributes.push((name, map.next_value()?));
                }
                Ok(Attributes(attributes))
            }
        }

        deserializer.deserialize_map(Few)
    }
}

impl JsonSchema for Attributes<'_> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Attributes".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "maxProperties": MAX_ATTRIBUTES,
            "propertyNames": generator.subschema_for::<Text<'_, MAX_NAME>>(),
            "additionalProperties": generator.subschema_for::<Text<'_, MAX_VALUE>>(),
        })
    }
}

/// Units that the request takes; 1 unless said.
struct Cost(u64);

impl Default for Cost {
    fn default() -> Self {
        Self(1)
    }
}

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Units;

        impl Visitor<'_> for Units {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a whole number from 0 to {MAX_UNITS}")
            }

            fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
                if cost > MAX_UNITS {
                    return Err(E::invalid_value(Unexpected::Unsigned(cost), &self));
                }
                Ok(Cost(cost))
            }

            /// Some languages write a whole number as `2.0`, and for JSON Schema it is one.
            fn visit_f64<E: Error>(self, cost: f64) -> Result<Cost, E> {
                if cost.fract() != 0.0 || !(0.0..=MAX_UNITS as f64).contains(&cost) {
                    return Err(E::invalid_value(Unexpected::Float(cost), &self));
                }
                Ok(Cost(cost as u64))
            }
        }

        deserializer.deserialize_u64(Units)
    }
}

impl JsonSchema for Cost {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Cost".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "integer",
            "minimum": 0,
            "maximum": MAX_UNITS,
            "default": Self::default().0,
        })
    }
}
