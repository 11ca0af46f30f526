//! Deserializes the tree of nodes of a YAML file with serde. Every error is reported at its source position, and
//! deserialization continues after it.
//!
//! Values are deserialized as [`Field`]s. Deserialization of a field never fails: an invalid value is reported, and the
//! `Field` then contains no value. Therefore an invalid value does not prevent the deserialization of other values.

mod error;

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{StrDeserializer, U64Deserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::node::{Node, NodeKind};
use super::suggest;
use crate::policy::error::{Diagnostics, SourceSpan};

use error::DeserializeError;

/// The newtype struct name with which a [`Field`] is deserialized. If the deserializer receives this name, it provides
/// the source position in addition to the value.
const FIELD_NEWTYPE_NAME: &str = "slidegate::policy::file::Field";

/// Deserializes a tree of nodes as a `T` and reports all errors in the tree. Returns `None` if the root is invalid.
pub(super) fn deserialize_tree<'n, T: Deserialize<'n>>(
    node: &'n Node,
    diagnostics: &Diagnostics<'_>,
) -> Option<T> {
    let deserializer = NodeDeserializer { node, diagnostics };
    deserializer.report_if_error(T::deserialize(deserializer)).ok()
}

/// A value of a YAML file that may be absent or invalid, with its source position.
#[derive(Debug)]
pub struct Field<T> {
    /// The source position of the value; `None` if the field is absent.
    span: Option<SourceSpan>,
    /// Whether the value is a scalar without quotes.
    is_unquoted: bool,
    /// The value; `None` if the field is absent or invalid. An invalid value has been reported.
    value: Option<T>,
}

impl<T> Field<T> {
    /// Returns the value; `None` if it is absent or invalid.
    pub fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// Returns the value and its source position; `None` if the value is absent or invalid.
    pub fn value_and_span(&self) -> Option<(&T, SourceSpan)> {
        Some((self.value.as_ref()?, self.span?))
    }

    /// Returns the source position of the value. It is unknown if the field is absent.
    pub fn span(&self) -> SourceSpan {
        self.span.unwrap_or_default()
    }

    /// Returns `true` if the value is a scalar without quotes.
    pub fn is_unquoted(&self) -> bool {
        self.is_unquoted
    }

    /// Returns `true` if the map does not have the field.
    pub fn is_absent(&self) -> bool {
        self.span.is_none()
    }
}

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self { span: None, is_unquoted: false, value: None }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct FieldVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for FieldVisitor<T> {
            type Value = Field<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value and its source span")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Field<T>, A::Error> {
                let mut number = || Ok(parts.next_element::<u64>()?.unwrap_or_default());
                let span = SourceSpan { line: number()?, column: number()?, width: number()? };
                let is_unquoted = number()? == 1;
                // An invalid value has been reported already, so it becomes `None`, and the fields after it are still
                // read.
                let value = parts.next_element::<T>().ok().flatten();
                Ok(Field { span: Some(span), is_unquoted, value })
            }
        }

        deserializer.deserialize_newtype_struct(FIELD_NEWTYPE_NAME, FieldVisitor(PhantomData))
    }
}

#[cfg(feature = "schema")]
impl<T: schemars::JsonSchema> schemars::JsonSchema for Field<T> {
    fn inline_schema() -> bool {
        T::inline_schema()
    }

    fn schema_name() -> std::borrow::Cow<'static, str> {
        T::schema_name()
    }

    fn schema_id() -> std::borrow::Cow<'static, str> {
        T::schema_id()
    }

    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        T::json_schema(generator)
    }
}

/// A serde deserializer for one node of the tree. It reports errors to `diagnostics`.
#[derive(Clone, Copy)]
struct NodeDeserializer<'n, 'm> {
    node: &'n Node,
    diagnostics: &'m Diagnostics<'m>,
}

impl<'n, 'm> NodeDeserializer<'n, 'm> {
    fn with_node(self, node: &'n Node) -> Self {
        Self { node, ..self }
    }

    fn report(&self, message: impl fmt::Display) {
        self.diagnostics.push(self.node.span, message);
    }

    /// Reports the error of a result, unless it has been reported already. Returns the value, or
    /// [`DeserializeError::AlreadyReported`]. Each access to a value calls this function, so no error is lost or
    /// reported twice.
    fn report_if_error<T>(
        self,
        result: Result<T, DeserializeError>,
    ) -> Result<T, DeserializeError> {
        result.map_err(|error| {
            if !matches!(error, DeserializeError::AlreadyReported) {
                self.report(error);
            }
            DeserializeError::AlreadyReported
        })
    }

    /// Returns an error with the message that the node does not have the type `expected`.
    fn type_mismatch_error<T>(self, expected: &dyn Expected) -> Result<T, DeserializeError> {
        Err(match &self.node.kind {
            NodeKind::Null => DeserializeError::custom(format_args!(
                "expected {expected}, found no value; write a value, or remove the field"
            )),
            NodeKind::Text(text) => {
                DeserializeError::custom(format_args!("expected {expected}, found `{text}`"))
            }
            NodeKind::List(_) => {
                DeserializeError::invalid_type(Unexpected::Other("a list"), expected)
            }
            NodeKind::Map(_) => {
                DeserializeError::invalid_type(Unexpected::Other("a map"), expected)
            }
        })
    }

