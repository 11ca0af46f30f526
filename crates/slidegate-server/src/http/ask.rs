//! The body of a check, read without copying. Mistakes are reported with their positions.
//!
//! The caller often lets a request pass if its check fails, and end clients choose many of the values. So no value,
//! name, domain, cost or number of attributes makes a check fail.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::{DEFAULT_DOMAIN, Descriptor, Request};

use super::problem::Problem;

/// Attributes up to which repeated names are looked for pair by pair.
const FEW_ATTRIBUTES: usize = 16;

/// What the client asks about.
#[derive(Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ask<'b> {
    /// Whose rules apply; `default` if it is not given.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request.
    #[serde(borrow)]
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Cost")]
    cost: Option<Cost>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}. Without its name a rule is checked, not charged.
    #[serde(borrow, default)]
    costs: Costs<'b>,
}

/// The body of `/v1/report`: units that have been consumed, at least one cost.
#[derive(Deserialize, JsonSchema)]
#[schemars(extend("anyOf" = [
    { "required": ["cost"] },
    { "required": ["costs"], "properties": { "costs": { "minProperties": 1 } } },
]))]
#[serde(deny_unknown_fields)]
pub struct ReportAsk<'b> {
    /// Whose rules apply; `default` if it is not given.
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    /// The attributes of the request.
    #[serde(borrow)]
    attributes: Attributes<'b>,
    /// Units to charge by rules that state no cost. Without it, these rules are skipped.
    #[serde(default, deserialize_with = "given")]
    #[schemars(with = "Cost")]
    cost: Option<Cost>,
    /// Units to charge by rules with a named cost, such as {"tokens": 1800}.
    #[serde(borrow, default)]
    costs: Costs<'b>,
}

impl<'b> ReportAsk<'b> {
    /// Parses a body.
    pub fn read(body: &'b [u8]) -> Result<Self, Problem> {
        let ask: Self = read_object(body)?;
        match ask.cost.is_none() && ask.costs.0.is_empty() {
            true => Err(Problem::bad_request(
                r#"nothing to report: the body needs `cost`, or `costs` such as {"tokens":1800}"#,
            )),
            false => Ok(ask),
        }
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &str {
        &self.domain.text
    }

    /// The body as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let descriptor = self.attributes.descriptor(self.cost.as_ref(), &self.costs);
        Request::new(&self.domain.text, descriptor)
    }
}

impl<'b> Ask<'b> {
    /// Reads a body.
    pub fn read(body: &'b [u8]) -> Result<Self, Problem> {
        read_object(body)
    }

    /// Whose rules apply.
    pub fn domain(&self) -> &str {
        &self.domain.text
    }

    /// The body as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let descriptor = self.attributes.descriptor(self.cost.as_ref(), &self.costs);
        Request::new(&self.domain.text, descriptor)
    }
}

/// The body of `/v1/explain`: attributes as in [`Ask`], or descriptors as in a request to the rate limit service.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainAsk<'b> {
    #[serde(borrow, default = "default_domain")]
    domain: Text<'b>,
    #[serde(borrow)]
    attributes: Option<Attributes<'b>>,
    #[serde(default, deserialize_with = "given")]
    cost: Option<Cost>,
    #[serde(borrow, default)]
    costs: Costs<'b>,
    #[serde(borrow)]
    descriptors: Option<Vec<DescriptorAsk<'b>>>,
}

/// One of several descriptors.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DescriptorAsk<'b> {
    #[serde(borrow)]
    attributes: Attributes<'b>,
    #[serde(default, deserialize_with = "given")]
    cost: Option<Cost>,
    #[serde(borrow, default)]
    costs: Costs<'b>,
}

impl<'b> ExplainAsk<'b> {
    /// Parses a body.
    pub fn read(body: &'b [u8]) -> Result<Self, Problem> {
        let ask: Self = read_object(body)?;
        let is_complete = match (&ask.attributes, &ask.descriptors) {
            (Some(_), None) => true,
            (None, Some(descriptors)) => {
                !descriptors.is_empty() && ask.cost.is_none() && ask.costs.0.is_empty()
            }
            _ => false,
        };
        match is_complete {
            true => Ok(ask),
            false => Err(Problem::bad_request(
                r#"the body has either `attributes` (and `cost` or `costs`), or `descriptors` such as [{"attributes":{"client":"alice"},"cost":1}]"#,
            )),
        }
    }

    /// The body as the gate takes it.
    pub fn request(&self) -> Request<'_> {
        let one = self.attributes.iter();
        let one = one.map(|attributes| attributes.descriptor(self.cost.as_ref(), &self.costs));
        let several = self.descriptors.iter().flatten();
        let several =
            several.map(|one| one.attributes.descriptor(one.cost.as_ref(), &one.costs).exact());
        Request::with_descriptors(&self.domain.text, one.chain(several))
    }
}

/// Parses a field that may be absent, but not null.
fn given<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cost>, D::Error> {
    Cost::deserialize(deserializer).map(Some)
}

/// Parses a body that must be a JSON object.
fn read_object<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, Problem> {
    // Serde would take an array for the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(Problem::bad_request(
            r#"the body must be a JSON object such as {"attributes":{"client":"alice"}}"#,
        ));
    }
    serde_json::from_slice(body).map_err(|error| Problem::bad_request(error.to_string()))
}

/// Returns the domain of a caller that names none.
pub fn default_domain<'b>() -> Text<'b> {
    Text { text: Cow::Borrowed(DEFAULT_DOMAIN), bytes: None }
}

