//! The field `normalize` of a policy file.

#[cfg(feature = "schema")]
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Deserializer};

use super::MapEntries;
use super::text_list_or_map::EntriesVisitor;
use crate::policy::error::SourceSpan;
use crate::policy::file::deserialize::Field;
use crate::policy::normalization::NormalizeStep;

/// The steps by which the values of an attribute are normalized.
pub(in crate::policy::file) type StepsSpec = Vec<Field<NormalizeStep>>;

/// The field `normalize`: a list of steps for each attribute, in all domains or in one.
pub(in crate::policy::file) struct NormalizeSpec(MapEntries<NormalizeEntry>);

/// The value of an entry of `normalize`: the steps of an attribute, or a map with the steps of each attribute of a
/// domain.
pub(in crate::policy::file) enum NormalizeEntry {
    /// The steps of an attribute in all domains. The name of the entry is the attribute.
    Steps(StepsSpec),
    /// The steps of the attributes of one domain. The name of the entry is the domain.
    Domain(MapEntries<StepsSpec>),
}

/// The steps of one attribute, with the domain to which they apply; `None` if they apply to all domains.
pub(in crate::policy::file) struct AttributeSteps<'s> {
    pub(in crate::policy::file) domain: Option<&'s Field<String>>,
    pub(in crate::policy::file) attribute: &'s Field<String>,
    pub(in crate::policy::file) steps: &'s StepsSpec,
    /// The position of the steps.
    pub(in crate::policy::file) at: SourceSpan,
}

impl NormalizeSpec {
    pub(in crate::policy::file) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the names of the entries that are domains, with their positions.
    pub(in crate::policy::file) fn domains(&self) -> impl Iterator<Item = (&str, SourceSpan)> {
        let is_domain = |entry: &Field<_>| matches!(entry.get(), Some(NormalizeEntry::Domain(_)));
        let domains = self.0.iter().filter(move |(_, entry)| is_domain(entry));
        domains.filter_map(|(name, _)| name.value_and_span()).map(|(name, at)| (&**name, at))
    }

    /// Returns the steps of each attribute, in the order of the file. Leaves out invalid entries, which have been
    /// reported.
    pub(in crate::policy::file) fn attribute_steps(&self) -> Vec<AttributeSteps<'_>> {
        let mut all = Vec::new();
        for (name, entry) in &self.0 {
            match entry.value_and_span() {
                Some((NormalizeEntry::Steps(steps), at)) => {
                    all.push(AttributeSteps { domain: None, attribute: name, steps, at });
                }
                Some((NormalizeEntry::Domain(entries), _)) => {
                    all.extend(entries.iter().filter_map(|(attribute, steps)| {
                        let (steps, at) = steps.value_and_span()?;
                        Some(AttributeSteps { domain: Some(name), attribute, steps, at })
                    }));
                }
                None => {}
            }
        }
        all
    }
}

impl<'de> Deserialize<'de> for NormalizeSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "a map from attributes to steps such as { account: [trim, lowercase] }";
        deserializer.deserialize_map(EntriesVisitor { expected, entries: Vec::new() }).map(Self)
    }
}

#[cfg(feature = "schema")]
impl JsonSchema for NormalizeSpec {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Normalize".into()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        let steps = json_schema!({
            "type": "array",
            "items": generator.subschema_for::<NormalizeStep>(),
            "minItems": 1,
        });
        json_schema!({
            "description": "The steps by which the values of attributes are normalized before rules compare and count them: a map from attributes to lists of steps, or from domains to such maps.",
            "type": "object",
            "additionalProperties": {
                "anyOf": [steps, { "type": "object", "additionalProperties": steps }],
            },
            "minProperties": 1,
        })
    }
}
