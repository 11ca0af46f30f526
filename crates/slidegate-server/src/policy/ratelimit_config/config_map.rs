//! The fields of configuration files of Envoy's reference rate limit server.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use slidegate::policy::file::Field;

use super::finding::SourcePosition;

/// A text, number or boolean. A null value equals an absent field.
pub type ScalarField = Field<Option<String>>;

/// A list of maps. A null value equals an absent field.
pub type ConfigMapList = Field<Option<Vec<Field<ConfigMap>>>>;

/// A map in a configuration file. The reference server accepts each field in every map, also where it has no effect, so
/// one type represents all maps.
#[derive(Debug, Default, Deserialize)]
#[serde(default, expecting = "a map of fields")]
pub struct ConfigMap {
    pub domain: ScalarField,
    pub descriptors: ConfigMapList,
    pub key: ScalarField,
    pub value: ScalarField,
    pub rate_limit: Field<Option<Box<ConfigMap>>>,
    pub shadow_mode: ScalarField,
    pub quota_mode: ScalarField,
    pub share_threshold: ScalarField,
    pub detailed_metric: ScalarField,
    pub value_to_metric: ScalarField,
    pub metadata: Field<Option<BTreeMap<String, IgnoredAny>>>,
    pub unit: ScalarField,
    pub requests_per_unit: ScalarField,
    pub unlimited: ScalarField,
    pub name: ScalarField,
    pub replaces: ConfigMapList,
}

/// The fields that have an effect at the top level of a file.
pub const FILE_FIELDS: &[&str] = &["domain", "descriptors"];

/// The fields that have an effect in a descriptor.
pub const DESCRIPTOR_FIELDS: &[&str] = &[
    "key",
    "value",
    "rate_limit",
    "descriptors",
    "shadow_mode",
    "quota_mode",
    "share_threshold",
    "detailed_metric",
    "value_to_metric",
    "metadata",
];

/// The fields that have an effect in the map `rate_limit`.
pub const RATE_LIMIT_FIELDS: &[&str] =
    &["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The fields that have an effect in an item of the list `replaces`.
pub const REPLACED_LIMIT_FIELDS: &[&str] = &["name"];

impl ConfigMap {
    /// Returns the names of the fields in this map, with the positions of their values.
    pub fn present_fields(&self) -> impl Iterator<Item = (&'static str, SourcePosition)> {
        fn position<T>(field: &Field<T>) -> Option<SourcePosition> {
            (!field.is_absent()).then(|| field.span().into())
        }
        let fields = [
            ("domain", position(&self.domain)),
            ("descriptors", position(&self.descriptors)),
            ("key", position(&self.key)),
            ("value", position(&self.value)),
            ("rate_limit", position(&self.rate_limit)),
            ("shadow_mode", position(&self.shadow_mode)),
            ("quota_mode", position(&self.quota_mode)),
            ("share_threshold", position(&self.share_threshold)),
            ("detailed_metric", position(&self.detailed_metric)),
            ("value_to_metric", position(&self.value_to_metric)),
            ("metadata", position(&self.metadata)),
            ("unit", position(&self.unit)),
            ("requests_per_unit", position(&self.requests_per_unit)),
            ("unlimited", position(&self.unlimited)),
            ("name", position(&self.name)),
            ("replaces", position(&self.replaces)),
        ];
        fields.into_iter().filter_map(|(name, position)| Some((name, position?)))
    }
}
