//! JSON bodies of checks, reports and explanations, parsed without copying. An error message contains the line and
//! column of the error.
//!
//! No value, name, domain, cost or number of attributes makes a check fail. End clients choose many of these values,
//! and callers often allow a request if its check fails: with a value that is not accepted, a client could bypass its
//! limits.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Deserializer};
use slidegate::{DEFAULT_DOMAIN, Descriptor, Request};

use crate::rendering::problem::HttpProblem;
use crate::request_handler::ParsedRequest;

/// Maximum number of attributes whose names are compared pairwise to find repeated names. If there are more attributes,
/// a hash set is used.
const MAX_PAIRWISE_COMPARED_ATTRIBUTES: usize = 16;

/// The body of `/v1/check` and `/v1/peek`: the request to decide.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "Ask")]
#[serde(deny_unknown_fields)]
pub struct CheckRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: LossyText<'b>,
    /// The attributes of the request.
    #[serde(borrow)]
    attributes: Attributes<'b>,
    /// Units for rules that state no cost: 1 by default. 0 checks whether one unit would fit.
    #[serde(default, deserialize_with = "deserialize_cost")]
    #[schemars(with = "Cost")]
    cost: Option<Cost>,
    /// Units for rules that charge a named cost, such as {"tokens": 1800}. If the name of a rule's cost is missing
    /// here, the rule is checked, but not charged.
    #[serde(borrow, default)]
    costs: NamedCosts<'b>,
}

/// The body of `/v1/report`: units that have been consumed, at least one cost.
#[derive(Deserialize, JsonSchema)]
#[schemars(rename = "ReportAsk", extend("anyOf" = [
    { "required": ["cost"] },
    { "required": ["costs"], "properties": { "costs": { "minProperties": 1 } } },
]))]
#[serde(deny_unknown_fields)]
pub struct ReportRequest<'b> {
    /// The domain whose rules apply, by default `default`.
    #[serde(borrow, default = "default_domain")]
    domain: LossyText<'b>,
    /// The attributes of the request.
    #[serde(borrow)]
    attributes: Attributes<'b>,
    /// Units that rules without a stated cost charge. If this field is missing, these rules are skipped.
    #[serde(default, deserialize_with = "deserialize_cost")]
    #[schemars(with = "Cost")]
    cost: Option<Cost>,
    /// Units that rules with a named cost charge, such as {"tokens": 1800}.
    #[serde(borrow, default)]
    costs: NamedCosts<'b>,
}

impl<'b> ReportRequest<'b> {
    /// Parses the body of a report, which must contain at least one cost.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let request: Self = parse_json_object(body)?;
        match request.cost.is_none() && request.costs.0.is_empty() {
            true => Err(HttpProblem::bad_request(
                r#"nothing to report: the body needs `cost`, or `costs` such as {"tokens":1800}"#,
            )),
            false => Ok(request),
        }
    }
}

impl ParsedRequest for ReportRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(&self.domain.text, descriptor)
    }
}

impl<'b> CheckRequest<'b> {
    /// Parses the body of a check.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        parse_json_object(body)
    }
}

impl ParsedRequest for CheckRequest<'_> {
    fn to_gate_request(&self) -> Request<'_> {
        let descriptor = self.attributes.to_descriptor(self.cost.as_ref(), &self.costs);
        Request::new(&self.domain.text, descriptor)
    }
}

/// The body of `/v1/explain`: attributes as in [`CheckRequest`], or descriptors as in a request to Envoy's rate limit
/// service.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExplainRequest<'b> {
    #[serde(borrow, default = "default_domain")]
    domain: LossyText<'b>,
    #[serde(borrow)]
    attributes: Option<Attributes<'b>>,
    #[serde(default, deserialize_with = "deserialize_cost")]
    cost: Option<Cost>,
    #[serde(borrow, default)]
    costs: NamedCosts<'b>,
    #[serde(borrow)]
    descriptors: Option<Vec<ExplainDescriptor<'b>>>,
}

/// One descriptor in the body of `/v1/explain`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExplainDescriptor<'b> {
    #[serde(borrow)]
    attributes: Attributes<'b>,
    #[serde(default, deserialize_with = "deserialize_cost")]
    cost: Option<Cost>,
    #[serde(borrow, default)]
    costs: NamedCosts<'b>,
}

