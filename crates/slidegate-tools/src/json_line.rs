//! Parses a line of an access log in JSON, as Caddy, Traefik, Envoy and nginx write it.
//!
//! Each attribute is read from a field. The fields of the usual formats are known, and a caller maps other attributes
//! to fields. Values are copied to a text, because JSON escapes characters.

use std::ops::Range;
use std::str::FromStr;

use serde_json::{Map, Value};
use slidegate::Timestamp;
use thiserror::Error;

use crate::line::{self, ATTRIBUTE_COUNT, ATTRIBUTE_NAMES};

/// The fields that may contain the time of a request, in the order in which they are tried. `time` is among the last,
/// because Traefik's `time` is the end of the request.
const TIME_FIELDS: [&str; 7] =
    ["StartUTC", "start_time", "ts", "timestamp", "@timestamp", "time", "msec"];

/// The fields that may contain each attribute in [`ATTRIBUTE_NAMES`], in the order in which they are tried.
const ATTRIBUTE_FIELDS: [&[&str]; ATTRIBUTE_COUNT] = [
    &["method", "request.method", "RequestMethod", "request_method"],
    &["path", "request.uri", "RequestPath", "request_uri", "uri"],
    &[
        "ip",
        "request.client_ip",
        "request.remote_ip",
        "ClientHost",
        "downstream_remote_address",
        "remote_addr",
    ],
    &["host", "request.host", "RequestHost", "authority"],
    &["header.referer", "request.headers.Referer", "request_Referer", "http_referer", "referer"],
    &[
        "header.user-agent",
        "request.headers.User-Agent",
        "request_User-Agent",
        "http_user_agent",
        "user_agent",
    ],
    &["user", "user_id", "ClientUsername", "remote_user"],
];

/// The name in a [`FieldMapping`] that stands for the time of a request in place of an attribute.
const TIME_FIELD_NAME: &str = "time";

/// A mapping of an attribute, or of the time, to a field: `header.x-api-key=request.headers.X-Api-Key`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldMapping {
    /// The name of the attribute; `time` is the time of the request.
    pub attribute: String,
    /// The names of nested fields, separated by dots. Upper and lower case are equal.
    pub field: String,
}

/// The error for a text that is not a [`FieldMapping`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("write ATTRIBUTE=FIELD, for example header.x-api-key=request.headers.X-Api-Key")]
pub struct FieldMappingError;

/// The fields from which the attributes of a line in JSON are read.
#[derive(Clone, Debug, Default)]
pub struct JsonFields {
    time: Option<String>,
    /// The field of each attribute in [`ATTRIBUTE_NAMES`]; `None` for the usual fields.
    standard_attributes: [Option<String>; ATTRIBUTE_COUNT],
    /// The names and the fields of other attributes.
    other_attributes: Vec<FieldMapping>,
}

/// The values of a line in JSON, as ranges of its text.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct JsonLine {
    pub time: Timestamp,
    pub text: String,
    /// The values in the order of [`ATTRIBUTE_NAMES`].
    pub standard_attributes: [Option<Range<usize>>; ATTRIBUTE_COUNT],
    /// The values in the order of [`JsonFields::other_attribute_names`].
    pub other_attributes: Vec<Option<Range<usize>>>,
}

/// The reason why a line in JSON cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JsonLineError {
    #[error("invalid JSON: {0}")]
    Invalid(String),
    #[error("no field has the time; name it, for example --map time=FIELD")]
    MissingTime,
    #[error(
        "invalid time `{0}`; expected a number of seconds, or a time such as 2026-05-17T10:05:03Z"
    )]
    InvalidTime(String),
}

impl FromStr for FieldMapping {
    type Err = FieldMappingError;

    fn from_str(text: &str) -> Result<Self, FieldMappingError> {
        let (attribute, field) = text.split_once('=').ok_or(FieldMappingError)?;
        if attribute.is_empty() || field.is_empty() {
            return Err(FieldMappingError);
        }
        Ok(Self { attribute: attribute.to_owned(), field: field.to_owned() })
    }
}

