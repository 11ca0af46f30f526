//! JSON that clients send: bodies made readable, their parser, and the types of their fields.
//!
//! No value, domain, number of units or number of attributes makes a check fail. End clients choose many of these
//! values, and callers often allow a request if its check fails: with a value that is not accepted, a client could
//! bypass its limits. Names of costs are chosen by callers, and a name that no rule charges is rejected after parsing:
//! see [`names`](crate::decide::names).

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use serde::de::value::{MapAccessDeserializer, StrDeserializer};
use serde::de::{DeserializeSeed, Error, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use slidegate::Descriptor;
use slidegate::policy::DEFAULT_DOMAIN;
use slidegate::store::MAX_CALL_TTL;

use crate::client_text::{excerpt, truncate};

/// Maximum number of characters of each of the two parts of a parser's message: the problem, and the expected types.
const MAX_JSON_ERROR_PART_CHARS: usize = 320;

/// Maximum number of named costs in a request.
const MAX_NAMED_COSTS: usize = 64;

/// Maximum length of an idempotency key in bytes.
const MAX_IDEMPOTENCY_KEY_BYTES: usize = 255;

/// Maximum number of members whose names are compared pairwise to find repeated names. If there are more members, a
/// hash set is used.
const MAX_PAIRWISE_COMPARED_MEMBERS: usize = 16;

/// A JSON body, which borrows its strings from the text of a request.
pub trait JsonBody<'b>: Deserialize<'b> {
    /// The remedy in errors about the JSON text.
    const REMEDY: &'static str = r#"send a JSON object such as {"attributes":{"client":"alice"}}"#;

    /// Checks rules that concern several fields. Fails with a problem and a remedy.
    fn validate(&self) -> Result<(), &'static str> {
        Ok(())
    }
}

/// The reason why a body is not accepted, with a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct InvalidBody(pub String);

/// A string that is borrowed from the body, unless it contains escape sequences. serde borrows a `Cow` only if it is a
/// field, and not if it is an element of a collection or a key of a map.
#[derive(Clone, PartialEq, Eq, Hash, Deserialize)]
#[serde(transparent)]
pub struct CowText<'b>(#[serde(borrow)] Cow<'b, str>);

/// The names and values of a request's attributes. Each name occurs once.
#[derive(Deserialize)]
#[serde(transparent)]
pub struct Attributes<'b>(
    #[serde(borrow, deserialize_with = "read_attributes")] Vec<(CowText<'b>, CowText<'b>)>,
);

/// The named costs of a request. Each name occurs once.
#[derive(Default, Deserialize)]
#[serde(transparent)]
pub struct NamedCosts<'b>(
    #[serde(borrow, deserialize_with = "read_named_costs")] pub Vec<(CowText<'b>, u64)>,
);

/// A value that is deserialized only from a JSON object. Derived serde code would also accept a list of the field
/// values in the order of declaration.
pub struct JsonObject<T>(pub T);

/// Parses the JSON text of a value. Fails with a problem and a remedy.
type ValueParser<'b, V> = fn(&'b str) -> Result<V, String>;

/// Parses a body that [`repair_json`] has made readable. Positions in errors refer to the repaired text.
pub fn parse<'b, T: JsonBody<'b>>(text: &'b str) -> Result<T, InvalidBody> {
    parse_object(text, None)
}

/// Parses a body as [`parse`] does, but accepts only the fields in `fields`, a subset of the fields of its type.
pub fn parse_with_fields<'b, T: JsonBody<'b>>(
    text: &'b str,
    fields: FieldNames,
) -> Result<T, InvalidBody> {
    parse_object(text, Some(fields))
}