impl<'b> ExplainRequest<'b> {
    /// Parses the body of a request to `/v1/explain`, which must contain either attributes or descriptors.
    pub fn parse(body: &'b [u8]) -> Result<Self, HttpProblem> {
        let request: Self = parse_json_object(body)?;
        let is_complete = match (&request.attributes, &request.descriptors) {
            (Some(_), None) => true,
            (None, Some(descriptors)) => {
                !descriptors.is_empty() && request.cost.is_none() && request.costs.0.is_empty()
            }
            _ => false,
        };
        match is_complete {
            true => Ok(request),
            false => Err(HttpProblem::bad_request(
                r#"the body has either `attributes` (and `cost` or `costs`), or `descriptors` such as [{"attributes":{"client":"alice"},"cost":1}]"#,
            )),
        }
    }

    /// Converts this body to the request type that the gate evaluates.
    pub fn to_gate_request(&self) -> Request<'_> {
        let single = self.attributes.iter();
        let single =
            single.map(|attributes| attributes.to_descriptor(self.cost.as_ref(), &self.costs));
        let several = self.descriptors.iter().flatten();
        let several = several.map(|descriptor| {
            descriptor.attributes.to_descriptor(descriptor.cost.as_ref(), &descriptor.costs).exact()
        });
        Request::with_descriptors(&self.domain.text, single.chain(several))
    }
}

/// Deserializes a cost. The field may be absent from the body, but it must not be null.
fn deserialize_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Cost>, D::Error> {
    Cost::deserialize(deserializer).map(Some)
}

/// Parses a request body. Rejects a body that is not a JSON object.
fn parse_json_object<'b, T: Deserialize<'b>>(body: &'b [u8]) -> Result<T, HttpProblem> {
    // Serde would also accept an array with the fields in their order.
    if body.trim_ascii_start().first() != Some(&b'{') {
        return Err(HttpProblem::bad_request(
            r#"the body must be a JSON object such as {"attributes":{"client":"alice"}}"#,
        ));
    }
    serde_json::from_slice(body).map_err(|error| HttpProblem::bad_request(error.to_string()))
}

/// Returns the default domain, for requests without a domain.
pub fn default_domain<'b>() -> LossyText<'b> {
    LossyText { text: Cow::Borrowed(DEFAULT_DOMAIN), bytes: None }
}

/// A JSON string that may contain invalid Unicode: bytes that are not UTF-8, or unpaired surrogates.
pub struct LossyText<'b> {
    /// The string, with a replacement character for each invalid sequence.
    text: Cow<'b, str>,
    /// The original bytes of a string that is not UTF-8. `None` for all other strings.
    bytes: Option<Box<[u8]>>,
}

impl LossyText<'_> {
    /// Returns the string, with a replacement character for each invalid sequence.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl<'b> From<Cow<'b, [u8]>> for LossyText<'b> {
    fn from(bytes: Cow<'b, [u8]>) -> Self {
        let lossy = |bytes: &[u8]| LossyText {
            text: String::from_utf8_lossy(bytes).into_owned().into(),
            bytes: Some(bytes.into()),
        };
        match bytes {
            Cow::Borrowed(bytes) => match str::from_utf8(bytes) {
                Ok(text) => LossyText { text: text.into(), bytes: None },
                Err(_) => lossy(bytes),
            },
            Cow::Owned(bytes) => match String::from_utf8(bytes) {
                Ok(text) => LossyText { text: text.into(), bytes: None },
                Err(error) => lossy(error.as_bytes()),
            },
        }
    }
}

impl<'de: 'b, 'b> Deserialize<'de> for LossyText<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LossyTextVisitor;

        impl<'de> Visitor<'de> for LossyTextVisitor {
            type Value = LossyText<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_bytes<E: Error>(self, bytes: &'de [u8]) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(bytes).into())
            }

            /// Copies a string that contains escape sequences, because the decoded text differs from the bytes of the
            /// body.
            fn visit_bytes<E: Error>(self, bytes: &[u8]) -> Result<Self::Value, E> {
                Ok(LossyText::from(Cow::Owned(bytes.to_owned())))
            }

            /// Accepts text from the query of a URL, which is already decoded.
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(LossyText { text: text.into(), bytes: None })
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(LossyText { text: text.to_owned().into(), bytes: None })
            }
        }

        // Deserializing as `str` would reject bytes that are not UTF-8.
        deserializer.deserialize_bytes(LossyTextVisitor)
    }
}