impl JsonFields {
    /// Creates the fields of the attributes that a policy uses. An attribute without a mapping is read from the field
    /// of its name, or from the usual fields.
    pub fn new<'n>(attributes: impl Iterator<Item = &'n str>, mappings: &[FieldMapping]) -> Self {
        let mut fields = Self::default();
        for FieldMapping { attribute, field } in mappings {
            if attribute == TIME_FIELD_NAME {
                fields.time = Some(field.clone());
            } else if let Some(index) = line::attribute_index(attribute) {
                fields.standard_attributes[index] = Some(field.clone());
            } else {
                fields
                    .other_attributes
                    .push(FieldMapping { attribute: attribute.clone(), field: field.clone() });
            }
        }
        for name in attributes {
            let is_mapped = fields.other_attributes.iter().any(|other| other.attribute == name);
            if !is_mapped && !line::is_attribute_name(name) {
                let (attribute, field) = (name.to_owned(), name.to_owned());
                fields.other_attributes.push(FieldMapping { attribute, field });
            }
        }
        fields
    }

    /// Returns the names of the attributes that are not in [`ATTRIBUTE_NAMES`].
    pub fn other_attribute_names(&self) -> impl Iterator<Item = &str> {
        self.other_attributes.iter().map(|other| &*other.attribute)
    }

    /// Parses a line.
    pub fn parse(&self, text: &str) -> Result<JsonLine, JsonLineError> {
        let line: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| JsonLineError::Invalid(error.to_string()))?;
        let mut parsed = JsonLine { time: self.parse_time(&line)?, ..JsonLine::default() };
        for (index, name) in ATTRIBUTE_NAMES.into_iter().enumerate() {
            let value = find_value(
                &line,
                self.standard_attributes[index].as_deref(),
                ATTRIBUTE_FIELDS[index],
            );
            let value = value.as_deref().and_then(|value| normalize_attribute_value(name, value));
            parsed.standard_attributes[index] =
                value.map(|value| append_value(&mut parsed.text, value));
        }
        for FieldMapping { field, .. } in &self.other_attributes {
            let value = find_value(&line, Some(field), &[]);
            let value = value.map(|value| append_value(&mut parsed.text, &value));
            parsed.other_attributes.push(value);
        }
        Ok(parsed)
    }

    fn parse_time(&self, line: &Map<String, Value>) -> Result<Timestamp, JsonLineError> {
        let text = find_value(line, self.time.as_deref(), &TIME_FIELDS);
        let text = text.ok_or(JsonLineError::MissingTime)?;
        parse_time(&text).ok_or(JsonLineError::InvalidTime(text))
    }
}

/// Returns the text of the given field, or of the first usual field that has a value.
fn find_value(line: &Map<String, Value>, field: Option<&str>, usual: &[&str]) -> Option<String> {
    match field {
        Some(field) => find_field(line, field).and_then(json_value_text),
        None => usual.iter().find_map(|field| find_field(line, field).and_then(json_value_text)),
    }
}

/// Returns the value of a field, such as `request.headers.X-Api-Key`. A name may contain dots itself.
fn find_field<'v>(object: &'v Map<String, Value>, field: &str) -> Option<&'v Value> {
    let get = |name: &str| {
        object.get(name).or_else(|| {
            object.iter().find(|(own, _)| own.eq_ignore_ascii_case(name)).map(|(_, value)| value)
        })
    };
    get(field).or_else(|| {
        field.match_indices('.').find_map(|(dot, _)| {
            get(&field[..dot])?.as_object().and_then(|inner| find_field(inner, &field[dot + 1..]))
        })
    })
}

/// Returns the text of a value; `None` if it is missing. Of a list, such as the values of a header, the first is used.
fn json_value_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if text.is_empty() || text == "-" => None,
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(bool) => Some(bool.to_string()),
        Value::Array(values) => values.first().and_then(json_value_text),
        Value::Null | Value::Object(_) => None,
    }
}

/// Returns the value of an attribute in the form that the server has: an address without its port, and a path without
/// its query.
fn normalize_attribute_value<'v>(name: &str, value: &'v str) -> Option<&'v str> {
    match name {
        "ip" => value.split(',').next().and_then(|first| line::strip_port(first.trim())),
        "path" => Some(line::remove_query_string(value)),
        _ => Some(value),
    }
}

fn append_value(text: &mut String, value: &str) -> Range<usize> {
    let begin = text.len();
    text.push_str(value);
    begin..text.len()
}