fn parse_object<'b, T: JsonBody<'b>>(
    text: &'b str,
    fields: Option<FieldNames>,
) -> Result<T, InvalidBody> {
    let mut json = serde_json::Deserializer::from_str(text);
    let object = json.deserialize_map(JsonObjectVisitor { fields, value: PhantomData });
    let body = object.and_then(|JsonObject(body): JsonObject<T>| json.end().map(|()| body));
    let body = body.map_err(|error| {
        let problem = describe_json_error(&error);
        // Errors of fields contain a more specific remedy after a semicolon, so the general remedy is not added.
        let has_remedy = problem.contains("; ");
        InvalidBody(if has_remedy { problem } else { format!("{problem}; {}", T::REMEDY) })
    })?;
    body.validate().map_err(|problem| InvalidBody(problem.to_owned()))?;
    Ok(body)
}

/// Returns a JSON body with strings that serde_json accepts. In a string, bytes that are not UTF-8 and unpaired
/// surrogates become U+FFFD, and control characters are escaped. Other bodies are returned without a copy.
///
/// End clients choose strings in a body, and callers often allow a request if its check fails. If a string could make
/// a check fail, a client could bypass its limits.
pub fn repair_json(body: &[u8]) -> Cow<'_, str> {
    let text = String::from_utf8_lossy(body);
    let bytes = text.as_bytes();
    // `fold` instead of `any`, because the compiler vectorizes it.
    let is_suspect =
        bytes.iter().fold(false, |found, byte| found | (*byte == b'\\') | (*byte < b' '));
    if !is_suspect {
        return text;
    }
    let (mut repaired, mut copied) = (String::new(), 0);
    let (mut position, mut in_string) = (0, false);
    while let Some(byte) = bytes.get(position) {
        let (length, replacement) = match byte {
            b'\\' => repair_escape(&bytes[position..]),
            ..b' ' if in_string => (1, Some(format!("\\u{byte:04x}"))),
            _ => (1, None),
        };
        in_string ^= *byte == b'"';
        if let Some(replacement) = replacement {
            repaired += &text[copied..position];
            repaired += &replacement;
            copied = position + length;
        }
        position += length;
    }
    if copied == 0 {
        return text;
    }
    repaired += &text[copied..];
    repaired.into()
}

/// Returns the length of the escape sequence with which `bytes` begins, and its replacement if it is an unpaired
/// surrogate.
fn repair_escape(bytes: &[u8]) -> (usize, Option<String>) {
    match (surrogate(bytes), bytes.get(6..).and_then(surrogate)) {
        (Some(0xd800..0xdc00), Some(0xdc00..)) => (12, None),
        (Some(_), _) => (6, Some("\\ufffd".into())),
        (None, _) => (2, None),
    }
}

/// Returns the surrogate that the escape sequence at the start of `bytes` represents.
fn surrogate(bytes: &[u8]) -> Option<u16> {
    let digits = bytes.strip_prefix(b"\\u")?.get(..4)?;
    let code = u16::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()?;
    (0xd800..0xe000).contains(&code).then_some(code)
}

/// Returns the location and the problem of a JSON error, as `line 1 column 2: problem`.
pub fn describe_json_error(error: &serde_json::Error) -> String {
    let location = format!("line {} column {}", error.line(), error.column());
    let message = error.to_string().replace("EOF while parsing", "the body ends within");
    let problem = message.strip_suffix(&format!(" at {location}")).unwrap_or(&message);
    // serde's messages repeat a value or name of any length, and end with the expected types or fields. The two parts
    // are cut separately, so that the end remains.
    let expected = problem.rfind(", expected").unwrap_or(problem.len());
    let (found, expected) = problem.split_at(expected);
    let [found, expected] = [found, expected].map(|part| truncate(part, MAX_JSON_ERROR_PART_CHARS));
    format!("{location}: {found}{expected}")
}

impl Deref for CowText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// Returns the default domain, for requests without a domain.
pub fn default_domain<'b>() -> CowText<'b> {
    CowText(DEFAULT_DOMAIN.into())
}

impl Attributes<'_> {
    /// Converts the attributes and the costs to a descriptor.
    pub fn to_descriptor<'d>(
        &'d self,
        cost: Option<u64>,
        costs: &'d NamedCosts<'_>,
    ) -> Descriptor<'d> {
        let pairs = self.0.iter().map(|(name, value)| (&**name, &**value));
        let mut descriptor = Descriptor::new(pairs);
        if let Some(units) = cost {
            descriptor = descriptor.cost(units);
        }
        for (name, units) in &costs.0 {
            descriptor = descriptor.with_cost(name, *units);
        }
        descriptor
    }
}

