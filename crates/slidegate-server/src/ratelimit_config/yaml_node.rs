//! The YAML tree of a reference server file, with positions.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::finding::{Findings, SourcePosition};
use super::scalar::Scalar;

/// The maximum number of nodes in a file.
const MAX_NODES: usize = 600_000;

/// A YAML value and its position.
#[derive(Debug)]
pub struct YamlNode {
    pub position: SourcePosition,
    pub value: YamlValue,
}

/// A YAML value.
#[derive(Debug)]
pub enum YamlValue {
    /// The type of a scalar, and its text.
    Scalar(Scalar, Box<str>),
    /// The items of a sequence.
    List(Vec<YamlNode>),
    /// The position of each key, the key and its value, in the order of the file.
    Map(Vec<(SourcePosition, Box<str>, YamlNode)>),
}

impl YamlNode {
    /// Parses the text of a file. Returns `None` if it is invalid, and then adds an error to `findings`.
    pub fn parse(path: &Path, source: &str, findings: &mut Findings) -> Option<Self> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
                max_documents: 1,
            },
        };
        match serde_saphyr::from_str_with_options::<Spanned<RawYaml>>(source, options) {
            Ok(raw) => Some(convert_node(raw, source)),
            Err(error) => {
                let error = error.without_snippet();
                let position =
                    error.location().map_or(FILE_START, |location| convert_position(&location));
                findings.push_error(
                    path,
                    position,
                    yaml_error_message(&error.to_string(), position),
                );
                None
            }
        }
    }

    /// Returns whether the value is null.
    pub fn is_null(&self) -> bool {
        matches!(self.value, YamlValue::Scalar(Scalar::Null, _))
    }
}

/// The position of the first character of a file.
pub const FILE_START: SourcePosition = SourcePosition { line: 1, column: 1 };

fn yaml_error_message(message: &str, position: SourcePosition) -> String {
    // Messages of slidegate begin with the position.
    let suffix = format!(" at line {}, column {}", position.line, position.column);
    let message = message.strip_suffix(&suffix).unwrap_or(message);
    format!("invalid YAML: {message}")
}

fn convert_position(location: &Location) -> SourcePosition {
    SourcePosition { line: location.line().max(1), column: location.column().max(1) }
}

fn convert_node(raw: Spanned<RawYaml>, source: &str) -> YamlNode {
    let value = match raw.value {
        RawYaml::Null => YamlValue::Scalar(Scalar::Null, "".into()),
        RawYaml::Scalar(text) => convert_scalar(text, source_text(&raw.defined, source)),
        RawYaml::List(items) => {
            YamlValue::List(items.into_iter().map(|item| convert_node(item, source)).collect())
        }
        RawYaml::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                (convert_position(&key.referenced), key.value.into(), convert_node(value, source))
            });
            YamlValue::Map(entries.collect())
        }
    };
    YamlNode { position: convert_position(&raw.referenced), value }
}

/// Converts a scalar from its decoded text and its notation in the file. A scalar in quotes or in a block is text. For
/// a plain scalar the notation counts: `010` is a text of three characters if the field needs text, and the number 8 if
/// it needs a number.
fn convert_scalar(decoded: String, notation: Option<&str>) -> YamlValue {
    match notation {
        Some(plain) if !plain.starts_with(['"', '\'', '|', '>', '!', '&', '*']) => {
            match Scalar::from_plain(plain) {
                // A plain text may have several lines, which the decoder joins.
                Scalar::Text => YamlValue::Scalar(Scalar::Text, decoded.into()),
                other => YamlValue::Scalar(other, plain.into()),
            }
        }
        _ => YamlValue::Scalar(Scalar::Text, decoded.into()),
    }
}

/// Returns the notation of a value in the file.
fn source_text<'s>(location: &Location, source: &'s str) -> Option<&'s str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let length = usize::try_from(location.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then_some(text)
}

/// A YAML value as deserialized by serde.
enum RawYaml {
    Null,
    /// A scalar of any type as text. [`Scalar`] classifies it.
    Scalar(String),
    List(Vec<Spanned<RawYaml>>),
    Map(Vec<(Spanned<String>, Spanned<RawYaml>)>),
}

/// Implements visitor methods that convert scalars of all types to text.
macro_rules! visit_scalars {
    ($($visit:ident: $source:ty),*) => {$(
        fn $visit<E>(self, value: $source) -> Result<RawYaml, E> {
            Ok(RawYaml::Scalar(value.to_string()))
        }
    )*};
}

impl<'de> Deserialize<'de> for RawYaml {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RawYamlVisitor;

        impl<'de> Visitor<'de> for RawYamlVisitor {
            type Value = RawYaml;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            visit_scalars! {
                visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
                visit_f64: f64, visit_str: &str
            }

            fn visit_unit<E>(self) -> Result<RawYaml, E> {
                Ok(RawYaml::Null)
            }

            fn visit_none<E>(self) -> Result<RawYaml, E> {
                Ok(RawYaml::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawYaml, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(RawYaml::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawYaml, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(RawYaml::Map(map))
            }
        }

        deserializer.deserialize_any(RawYamlVisitor)
    }
}