    /// Returns the entries of a map whose keys are in `fields`. Reports every other key as an unknown field.
    fn entries_of_known_fields(
        self,
        entries: &'n [(Node, Node)],
        fields: &'static [&'static str],
    ) -> Vec<&'n (Node, Node)> {
        let is_known = |(key, _): &&(Node, Node)| match &key.kind {
            NodeKind::Text(name) if fields.contains(&&**name) => true,
            NodeKind::Text(name) => {
                let message =
                    fmt::from_fn(|f| f.write_str(&suggest::unknown_field_message(name, fields)));
                self.with_node(key).report(message);
                false
            }
            _ => false,
        };
        entries.iter().filter(is_known).collect()
    }
}

impl<'n> Deserializer<'n> for NodeDeserializer<'n, '_> {
    type Error = DeserializeError;

    /// Deserializes text, a list or a map. A map is passed to the visitor as a newtype struct, so that the visitor can
    /// deserialize it as a struct with known fields.
    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Null => self.type_mismatch_error(&visitor),
            NodeKind::Text(text) => visitor.visit_str(text),
            NodeKind::List(_) => self.deserialize_seq(visitor),
            NodeKind::Map(_) => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_u64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            // The digits are checked here, because `parse` would also accept a plus sign.
            NodeKind::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                let large = |_| {
                    DeserializeError::custom(format_args!(
                        "`{text}` is too large; write a smaller number"
                    ))
                };
                visitor.visit_u64(text.parse().map_err(large)?)
            }
            _ => self.type_mismatch_error(&"a whole number"),
        }
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Text(text) if **text == *"true" => visitor.visit_bool(true),
            NodeKind::Text(text) if **text == *"false" => visitor.visit_bool(false),
            _ => self.type_mismatch_error(&"`true` or `false`"),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Text(text) => visitor.visit_str(text),
            _ => self.type_mismatch_error(&"text"),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'n>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::List(items) => {
                visitor.visit_seq(ListItemAccess { deserializer: self, items: items.iter() })
            }
            NodeKind::Text(text) => Err(DeserializeError::custom(format_args!(
                "expected a list, found `{text}`; did you mean `[{text}]`?"
            ))),
            _ => self.type_mismatch_error(&"a list such as [a, b]"),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Map(entries) => {
                let entries: Vec<_> = entries.iter().collect();
                visitor.visit_map(MapEntryAccess::new(self, entries))
            }
            _ => self.type_mismatch_error(&visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Map(entries) => {
                let entries = self.entries_of_known_fields(entries, fields);
                visitor.visit_map(MapEntryAccess::new(self, entries))
            }
            _ => self.type_mismatch_error(&visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Text(text) if variants.contains(&&**text) => {
                let name: StrDeserializer<'_, DeserializeError> = (**text).into_deserializer();
                visitor.visit_enum(name)
            }
            NodeKind::Text(text) => Err(DeserializeError::unknown_variant(text, variants)),
            _ => self.type_mismatch_error(&suggest::format_alternatives(variants).as_str()),
        }
    }

    fn deserialize_option<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, DeserializeError> {
        match &self.node.kind {
            NodeKind::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_ignored_any<V: Visitor<'n>>(
        self,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        visitor.visit_unit()
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, DeserializeError> {
        match name {
            FIELD_NEWTYPE_NAME => {
                visitor.visit_seq(FieldSpanAndValueAccess { deserializer: self, next_part: 0 })
            }
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i64 u8 u16 u32 f32 f64 char bytes byte_buf unit unit_struct tuple tuple_struct
    }
}

/// The sequence of parts from which a [`Field`] is deserialized: line, column, width, whether it is plain, value.
struct FieldSpanAndValueAccess<'n, 'm> {
    deserializer: NodeDeserializer<'n, 'm>,
    next_part: usize,
}

impl<'n> SeqAccess<'n> for FieldSpanAndValueAccess<'n, '_> {
    type Error = DeserializeError;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Node { span: SourceSpan { line, column, width }, is_unquoted, .. } =
            *self.deserializer.node;
        let numbers = [line, column, width, u64::from(is_unquoted)];
        let number = numbers.get(self.next_part).copied();
        self.next_part += 1;
        match number {
            Some(number) => {
                let number: U64Deserializer<DeserializeError> = number.into_deserializer();
                seed.deserialize(number).map(Some)
            }
            None => {
                let value = seed.deserialize(self.deserializer);
                self.deserializer.report_if_error(value).map(Some)
            }
        }
    }
}

struct ListItemAccess<'n, 'm> {
    deserializer: NodeDeserializer<'n, 'm>,
    items: std::slice::Iter<'n, Node>,
}

impl<'n> SeqAccess<'n> for ListItemAccess<'n, '_> {
    type Error = DeserializeError;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let item = self.deserializer.with_node(item);
        item.report_if_error(seed.deserialize(item)).map(Some)
    }
}

struct MapEntryAccess<'n, 'm> {
    deserializer: NodeDeserializer<'n, 'm>,
    entries: std::vec::IntoIter<&'n (Node, Node)>,
    value: Option<&'n Node>,
}

impl<'n, 'm> MapEntryAccess<'n, 'm> {
    fn new(deserializer: NodeDeserializer<'n, 'm>, entries: Vec<&'n (Node, Node)>) -> Self {
        Self { deserializer, entries: entries.into_iter(), value: None }
    }
}

impl<'n> MapAccess<'n> for MapEntryAccess<'n, '_> {
    type Error = DeserializeError;

    fn next_key_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, DeserializeError> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        let key = self.deserializer.with_node(key);
        key.report_if_error(seed.deserialize(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, DeserializeError> {
        let value =
            self.value.take().ok_or_else(|| DeserializeError::custom("a value before its key"))?;
        let value = self.deserializer.with_node(value);
        value.report_if_error(seed.deserialize(value))
    }
}
