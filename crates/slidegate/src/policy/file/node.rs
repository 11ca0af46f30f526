//! Parses a YAML document into a tree of nodes. Each node has its position in the source text.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, Location, MessageFormatter, Spanned, UserMessageFormatter};

use crate::policy::error::SourceSpan;

/// The maximum number of nodes in a YAML document. A policy with 10,000 rules has about 250,000 nodes.
pub(super) const MAX_YAML_NODES: usize = 600_000;

/// The start of the names of top-level fields that a policy may have for its own use, as Compose files do.
const EXTENSION_PREFIX: &str = "x-";

/// One value of a YAML document, with its position in the source text.
#[derive(Debug)]
pub struct Node {
    /// The position of the value in the source text.
    pub span: SourceSpan,
    /// The value.
    pub kind: NodeKind,
    /// Whether a scalar is written without quotes. Has no meaning for lists and maps.
    pub is_unquoted: bool,
}

/// The value of a [`Node`]. A scalar is kept as text, because its type depends on the reader of the node.
#[derive(Debug)]
pub enum NodeKind {
    /// A null value: `~`, `null`, or a missing value.
    Null,
    /// The source text of a scalar, without quotes.
    Text(Box<str>),
    /// The items of a list.
    List(Vec<Node>),
    /// The keys and values of a map, in the order of the document.
    Map(Vec<(Node, Node)>),
}

/// The reason why a text is not valid YAML.
#[derive(Debug)]
pub struct YamlError {
    /// The position of the error in the source text.
    pub span: SourceSpan,
    /// The problem and its remedy, without the position.
    pub message: String,
}

impl Node {
    /// Parses a YAML document.
    ///
    /// # Errors
    /// Returns an error if the text is not valid YAML, or has too many nodes.
    pub fn parse(source: &str) -> Result<Self, YamlError> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            // Unknown tags are errors. If they were ignored, `plan: !free` would have no value, and `plan: !not free`
            // would mean `free`.
            reject_unsupported_tags: true,
            budget: serde_saphyr::budget! {
                max_nodes: MAX_YAML_NODES,
                max_events: 2 * MAX_YAML_NODES,
                max_documents: 1,
            },
        };
        serde_saphyr::from_str_with_options::<Spanned<YamlValue>>(source, options)
            .map(|raw| node_from_yaml_value(raw, source))
            .map_err(|error| YamlError::from_parser_error(&error))
    }

    /// Removes the entries of a map whose keys begin with `x-`. A policy uses them only for YAML anchors, to which
    /// aliases in other fields refer.
    pub fn remove_extensions(&mut self) {
        if let NodeKind::Map(entries) = &mut self.kind {
            entries.retain(|(key, _)| {
                !matches!(&key.kind, NodeKind::Text(name) if name.starts_with(EXTENSION_PREFIX))
            });
        }
    }
}

impl YamlError {
    fn from_parser_error(error: &serde_saphyr::Error) -> Self {
        let span = error.location().map(|location| SourceSpan::from_location(&location));
        let problem = UserMessageFormatter.format_message(error);
        let message = match error.without_snippet() {
            error if is_document_too_large(error) => format!(
                "invalid YAML: too many values; the maximum is {MAX_YAML_NODES}, and an alias such as `*name` counts as the values that it repeats: use fewer values or aliases"
            ),
            Error::DuplicateMappingKey { .. } => {
                format!("invalid YAML: {problem}; remove one of them")
            }
            _ => format!(
                "invalid YAML: {problem}; look here and above for an unclosed bracket or quote, wrong indentation, or a value that must be quoted"
            ),
        };
        Self { span: span.unwrap_or_default(), message }
    }
}

/// Returns `true` if a document exceeds the bounds of the parser, for example by aliases of aliases. Returns `false`
/// for nesting that is too deep, because its cause may be an unclosed bracket.
fn is_document_too_large(error: &Error) -> bool {
    match error {
        Error::AliasError { error, .. } => is_document_too_large(error),
        Error::Budget { breach, .. } => !matches!(breach, BudgetBreach::Depth { .. }),
        Error::AliasReplayCounterOverflow { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. } => true,
        _ => false,
    }
}

impl SourceSpan {
    fn from_location(location: &Location) -> Self {
        let width = location.span().len();
        Self { line: location.line(), column: location.column(), width }
    }
}

fn node_from_yaml_value(raw: Spanned<YamlValue>, source: &str) -> Node {
    let span = SourceSpan::from_location(&raw.referenced);
    let written = source_text(&raw.defined, source);
    let is_unquoted = written.is_some_and(|text| !text.starts_with(['"', '\'']));
    let kind = match raw.value {
        YamlValue::Null => NodeKind::Null,
        YamlValue::Text(text) => NodeKind::Text(text.into()),
        YamlValue::NonText(text) => {
            NodeKind::Text(written.filter(|_| is_unquoted).map_or_else(|| text.into(), Into::into))
        }
        YamlValue::List(items) => NodeKind::List(
            items.into_iter().map(|item| node_from_yaml_value(item, source)).collect(),
        ),
        YamlValue::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                let (span, text) = (SourceSpan::from_location(&key.referenced), key.value.into());
                let kind = NodeKind::Text(text);
                let key = Node { span, kind, is_unquoted: false };
                (key, node_from_yaml_value(value, source))
            });
            NodeKind::Map(entries.collect())
        }
    };
    Node { span, kind, is_unquoted }
}

/// Returns the source text of a value, because the parser converts numbers and booleans. For example, it converts
/// `1.10` to the number `1.1`. Returns `None` if the source text is unknown or empty.
fn source_text<'s>(at: &Location, source: &'s str) -> Option<&'s str> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let length = usize::try_from(at.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then_some(text)
}

/// A YAML value of any type, as the parser passes it to serde.
enum YamlValue {
    Null,
    Text(String),
    /// The text of a value that the YAML parser converted to a boolean or a number. It may differ from the source text.
    NonText(String),
    List(Vec<Spanned<YamlValue>>),
    Map(Vec<(Spanned<String>, Spanned<YamlValue>)>),
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct YamlValueVisitor;

        impl<'de> Visitor<'de> for YamlValueVisitor {
            type Value = YamlValue;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Null)
            }

            fn visit_none<E>(self) -> Result<YamlValue, E> {
                Ok(YamlValue::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_i128<E>(self, value: i128) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_u128<E>(self, value: u128) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
                Ok(YamlValue::NonText(value.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<YamlValue, E> {
                Ok(YamlValue::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(YamlValue::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(YamlValue::Map(map))
            }
        }

        deserializer.deserialize_any(YamlValueVisitor)
    }
}
