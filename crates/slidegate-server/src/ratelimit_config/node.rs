//! A reference file as a tree with places.

use std::fmt;
use std::path::Path;

use serde::Deserialize;
use serde::de::{MapAccess, SeqAccess, Visitor};
use serde_saphyr::{Location, Spanned};

use super::finding::{Findings, SourcePosition};
use super::scalar::Scalar;

/// Nodes that a file may have.
const MAX_NODES: usize = 600_000;

/// One value of a file, and where it stands.
#[derive(Debug)]
pub struct Node {
    pub place: SourcePosition,
    pub kind: Kind,
}

#[derive(Debug)]
pub enum Kind {
    /// A scalar and its text.
    Scalar(Scalar, Box<str>),
    List(Vec<Node>),
    /// Keys and values in their order.
    Map(Vec<(SourcePosition, Box<str>, Node)>),
}

impl Node {
    /// Reads a file's text, or tells what is wrong with it.
    pub fn read(path: &Path, source: &str, findings: &mut Findings) -> Option<Self> {
        let options = serde_saphyr::options! {
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
                max_documents: 1,
            },
        };
        match serde_saphyr::from_str_with_options::<Spanned<Raw>>(source, options) {
            Ok(raw) => Some(node(raw, source)),
            Err(error) => {
                let error = error.without_snippet();
                let place = error.location().map_or(START, |at| place(&at));
                findings.wrong(path, place, wrong_yaml(&error.to_string(), place));
                None
            }
        }
    }

    pub fn is_null(&self) -> bool {
        matches!(self.kind, Kind::Scalar(Scalar::Null, _))
    }
}

/// Where a file begins.
pub const START: SourcePosition = SourcePosition { line: 1, column: 1 };

fn wrong_yaml(message: &str, place: SourcePosition) -> String {
    // The place is told in front.
    let behind = format!(" at line {}, column {}", place.line, place.column);
    let message = message.strip_suffix(&behind).unwrap_or(message);
    format!("this is not YAML as it should be: {message}")
}

fn place(location: &Location) -> SourcePosition {
    SourcePosition { line: location.line().max(1), column: location.column().max(1) }
}

fn node(raw: Spanned<Raw>, source: &str) -> Node {
    let kind = match raw.value {
        Raw::Null => Kind::Scalar(Scalar::Null, "".into()),
        Raw::Scalar(text) => scalar(text, written(&raw.defined, source)),
        Raw::List(items) => Kind::List(items.into_iter().map(|item| node(item, source)).collect()),
        Raw::Map(entries) => {
            let entries = entries.into_iter().map(|(key, value)| {
                (place(&key.referenced), key.value.into(), node(value, source))
            });
            Kind::Map(entries.collect())
        }
    };
    Node { place: place(&raw.referenced), kind }
}

/// What stands between quotes, or in a block, is text; of anything else what was written counts: `010` is
/// text of three characters, and the number 8.
fn scalar(read: String, written: Option<&str>) -> Kind {
    match written {
        Some(plain) if !plain.starts_with(['"', '\'', '|', '>', '!', '&', '*']) => {
            match Scalar::of(plain) {
                // It may go over several lines, which are one.
                Scalar::Text => Kind::Scalar(Scalar::Text, read.into()),
                other => Kind::Scalar(other, plain.into()),
            }
        }
        _ => Kind::Scalar(Scalar::Text, read.into()),
    }
}

fn written<'s>(at: &Location, source: &'s str) -> Option<&'s str> {
    let start = usize::try_from(at.span().byte_offset()?).ok()?;
    let length = usize::try_from(at.span().byte_len()?).ok()?;
    let text = source.get(start..start.checked_add(length)?)?.trim();
    (!text.is_empty()).then_some(text)
}

/// What serde is told of a value.
enum Raw {
    Null,
    /// As text, whatever it is taken for: see [`Scalar`].
    Scalar(String),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

/// Scalars of all kinds are text here.
macro_rules! visit_scalars {
    ($($visit:ident: $kind:ty),*) => {$(
        fn $visit<E>(self, value: $kind) -> Result<Raw, E> {
            Ok(Raw::Scalar(value.to_string()))
        }
    )*};
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Anything;

        impl<'de> Visitor<'de> for Anything {
            type Value = Raw;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value")
            }

            visit_scalars! {
                visit_bool: bool, visit_i64: i64, visit_i128: i128, visit_u64: u64, visit_u128: u128,
                visit_f64: f64, visit_str: &str
            }

            fn visit_unit<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
            }

            fn visit_none<E>(self) -> Result<Raw, E> {
                Ok(Raw::Null)
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
