//! Serde's way through a tree: every mistake is noted where it stands, and reading goes on beside it.
//!
//! What may be wrong on its own is a [`Field`]: it takes any value, and says later whether it was right.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::{StrDeserializer, U64Deserializer};
use serde::de::{
    DeserializeSeed, Deserializer, Error, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde::forward_to_deserialize_any;

use super::node::{Kind, Node};
use super::{Diagnostics, SourceSpan, suggest};

/// The name by which a [`Field`] asks for its place.
const FIELD: &str = "slidegate::Field";

/// Reads a tree as a `T`, and notes all mistakes in it.
pub(super) fn read<'n, T: Deserialize<'n>>(
    node: &'n Node,
    diagnostics: &Diagnostics<'_>,
) -> Option<T> {
    let reading = Reading { node, diagnostics };
    reading.told(T::deserialize(reading)).ok()
}

/// A value that may be absent or wrong, and its place.
#[derive(Debug)]
pub(super) struct Field<T> {
    /// None: it is absent.
    place: Option<SourceSpan>,
    /// None: it is absent, or wrong and told.
    value: Option<T>,
}

impl<T> Field<T> {
    /// The value, unless it is absent, or wrong and told.
    pub(super) fn get(&self) -> Option<&T> {
        self.value.as_ref()
    }

    /// The value and its place.
    pub(super) fn given(&self) -> Option<(&T, SourceSpan)> {
        Some((self.value.as_ref()?, self.place?))
    }

    pub(super) fn place(&self) -> SourceSpan {
        self.place.unwrap_or_default()
    }

    pub(super) fn is_absent(&self) -> bool {
        self.place.is_none()
    }
}

impl<T> Default for Field<T> {
    fn default() -> Self {
        Self { place: None, value: None }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Field<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Parts<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for Parts<T> {
            type Value = Field<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a value with its place")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<Field<T>, A::Error> {
                let mut number = || Ok(parts.next_element::<u64>()?.unwrap_or_default());
                let place = SourceSpan { line: number()?, column: number()?, width: number()? };
                // A value that is wrong has been told: what stands beside it is still read.
                let value = parts.next_element::<T>().ok().flatten();
                Ok(Field { place: Some(place), value })
            }
        }

        deserializer.deserialize_newtype_struct(FIELD, Parts(PhantomData))
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

/// Why a value could not be read.
#[derive(Debug)]
pub(super) enum Fault {
    Message(String),
    /// What was meant is sought only if it is told.
    NotOneOf(String, &'static [&'static str]),
    /// It has been noted.
    Told,
}

impl std::error::Error for Fault {}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Message(message) => f.write_str(message),
            Self::NotOneOf(word, known) => f.write_str(&suggest::not_one_of(word, known)),
            Self::Told => f.write_str("told already"),
        }
    }
}

impl Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::Message(message.to_string())
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::custom(format_args!("found {unexpected} where {expected} should be"))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        Self::NotOneOf(variant.to_owned(), expected)
    }
}

/// A node, as serde reads it.
#[derive(Clone, Copy)]
struct Reading<'n, 'm> {
    node: &'n Node,
    diagnostics: &'m Diagnostics<'m>,
}

impl<'n, 'm> Reading<'n, 'm> {
    fn of(self, node: &'n Node) -> Self {
        Self { node, ..self }
    }

    fn note(&self, message: impl fmt::Display) {
        self.diagnostics.note(self.node.place, message);
    }

    /// The result, with its fault noted: whoever hands out a value sees to it.
    fn told<T>(self, result: Result<T, Fault>) -> Result<T, Fault> {
        result.map_err(|fault| {
            if !matches!(fault, Fault::Told) {
                self.note(fault);
            }
            Fault::Told
        })
    }

    /// Not what is expected here.
    fn found<T>(self, expected: &dyn Expected) -> Result<T, Fault> {
        Err(match &self.node.kind {
            Kind::Null => Fault::custom(format_args!(
                "nothing stands where {expected} should be: write it, or leave the field out"
            )),
            Kind::Text(text) => {
                Fault::custom(format_args!("found `{text}` where {expected} should be"))
            }
            Kind::List(_) => Fault::invalid_type(Unexpected::Other("a list"), expected),
            Kind::Map(_) => Fault::invalid_type(Unexpected::Other("a map"), expected),
        })
    }

    /// Notes the entries that are none of the fields; the others.
    fn known_entries(
        self,
        entries: &'n [(Node, Node)],
        fields: &'static [&'static str],
    ) -> Vec<&'n (Node, Node)> {
        let known = |(key, _): &&(Node, Node)| match &key.kind {
            Kind::Text(name) if fields.contains(&&**name) => true,
            Kind::Text(name) => {
                let told = fmt::from_fn(|f| f.write_str(&suggest::no_field(name, fields)));
                self.of(key).note(told);
                false
            }
            _ => false,
        };
        entries.iter().filter(known).collect()
    }
}