fn read_attributes<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(CowText<'de>, CowText<'de>)>, D::Error> {
    let parse = parse_attribute_value;
    deserializer.deserialize_map(MembersVisitor { term: "attribute", max_count: usize::MAX, parse })
}

fn read_named_costs<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<(CowText<'de>, u64)>, D::Error> {
    let parse = parse_units;
    deserializer.deserialize_map(MembersVisitor { term: "cost", max_count: MAX_NAMED_COSTS, parse })
}

/// Reads an optional field. Unlike `Option`, rejects null.
pub fn read_non_null<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

/// Reads the field `cost`.
pub fn read_cost<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    read_field(deserializer, "cost", parse_units)
}

/// Reads the field `wait_ms`. Any number is accepted, because the server bounds the wait.
pub fn read_wait_ms<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    Ok(read_field(deserializer, "wait_ms", parse_units)?.map(Duration::from_millis))
}

/// Reads the field `ttl_ms`.
pub fn read_ttl_ms<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<Duration>, D::Error> {
    read_field(deserializer, "ttl_ms", parse_ttl)
}

/// Reads the field `idempotency_key`.
pub fn read_idempotency_key<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<CowText<'de>>, D::Error> {
    read_field(deserializer, "idempotency_key", parse_idempotency_key)
}

/// Reads a field from the JSON text of its value, because serde_json changes the digits of large numbers.
fn read_field<'de, D: Deserializer<'de>, V>(
    deserializer: D,
    name: &str,
    parse: ValueParser<'de, V>,
) -> Result<Option<V>, D::Error> {
    let value = parse(<&RawValue>::deserialize(deserializer)?.get());
    value.map(Some).map_err(|problem| D::Error::custom(format!("`{name}`: {problem}")))
}

/// Parses the value of an attribute. An integer or a boolean counts as its text. Other numbers and -0 are rejected:
/// they have several spellings, such as 1e3 and 1000.0, which would have separate counters.
fn parse_attribute_value(json: &str) -> Result<CowText<'_>, String> {
    let is_integer = json.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
    match json {
        "true" | "false" => Ok(CowText(json.into())),
        _ if is_integer && json != "-0" => Ok(CowText(json.into())),
        _ => serde_json::from_str(json).map_err(|_| {
            let remedy = "send text in double quotes, or omit the attribute";
            format!("{} is not a string, an integer or a boolean; {remedy}", excerpt(json))
        }),
    }
}

fn parse_units(json: &str) -> Result<u64, String> {
    parse_whole_number(json).ok_or_else(|| {
        let remedy = "send a whole number, 0 or more, without quotes";
        format!("{} is not accepted; {remedy}", excerpt(json))
    })
}

fn parse_ttl(json: &str) -> Result<Duration, String> {
    let ttl = parse_whole_number(json).map(Duration::from_millis);
    ttl.filter(|ttl| !ttl.is_zero() && *ttl <= MAX_CALL_TTL).ok_or_else(|| {
        let max = MAX_CALL_TTL.as_millis();
        let remedy = format!("send a whole number of milliseconds from 1 to {max} (24 hours)");
        format!("{} is not accepted; {remedy}", excerpt(json))
    })
}

/// Parses an idempotency key. Rejects a key with U+FFFD, because it may replace invalid Unicode: two such keys of the
/// caller would be equal, and the second request would not be charged.
fn parse_idempotency_key(json: &str) -> Result<CowText<'_>, String> {
    let key = serde_json::from_str(json).ok().filter(|key: &CowText<'_>| {
        (1..=MAX_IDEMPOTENCY_KEY_BYTES).contains(&key.len()) && !key.contains('\u{fffd}')
    });
    key.ok_or_else(|| {
        let remedy =
            "send a Unicode string of 1 to 255 bytes that is new for each request, such as a UUID";
        format!("{} is not accepted; {remedy}", excerpt(json))
    })
}