/// A string. Bytes that are not UTF-8, and halves of surrogate pairs, are accepted.
pub struct Text<'b> {
    /// With a replacement for each sequence that is not Unicode.
    text: Cow<'b, str>,
    /// The bytes of a string that is not UTF-8.
    bytes: Option<Box<[u8]>>,
}

impl Text<'_> {
    /// The string.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<'b> From<Cow<'b, [u8]>> for Text<'b> {
    fn from(bytes: Cow<'b, [u8]>) -> Self {
        let lossy = |bytes: &[u8]| Text {
            text: String::from_utf8_lossy(bytes).into_owned().into(),
            bytes: Some(bytes.into()),
        };
        match bytes {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => Text { text: text.into(), bytes: None },
                Err(_) => lossy(bytes),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => Text { text: text.into(), bytes: None },
                Err(error) => lossy(error.as_bytes()),
            },
        }
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for Text<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AnyText;

        impl<'de> Visitor<'de> for AnyText {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(bytes).into())
            }

            /// A string with escapes is not part of the body as it is.
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(Text::from(Cow::Owned(bytes.to_owned())))
            }

            /// A query is text already.
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text { text: text.into(), bytes: None })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text { text: text.to_owned().into(), bytes: None })
            }
        }

        // Not as `str`: that would refuse bytes that are not UTF-8.
        deserializer.deserialize_bytes(AnyText)
    }
}

impl JsonSchema for Text<'_> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Text".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string" })
    }
}

/// What is known of the request, each name once.
struct Attributes<'b>(Vec<(Text<'b>, Text<'b>)>);

impl Attributes<'_> {
    fn descriptor<'d>(&'d self, cost: Option<&Cost>, costs: &'d Costs<'_>) -> Descriptor<'d> {
        let pairs = self.0.iter().map(|(name, value)| (&*name.text, &*value.text));
        let mut descriptor = Descriptor::new(pairs);
        if let Some(Cost(units)) = cost {
            descriptor = descriptor.cost(*units);
        }
        for (name, Cost(units)) in &costs.0 {
            descriptor = descriptor.with_cost(&name.text, *units);
        }
        for (name, value) in &self.0 {
            if let Some(bytes) = &value.bytes {
                descriptor = descriptor.with_bytes(&name.text, bytes);
            }
        }
        descriptor
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for Attributes<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of attributes with strings as values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut attributes: Vec<(Text<'_>, Text<'_>)> = Vec::new();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<Text<'_>>()? {
                    // No policy can name it, so it makes no difference.
                    if name.bytes.is_some() {
                        map.next_value::<Text<'_>>()?;
                        continue;
                    }
                    if attributes.len() == FEW_ATTRIBUTES {
                        names.extend(attributes.iter().map(|(name, _)| name.as_str().to_owned()));
                    }
                    let is_repeated = match attributes.len() < FEW_ATTRIBUTES {
                        true => attributes.iter().any(|(other, _)| other.text == name.text),
                        false => !names.insert(name.as_str().to_owned()),
                    };
                    // Readers disagree on which of two counts, so that one of them could be a way around a limit.
                    if is_repeated {
                        let message = format_args!("attribute `{}` stands here twice", name.text);
                        return Err(A::Error::custom(message));
                    }
                    attributes.push((name, map.next_value()?));
                }
                Ok(Attributes(attributes))
            }
        }

        deserializer.deserialize_map(Pairs)
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
            "additionalProperties": generator.subschema_for::<Text<'_>>(),
        })
    }
}

/// Named costs of a request, each name once.
#[derive(Default)]
struct Costs<'b>(Vec<(Text<'b>, Cost)>);

/// Names that no rule charges make no difference, so there is no reason for more.
const MAX_COSTS: usize = 64;

impl<'de: 'b, 'b> Deserialize<'de> for Costs<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;

        impl<'de> Visitor<'de> for Pairs {
            type Value = Costs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"an object of costs with numbers as values, such as {"tokens":1800}"#)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut costs: Vec<(Text<'_>, Cost)> = Vec::new();
                while let Some(name) = map.next_key::<Text<'_>>()? {
                    if costs.iter().any(|(other, _)| other.text == name.text) {
                        let message = format_args!("cost `{}` stands here twice", name.text);
                        return Err(A::Error::custom(message));
                    }
                    if costs.len() == MAX_COSTS {
                        let message = format_args!("too many costs: at most {MAX_COSTS}");
                        return Err(A::Error::custom(message));
                    }
                    costs.push((name, map.next_value()?));
                }
                Ok(Costs(costs))
            }
        }

        deserializer.deserialize_map(Pairs)
    }
}

impl JsonSchema for Costs<'_> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Costs".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "type": "object",
            "additionalProperties": generator.subschema_for::<Cost>(),
            "maxProperties": MAX_COSTS,
        })
    }
}

/// Units that a request costs.
struct Cost(u64);

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Units;

        impl Visitor<'_> for Units {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of units, 0 or more")
            }

            /// A cost that is larger than every limit never fits, and is denied.
            fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
                Ok(Cost(cost))
            }

            /// Some languages write a whole number as `2.0`, and for JSON Schema it is one.
            fn visit_f64<E: Error>(self, cost: f64) -> Result<Cost, E> {
                if cost.fract() != 0.0 || cost < 0.0 {
                    return Err(E::invalid_value(Unexpected::Float(cost), &self));
                }
                // Saturates: a number beyond 64 bits never fits either.
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
        json_schema!({ "type": "integer", "minimum": 0 })
    }
}
