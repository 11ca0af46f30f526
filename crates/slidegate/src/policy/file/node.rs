//! A YAML document as a tree with places.

use std::fmt;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::{Diagnostics, SourceSpan};

/// Nodes that a document may have: 10,000 rules have about 250,000.
const MAX_NODES: usize = 600_000;

/// One value of a document, and where it stands.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: SourceSpan,
    pub(super) kind: Kind,
}

#[derive(Debug)]
pub(super) enum Kind {
    /// Nothing, `~` or `null`.
    Null,
    /// A scalar as it was written, without quotes.
    Text(Box<str>),
    List(Vec<Node>),
    /// Keys and values in their order.
    Map(Vec<(Node, Node)>),
}

impl Node {
    /// Reads a document, or notes what is wrong with it.
    pub(super) fn read(source: &str, diagnostics: &Diagnostics<'_>) -> Option<Self> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
                max_documents: 1,
            },
        };
        let read = serde_saphyr::from_str_with_options::<Spanned<Raw>>(source, options);
        read.map(|raw| raw_node(raw, source)).map_err(|error| wrong_yaml(&error, diagnostics)).ok()
    }
}

/// YAML's own mistakes are told by their place and what they are.
fn wrong_yaml(error: &serde_saphyr::Error, diagnostics: &Diagnostics<'_>) {
    let error = error.without_snippet();
    let place = error.location().map_or(SourceSpan::default(), |at| SourceSpan::at(&at));
    let message = error.to_string();
    // The place is told in front.
    let behind = format!(" at line {}, column {}", place.line, place.column);
    let message = message.strip_suffix(&behind).unwrap_or(&message);
    diagnostics.note(
        place,
        format_args!(
            "this is not YAML as it should be: {message}; look for a bracket or quote that is not closed, or an indent that is not that of its neighbours, here or above"
        ),
    );
}

impl SourceSpan {
    fn at(location: &Location) -> Self {
        let width = location.span().len();
        Self { line: location.line(), column: location.column(), width }
    }
}

fn raw_node(raw: Spanned<Raw>, source: &str) -> Node {
    let place = SourceSpan::at(&raw.referenced);
    let kind = match raw.value {
        Raw::Null => Kind::Null,
        Raw::Text(text) => Kind::Text(text.into()),
        Raw::Inferred(text) => {
            Kind::Text(written(&raw.defined, source).map_or_else(|| text.into(), Into::into))
        }
        Raw::List(items) => {
            Kind::List(items.into_iter().map(|item| raw_node(item, source)).collect())
        }
        Raw::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                let (place, text) = (SourceSpan::at(&key.referenced), key.value.into());
                (Node { place, kind: Kind::Text(text) }, raw_node(value, source))
            });
            Kind::Map(entries.collect())
        }
    };
    Node { place, kind }
}

/// What was written for a scalar that YAML takes for a number or the like: `1.10` is not `1.1`.
fn written<'s>(at: &Location, source: &'s str) -> Option<&'s str> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let length = usize::try_from(at.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then_some(text)
}

/// What serde is told of a value.
enum Raw {
    Null,
    Text(String),
    /// A scalar that is not taken for text, as text.
    Inferred(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Anything;

        impl<'de> Visitor<'de> for Anything {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }

            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }

            fn visit_bool<E>(self, value: bool) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_i64<E>(self, value: i64) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_i128<E>(self, value: i128) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_u64<E>(self, value: u64) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_u128<E>(self, value: u128) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_f64<E>(self, value: f64) -> Result<Raw, E> {
                Ok(Raw::Inferred(value.to_string()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
                Ok(Raw::Text(text.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Raw, A::Error> {
                let mut list = Vec::new();
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Raw::List(list))
            }

            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Raw, A::Error> {
                let mut map = Vec::new();
                while let Some(entry) = entries.next_entry()? {
                    map.push(entry);
                }
                Ok(Raw::Map(map))
            }
        }

        deserializer.deserialize_any(Anything)
    }
}