/// Parses a number of units or milliseconds. Accepts whole numbers in floating-point notation, such as `2.0`, because
/// some languages write them so. Numbers of more than 64 bits saturate: a cost then exceeds every limit, and the
/// request is denied.
fn parse_whole_number(json: &str) -> Option<u64> {
    if json.bytes().all(|byte| byte.is_ascii_digit()) {
        // Parsing fails only on an overflow, because the text has at least one digit.
        return Some(json.parse().unwrap_or(u64::MAX));
    }
    let units: f64 = json.parse().ok()?;
    let is_whole = units == f64::INFINITY || units.fract() == 0.0;
    (is_whole && units >= 0.0).then_some(units as u64)
}

/// A serde visitor of a JSON object whose member names the caller chooses, such as the attributes of a request.
struct MembersVisitor<'b, V> {
    /// The term for a member in error messages.
    term: &'static str,
    max_count: usize,
    parse: ValueParser<'b, V>,
}

impl<'de, V> Visitor<'de> for MembersVisitor<'de, V> {
    type Value = Vec<(CowText<'de>, V)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a value for each {}", self.term)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { term, max_count, parse } = self;
        let mut members: Self::Value = Vec::new();
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<CowText<'de>>()? {
            let value = parse(map.next_value::<&RawValue>()?.get()).map_err(|problem| {
                A::Error::custom(format!("{term} `{}`: {problem}", excerpt(&name)))
            })?;
            if members.len() == MAX_PAIRWISE_COMPARED_MEMBERS {
                names.extend(members.iter().map(|(name, _)| name.clone()));
            }
            let is_repeated = if members.len() < MAX_PAIRWISE_COMPARED_MEMBERS {
                members.iter().any(|(other, _)| *other == name)
            } else {
                !names.insert(name.clone())
            };
            // A repeated name with U+FFFD is skipped: different names may become equal if they are not Unicode, and no
            // policy contains such a name.
            if is_repeated && name.contains('\u{fffd}') {
                continue;
            }
            // A repeated name is rejected: JSON parsers disagree on which of the two counts, and a client could use
            // that to bypass a limit.
            if is_repeated {
                let name = excerpt(&name);
                let message = format!("duplicate {term} `{name}`; send each {term} once");
                return Err(A::Error::custom(message));
            }
            if members.len() == max_count {
                let message = format!("more than {max_count} {term}s; send at most {max_count}");
                return Err(A::Error::custom(message));
            }
            members.push((name, value));
        }
        Ok(members)
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for JsonObject<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(JsonObjectVisitor { fields: None, value: PhantomData })
    }
}

/// The names of fields in JSON.
type FieldNames = &'static [&'static str];

/// A serde visitor that accepts only a JSON object with these fields. `None` accepts all fields of the value.
struct JsonObjectVisitor<T> {
    fields: Option<FieldNames>,
    value: PhantomData<T>,
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for JsonObjectVisitor<T> {
    type Value = JsonObject<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<JsonObject<T>, A::Error> {
        let map = MapWithFields { map, fields: self.fields };
        T::deserialize(MapAccessDeserializer::new(map)).map(JsonObject)
    }
}

/// The members of an object, each of which must be one of the fields.
struct MapWithFields<A> {
    map: A,
    fields: Option<FieldNames>,
}

impl<'de, A: MapAccess<'de>> MapAccess<'de> for MapWithFields<A> {
    type Error = A::Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, A::Error> {
        let Some(fields) = self.fields else { return self.map.next_key_seed(seed) };
        let Some(name) = self.map.next_key::<CowText<'de>>()? else { return Ok(None) };
        if !fields.contains(&&*name) {
            return Err(A::Error::unknown_field(&name, fields));
        }
        seed.deserialize(StrDeserializer::new(&name)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, A::Error> {
        self.map.next_value_seed(seed)
    }
}

#[cfg(test)]
mod tests;