impl<'n> Deserializer<'n> for Reading<'n, '_> {
    type Error = Fault;

    /// For what may be text, a list or a map. A map comes as a newtype, so that it can then be read as a
    /// struct whose fields are known.
    fn deserialize_any<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Null => self.found(&visitor),
            Kind::Text(text) => visitor.visit_str(text),
            Kind::List(_) => self.deserialize_seq(visitor),
            Kind::Map(_) => visitor.visit_newtype_struct(self),
        }
    }

    fn deserialize_u64<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            // `parse` would also take a plus sign.
            Kind::Text(text) if text.bytes().all(|byte| byte.is_ascii_digit()) => {
                let large = |_| Fault::custom(format_args!("`{text}` is too large a number"));
                visitor.visit_u64(text.parse().map_err(large)?)
            }
            _ => self.found(&"a whole number"),
        }
    }

    fn deserialize_bool<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Text(text) if **text == *"true" => visitor.visit_bool(true),
            Kind::Text(text) if **text == *"false" => visitor.visit_bool(false),
            _ => self.found(&"`true` or `false`"),
        }
    }

    fn deserialize_str<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Text(text) => visitor.visit_str(text),
            _ => self.found(&"text"),
        }
    }

    fn deserialize_string<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_identifier<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_seq<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::List(items) => visitor.visit_seq(Items { reading: self, items: items.iter() }),
            Kind::Text(text) => Err(Fault::custom(format_args!(
                "found `{text}` where a list should be: did you mean `[{text}]`?"
            ))),
            _ => self.found(&"a list, such as [a, b],"),
        }
    }

    fn deserialize_map<V: Visitor<'n>>(self, visitor: V) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(entries) => {
                let entries: Vec<_> = entries.iter().collect();
                visitor.visit_map(Entries::new(self, entries))
            }
            _ => self.found(&visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'n>>(
        self,
        _: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Map(entries) => {
                let entries = self.known_entries(entries, fields);
                visitor.visit_map(Entries::new(self, entries))
            }
            _ => self.found(&visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'n>>(
        self,
        _: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match &self.node.kind {
            Kind::Text(text) if variants.contains(&&**text) => {
                let name: StrDeserializer<'_, Fault> = (**text).into_deserializer();
                visitor.visit_enum(name)
            }
            Kind::Text(text) => Err(Fault::unknown_variant(text, variants)),
            _ => self.found(&suggest::one_of(variants).as_str()),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'n>>(
        self,
        name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match name {
            FIELD => visitor.visit_seq(Parts { reading: self, given: 0 }),
            _ => visitor.visit_newtype_struct(self),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'n>>
        i8 i16 i32 i64 u8 u16 u32 f32 f64 char bytes byte_buf option unit unit_struct tuple
        tuple_struct ignored_any
    }
}

/// The parts of a [`Field`]: line, column, width, value.
struct Parts<'n, 'm> {
    reading: Reading<'n, 'm>,
    given: usize,
}

impl<'n> SeqAccess<'n> for Parts<'n, '_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let SourceSpan { line, column, width } = self.reading.node.place;
        let number = [line, column, width].get(self.given).copied();
        self.given += 1;
        match number {
            Some(number) => {
                let number: U64Deserializer<Fault> = number.into_deserializer();
                seed.deserialize(number).map(Some)
            }
            None => self.reading.told(seed.deserialize(self.reading)).map(Some),
        }
    }
}

struct Items<'n, 'm> {
    reading: Reading<'n, 'm>,
    items: std::slice::Iter<'n, Node>,
}

impl<'n> SeqAccess<'n> for Items<'n, '_> {
    type Error = Fault;

    fn next_element_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some(item) = self.items.next() else { return Ok(None) };
        let item = self.reading.of(item);
        item.told(seed.deserialize(item)).map(Some)
    }
}

struct Entries<'n, 'm> {
    reading: Reading<'n, 'm>,
    entries: std::vec::IntoIter<&'n (Node, Node)>,
    value: Option<&'n Node>,
}

impl<'n, 'm> Entries<'n, 'm> {
    fn new(reading: Reading<'n, 'm>, entries: Vec<&'n (Node, Node)>) -> Self {
        Self { reading, entries: entries.into_iter(), value: None }
    }
}

impl<'n> MapAccess<'n> for Entries<'n, '_> {
    type Error = Fault;

    fn next_key_seed<S: DeserializeSeed<'n>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Fault> {
        let Some((key, value)) = self.entries.next() else { return Ok(None) };
        self.value = Some(value);
        let key = self.reading.of(key);
        key.told(seed.deserialize(key)).map(Some)
    }

    fn next_value_seed<S: DeserializeSeed<'n>>(&mut self, seed: S) -> Result<S::Value, Fault> {
        let value = self.value.take().ok_or_else(|| Fault::custom("a value before its key"))?;
        let value = self.reading.of(value);
        value.told(seed.deserialize(value))
    }
}
