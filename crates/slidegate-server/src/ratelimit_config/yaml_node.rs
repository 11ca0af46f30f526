//! The YAML tree of a configuration file, with the position of each value.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::finding::{Findings, SourcePosition};
use super::scalar::Scalar;

/// The maximum number of YAML nodes in a configuration file.
const MAX_YAML_NODES: usize = 600_000;

/// A YAML value and its position in the file.
#[derive(Debug)]
pub struct YamlNode {
    pub position: SourcePosition,
    pub value: YamlValue,
}

/// A YAML value: a scalar, a list or a map.
#[derive(Debug)]
pub enum YamlValue {
    /// A scalar: its type, and its text.
    Scalar(Scalar, Box<str>),
    /// A list: its items.
    List(Vec<YamlNode>),
    /// A map: the position of each key, the key and its value, in the order of the file.
    Map(Vec<(SourcePosition, Box<str>, YamlNode)>),
}

impl YamlNode {
    /// Parses the text of a file. Returns `None` and adds an error to `findings` if the text is not valid YAML.
    pub fn parse(path: &Path, source: &str, findings: &mut Findings) -> Option<Self> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_nodes: MAX_YAML_NODES,
                max_events: 2 * MAX_YAML_NODES,
                max_documents: 1,
            },
        };
        match serde_saphyr::from_str_with_options::<Spanned<UntypedYaml>>(source, options) {
            Ok(raw) => Some(yaml_node_from_untyped(raw, source)),
            Err(error) => {
                let error = error.without_snippet();
                let position = error
                    .location()
                    .map_or(FILE_START, |location| source_position_from_location(&location));
                findings.push_error(
                    path,
                    position,
                    yaml_error_message(&error.to_string(), position),
                );
                None
            }
        }
    }

    /// Returns `true` if the value is null.
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

fn source_position_from_location(location: &Location) -> SourcePosition {
    SourcePosition { line: location.line().max(1), column: location.column().max(1) }
}

fn yaml_node_from_untyped(raw: Spanned<UntypedYaml>, source: &str) -> YamlNode {
    let value = match raw.value {
        UntypedYaml::Null => YamlValue::Scalar(Scalar::Null, "".into()),
        UntypedYaml::Scalar(text) => {
            yaml_value_from_scalar(text, scalar_text_in_source(&raw.defined, source))
        }
        UntypedYaml::List(items) => YamlValue::List(
            items.into_iter().map(|item| yaml_node_from_untyped(item, source)).collect(),
        ),
        UntypedYaml::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                (
                    source_position_from_location(&key.referenced),
                    key.value.into(),
                    yaml_node_from_untyped(value, source),
                )
            });
            YamlValue::Map(entries.collect())
        }
    };
    YamlNode { position: source_position_from_location(&raw.referenced), value }
}

/// Converts a scalar, given its decoded text and its notation in the file. A scalar in quotes or in a block is text.
/// The notation of a plain scalar determines its type: `010` is a text of three characters if the field needs text, and
/// the number 8 if the field needs a number.
fn yaml_value_from_scalar(decoded: String, notation: Option<&str>) -> YamlValue {
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

/// Returns the text of a value as written in the file, without spaces around it. Returns `None` if the location of the
/// value is unknown, or the text is empty.
fn scalar_text_in_source<'s>(location: &Location, source: &'s str) -> Option<&'s str> {
    let start = usize::try_from(location.span().byte_offset()?).ok()?;
    let length = usize::try_from(location.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then_some(text)
}

/// A YAML value as deserialized by serde, before the types of scalars are determined.
enum UntypedYaml {
    Null,
    /// The text of a scalar of any type. [`Scalar`] determines the type.
    Scalar(String),
    List(Vec<Spanned<UntypedYaml>>),
    Map(Vec<(Spanned<String>, Spanned<UntypedYaml>)>),
}

/// Implements the methods of a serde visitor that convert scalars of all types to text.
macro_rules! impl_scalar_visitors {
    ($($visit:ident: $source:ty),*) => {$(
        fn $visit<E>(self, value: $source) -> Result<UntypedYaml, E> {
            Ok(UntypedYaml::Scalar(value.to_string()))
        }
    )*};
}

impl<'de> Deserialize<'de> for UntypedYaml {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct UntypedYamlVisitor;

        impl<'de> Visitor<'de> for UntypedYamlVisitor {
            type Value = UntypedYaml;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            impl_scalar_visitors! {
                visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
                visit_f64: f64, visit_str: &str
            }

            fn visit_unit<E>(self) -> Result<UntypedYaml, E> {
                Ok(UntypedYaml::Null)
            }

            fn visit_none<E>(self) -> Result<UntypedYaml, E> {
                Ok(UntypedYaml::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<UntypedYaml, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(UntypedYaml::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<UntypedYaml, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(UntypedYaml::Map(map))
            }
        }

        deserializer.deserialize_any(UntypedYamlVisitor)
    }
}