impl JsonSchema for LossyText<'_> {
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

/// The names and values of a request's attributes. Each name occurs once.
struct Attributes<'b>(Vec<(LossyText<'b>, LossyText<'b>)>);

impl Attributes<'_> {
    fn to_descriptor<'d>(
        &'d self,
        cost: Option<&Cost>,
        costs: &'d NamedCosts<'_>,
    ) -> Descriptor<'d> {
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
        struct AttributesVisitor;

        impl<'de> Visitor<'de> for AttributesVisitor {
            type Value = Attributes<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of attributes with strings as values")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut attributes: Vec<(LossyText<'_>, LossyText<'_>)> = Vec::new();
                let mut names = HashSet::new();
                while let Some(name) = map.next_key::<LossyText<'_>>()? {
                    // A name that is not Unicode cannot occur in a policy, so it is ignored.
                    if name.bytes.is_some() {
                        map.next_value::<LossyText<'_>>()?;
                        continue;
                    }
                    if attributes.len() == MAX_PAIRWISE_COMPARED_ATTRIBUTES {
                        names.extend(attributes.iter().map(|(name, _)| name.as_str().to_owned()));
                    }
                    let is_repeated = match attributes.len() < MAX_PAIRWISE_COMPARED_ATTRIBUTES {
                        true => attributes.iter().any(|(other, _)| other.text == name.text),
                        false => !names.insert(name.as_str().to_owned()),
                    };
                    // JSON parsers disagree on which of two equal names counts. A client could use that to bypass a
                    // limit.
                    if is_repeated {
                        let message = format_args!("duplicate attribute `{}`", name.text);
                        return Err(A::Error::custom(message));
                    }
                    attributes.push((name, map.next_value()?));
                }
                Ok(Attributes(attributes))
            }
        }

        deserializer.deserialize_map(AttributesVisitor)
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
            "additionalProperties": generator.subschema_for::<LossyText<'_>>(),
        })
    }
}

/// The named costs of a request. Each name occurs once.
#[derive(Default)]
struct NamedCosts<'b>(Vec<(LossyText<'b>, Cost)>);

/// Maximum number of named costs in a request. Costs that no rule charges have no effect, so callers can omit them.
const MAX_NAMED_COSTS: usize = 64;

impl<'de: 'b, 'b> Deserialize<'de> for NamedCosts<'b> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NamedCostsVisitor;

        impl<'de> Visitor<'de> for NamedCostsVisitor {
            type Value = NamedCosts<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(r#"an object of costs with numbers as values, such as {"tokens":1800}"#)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut costs: Vec<(LossyText<'_>, Cost)> = Vec::new();
                while let Some(name) = map.next_key::<LossyText<'_>>()? {
                    if costs.iter().any(|(other, _)| other.text == name.text) {
                        let message = format_args!("duplicate cost `{}`", name.text);
                        return Err(A::Error::custom(message));
                    }
                    if costs.len() == MAX_NAMED_COSTS {
                        let message = format_args!("too many costs: at most {MAX_NAMED_COSTS}");
                        return Err(A::Error::custom(message));
                    }
                    costs.push((name, map.next_value()?));
                }
                Ok(NamedCosts(costs))
            }
        }

        deserializer.deserialize_map(NamedCostsVisitor)
    }
}

impl JsonSchema for NamedCosts<'_> {
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
            "maxProperties": MAX_NAMED_COSTS,
        })
    }
}

/// The number of units that a request costs.
struct Cost(u64);

impl<'de> Deserialize<'de> for Cost {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct CostVisitor;

        impl Visitor<'_> for CostVisitor {
            type Value = Cost;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number of units, 0 or more")
            }

            /// Accepts any cost. A cost that exceeds a limit is no error: the request is denied.
            fn visit_u64<E: Error>(self, cost: u64) -> Result<Cost, E> {
                Ok(Cost(cost))
            }

            /// Accepts whole numbers in floating-point notation, such as `2.0`: some languages write them so, and JSON
            /// Schema permits them.
            fn visit_f64<E: Error>(self, cost: f64) -> Result<Cost, E> {
                if cost.fract() != 0.0 || cost < 0.0 {
                    return Err(E::invalid_value(Unexpected::Float(cost), &self));
                }
                // Saturates: a number of more than 64 bits never fits either.
                Ok(Cost(cost as u64))
            }
        }

        deserializer.deserialize_u64(CostVisitor)
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
