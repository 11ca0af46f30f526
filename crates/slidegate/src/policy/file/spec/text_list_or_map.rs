//! Deserializes values that can be written as text, as a list or as a map.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{Error, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

use super::block::{BlockMap, BlockSpec};
use super::normalize::NormalizeEntry;
use super::{
    AttributesSpec, ConditionMap, ConditionSpec, CostSpec, EnforceMap, LimitMap, LimitSpec,
    LimitsSpec, MODE_NAMES, MapEntries, ModeSpec,
};
use crate::quota;

/// A type whose value can be written in YAML as text, a list or a map. An implementation supports some of these forms.
trait TextListOrMap<'de>: Sized {
    const EXPECTED_VALUE_DESCRIPTION: &'static str;

    fn from_text<E: Error>(text: &str) -> Result<Self, E>;

    fn from_list<A: SeqAccess<'de>>(_: A) -> Result<Self, A::Error> {
        Err(Error::invalid_type(
            serde::de::Unexpected::Other("a list"),
            &Self::EXPECTED_VALUE_DESCRIPTION,
        ))
    }

    fn from_map<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(Error::invalid_type(
            serde::de::Unexpected::Other("a map"),
            &Self::EXPECTED_VALUE_DESCRIPTION,
        ))
    }
}

struct TextListOrMapVisitor<T>(PhantomData<T>);

impl<'de, T: TextListOrMap<'de>> Visitor<'de> for TextListOrMapVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTED_VALUE_DESCRIPTION)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        T::from_text(text)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<T, A::Error> {
        T::from_list(list)
    }

    /// Visits a map. `NodeDeserializer::deserialize_any` passes each map as a newtype struct.
    fn visit_newtype_struct<D: Deserializer<'de>>(self, map: D) -> Result<T, D::Error> {
        T::from_map(map)
    }
}

/// Collects the entries of a map whose keys are names, in the order of the file.
pub(super) struct EntriesVisitor<V> {
    /// The description of the map in error messages.
    pub(super) expected: &'static str,
    pub(super) entries: MapEntries<V>,
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for EntriesVisitor<V> {
    type Value = MapEntries<V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<Self::Value, A::Error> {
        while let Some(entry) = map.next_entry()? {
            self.entries.push(entry);
        }
        Ok(self.entries)
    }
}

fn collect_list<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(
    mut list: A,
) -> Result<Vec<T>, A::Error> {
    let mut items = Vec::new();
    while let Some(item) = list.next_element()? {
        items.push(item);
    }
    Ok(items)
}

impl<'de> TextListOrMap<'de> for LimitSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "a limit such as 100/min, or a map with `max` and `window`";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::Text(text.to_owned()))
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        LimitMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for LimitsSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "a list of limits such as [100/min], or `unlimited`, `denied` or `requested`";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        match text {
            "unlimited" => Ok(Self::Unlimited),
            "denied" => Ok(Self::Denied),
            "requested" => Ok(Self::Requested),
            other => {
                let mut quotas = quota::closest_quotas(other);
                if quotas.is_empty() && !other.contains('/') {
                    return Err(E::unknown_variant(other, &["unlimited", "denied", "requested"]));
                }
                if quotas.is_empty() {
                    quotas.push(other.to_owned());
                }
                Err(E::custom(format_args!(
                    "expected a list of limits, found `{other}`; did you mean `[{}]`?",
                    quotas.join("]` or `[")
                )))
            }
        }
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::List)
    }
}

impl<'de> TextListOrMap<'de> for ModeSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "`enforce`, `jointly`, `observe`, `off` or { enforce: 5% }";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        match text {
            "enforce" => Ok(Self::Enforce),
            "jointly" => Ok(Self::Jointly),
            "observe" => Ok(Self::Observe),
            // A YAML 1.1 parser reads `off` without quotes as `false`. Here it is text, because nodes keep the source
            // text.
            "off" => Ok(Self::Off),
            other => Err(E::unknown_variant(other, MODE_NAMES)),
        }
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        EnforceMap::deserialize(map).map(|map| Self::For(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for BlockSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str = "a duration such as 10m, or a map with `for`";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::For(text.to_owned()))
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        BlockMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for CostSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str = "a number of units, or the name of a cost";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        if text.is_empty() || !text.bytes().all(|byte| byte.is_ascii_digit()) {
            return Ok(Self::Named(text.to_owned()));
        }
        let units = text.parse();
        units
            .map(Self::Constant)
            .map_err(|_| E::custom(format_args!("`{text}` is too large; write a smaller number")))
    }
}

impl<'de> TextListOrMap<'de> for ConditionSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "a value, a list of values, { not: … } or { literal: […] }";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Ok(Self::One(text.to_owned()))
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::Any)
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        ConditionMap::deserialize(map).map(|map| Self::Map(Box::new(map)))
    }
}

impl<'de> TextListOrMap<'de> for AttributesSpec {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "a list of attributes such as [ip, method], or a map of domains with such lists";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Err(E::custom(format_args!("expected a list, found `{text}`; did you mean `[{text}]`?")))
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::All)
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        let expected = Self::EXPECTED_VALUE_DESCRIPTION;
        map.deserialize_map(EntriesVisitor { expected, entries: Vec::new() }).map(Self::ByDomain)
    }
}

impl<'de> TextListOrMap<'de> for NormalizeEntry {
    const EXPECTED_VALUE_DESCRIPTION: &'static str =
        "a list of steps such as [trim, lowercase], or a map of attributes with such lists";

    fn from_text<E: Error>(text: &str) -> Result<Self, E> {
        Err(E::custom(format_args!("expected a list, found `{text}`; did you mean `[{text}]`?")))
    }

    fn from_list<A: SeqAccess<'de>>(list: A) -> Result<Self, A::Error> {
        collect_list(list).map(Self::Steps)
    }

    fn from_map<D: Deserializer<'de>>(map: D) -> Result<Self, D::Error> {
        let expected = Self::EXPECTED_VALUE_DESCRIPTION;
        map.deserialize_map(EntriesVisitor { expected, entries: Vec::new() }).map(Self::Domain)
    }
}

/// Implements `Deserialize` for types that are written as text, a list or a map. A derived untagged enum would lose the
/// source positions and report no specific errors.
macro_rules! deserialize_text_list_or_map {
    ($($either:ty),*) => {$(
        impl<'de> Deserialize<'de> for $either {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any(TextListOrMapVisitor(PhantomData))
            }
        }
    )*};
}

deserialize_text_list_or_map!(
    AttributesSpec,
    BlockSpec,
    NormalizeEntry,
    LimitSpec,
    LimitsSpec,
    CostSpec,
    ModeSpec,
    ConditionSpec
);