/// Parses a time: a number of seconds, milliseconds, microseconds or nanoseconds since 1970, RFC 3339, or the form of
/// the common log format. Returns `None` if it has another form.
fn parse_time(text: &str) -> Option<Timestamp> {
    if let Ok(number) = text.parse::<f64>() {
        let per_unit = match number {
            0.0..1e11 => 1e6,
            1e11..1e14 => 1e3,
            1e14..1e17 => 1.0,
            1e17..1e20 => 1e-3,
            _ => return None,
        };
        return Some(Timestamp::from_micros((number * per_unit).round() as u64));
    }
    match text.parse::<jiff::Timestamp>() {
        Ok(time) => u64::try_from(time.as_microsecond()).ok().map(Timestamp::from_micros),
        Err(_) => line::parse_timestamp(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a line, and returns its time in milliseconds and the values of its attributes.
    fn parse(fields: &JsonFields, text: &str) -> (u64, Vec<(String, String)>) {
        let line = fields.parse(text).unwrap();
        let names = ATTRIBUTE_NAMES.into_iter().chain(fields.other_attribute_names());
        let values = line.standard_attributes.iter().chain(&line.other_attributes);
        let pairs = names.zip(values).filter_map(|(name, range)| {
            Some((name.to_owned(), line.text[range.clone()?].to_owned()))
        });
        (line.time.as_micros() / 1_000, pairs.collect())
    }

    fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn usual_formats_need_no_mapping() {
        let expected = pairs(&[
            ("method", "GET"),
            ("path", "/a"),
            ("ip", "192.0.2.7"),
            ("host", "shop.example"),
            ("header.user-agent", "curl/8"),
        ]);
        for line in [
            // Caddy
            r#"{"level":"info","ts":1779012303.5,"logger":"http.log.access","request":{"remote_ip":"10.0.0.1","client_ip":"192.0.2.7","method":"GET","host":"shop.example","uri":"/a?b=1","headers":{"User-Agent":["curl/8"]}},"user_id":"","status":200}"#,
            // Traefik
            r#"{"ClientAddr":"192.0.2.7:4711","ClientHost":"192.0.2.7","ClientUsername":"-","RequestHost":"shop.example","RequestMethod":"GET","RequestPath":"/a?b=1","StartUTC":"2026-05-17T10:05:03.5Z","time":"2026-05-17T10:05:04Z","request_User-Agent":"curl/8"}"#,
            // Envoy and Istio
            r#"{"start_time":"2026-05-17T10:05:03.500Z","method":"GET","path":"/a?b=1","authority":"shop.example","downstream_remote_address":"192.0.2.7:4711","user_agent":"curl/8","x_forwarded_for":null}"#,
            // nginx
            r#"{"time":1779012303.500,"ip":"192.0.2.7","method":"GET","path":"/a?b=1","host":"shop.example","user":"","header.user-agent":"curl\/8"}"#,
        ] {
            let attributes = parse(&JsonFields::default(), line);
            assert_eq!(attributes, (1_779_012_303_500, expected.clone()), "{line}");
        }
    }

    #[test]
    fn other_attributes_are_mapped_to_fields() {
        let mappings = [
            "header.x-api-key=request.headers.X-Api-Key",
            "header.x-plan=a.b.plan",
            "ip=proxy.client",
            "time=at.start",
        ];
        let mappings = mappings.map(|text| text.parse::<FieldMapping>().unwrap());
        let names = ["ip", "route", "header.x-api-key", "tenant", "ip"].into_iter();
        let fields = JsonFields::new(names.filter(|name| *name != "route"), &mappings);
        let line = r#"{"at":{"start":"17/May/2026:10:05:03 +0000"},"request":{"headers":{"x-api-key":["k\u0031","k2"]}},"a.b":{"plan":7},"proxy":{"client":"[2001:db8::1]:443, 10.0.0.1"},"tenant":"acme"}"#;
        let expected = [
            ("ip", "2001:db8::1"),
            ("header.x-api-key", "k1"),
            ("header.x-plan", "7"),
            ("tenant", "acme"),
        ];
        assert_eq!(parse(&fields, line), (1_779_012_303_000, pairs(&expected)));
        for text in ["a", "a=", "=b", ""] {
            assert_eq!(text.parse::<FieldMapping>(), Err(FieldMappingError), "{text}");
        }
    }

    #[test]
    fn line_without_usable_time_is_error() {
        let parse = |line: &str| JsonFields::default().parse(line).unwrap_err();
        assert!(matches!(parse("{"), JsonLineError::Invalid(_)));
        assert_eq!(parse(r#"{"ip":"192.0.2.7"}"#), JsonLineError::MissingTime);
        for time in ["yesterday", "-1", "nan", "1e40"] {
            let line = format!(r#"{{"ts":"{time}"}}"#);
            assert_eq!(parse(&line), JsonLineError::InvalidTime(time.to_owned()));
        }
        let milliseconds = JsonFields::default().parse(r#"{"ts":1779012303500}"#).unwrap();
        assert_eq!(milliseconds.time.as_micros(), 1_779_012_303_500_000);
    }
}
