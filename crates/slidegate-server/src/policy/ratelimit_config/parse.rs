//! Parses a configuration file to descriptors with limits. Rejects everything that Envoy's reference rate limit server
//! rejects.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use slidegate::policy::file::{Field, deserialize_yaml};

use super::config_map::{
    ConfigMap, ConfigMapList, DESCRIPTOR_FIELDS, FILE_FIELDS, RATE_LIMIT_FIELDS,
    REPLACED_LIMIT_FIELDS, ScalarField,
};
use super::finding::{FILE_START, Findings, SourcePosition};
use super::scalar::Scalar;
use super::time_unit::TimeUnit;

/// The maximum length of a domain name, in bytes.
const MAX_DOMAIN_BYTES: usize = 128;

/// A domain, as defined by one configuration file.
#[derive(Debug)]
pub struct ConfigDomain {
    pub position: SourcePosition,
    pub name: String,
    pub descriptors: Vec<ConfigDescriptor>,
}

/// A descriptor in a configuration file: a key, an optional value, an optional limit, and nested descriptors.
#[derive(Debug)]
pub struct ConfigDescriptor {
    pub position: SourcePosition,
    pub key: String,
    /// The value, which may contain the wildcard `*`. An empty value matches every value of a request.
    pub value: String,
    pub value_position: SourcePosition,
    pub limit: Option<ConfigLimit>,
    /// The field `shadow_mode`: whether the limit only observes requests and never denies them.
    pub is_shadow: bool,
    /// The position of `quota_mode: true` in the file, or `None` if the mode is not set.
    pub quota_mode_position: Option<SourcePosition>,
    /// The field `share_threshold`: whether all values that match a wildcard share one counter.
    pub is_shared: bool,
    pub descriptors: Vec<ConfigDescriptor>,
}

/// The limit of a descriptor, from its field `rate_limit`.
#[derive(Debug)]
pub struct ConfigLimit {
    /// The name of the limit. Empty if the limit has no name.
    pub name: String,
    /// The quota, or `None` if the limit is `unlimited`.
    pub quota: Option<ConfigQuota>,
    /// The names of the limits that this limit replaces, each with its position in the file.
    pub replaces: Vec<(SourcePosition, String)>,
}

/// A quota of at most `max` requests in each time unit.
#[derive(Clone, Copy, Debug)]
pub struct ConfigQuota {
    pub position: SourcePosition,
    pub max: u32,
    pub unit: &'static TimeUnit,
}

/// Parses the text of a configuration file. Returns `None` only if an error was added to `findings`.
pub fn parse_file(path: &Path, text: &str, findings: &mut Findings) -> Option<ConfigDomain> {
    let (root, errors) = deserialize_yaml::<Option<ConfigMap>>(text);
    for error in errors {
        let position = SourcePosition { line: error.line, column: error.column };
        findings.push_error(path, position, error.message);
    }
    Some(DescriptorParser { path, findings }.parse_domain(&root?.unwrap_or_default()))
}

/// Returns `true` if a text is a YAML map with the fields `domain` and `descriptors`, as in a configuration file of
/// Envoy's reference rate limit server. Ignores errors in the values of the fields.
pub fn looks_like_ratelimit_config(text: &str) -> bool {
    let (root, _) = deserialize_yaml::<ConfigMap>(text);
    root.is_some_and(|root| !root.domain.is_absent() && !root.descriptors.is_absent())
}

/// A parser that converts the maps of a file to descriptors, and collects errors and notes.
struct DescriptorParser<'f> {
    path: &'f Path,
    findings: &'f mut Findings,
}

impl DescriptorParser<'_> {
    fn push_error(&mut self, position: SourcePosition, message: impl fmt::Display) {
        self.findings.push_error(self.path, position, message);
    }

    fn push_note(&mut self, position: SourcePosition, message: impl fmt::Display) {
        self.findings.push_note(self.path, position, message);
    }

    fn parse_domain(&mut self, root: &ConfigMap) -> ConfigDomain {
        self.note_misplaced_fields(root, FILE_FIELDS);
        let name = self.read_text("domain", &root.domain);
        let position = value_or_map_position(&root.domain, FILE_START);
        if name.is_empty() {
            self.push_error(position, "`domain` is missing or empty; write the name of the domain");
        }
        if name.len() > MAX_DOMAIN_BYTES {
            self.push_error(
                position,
                format_args!(
                    "cannot be converted: the domain name is longer than {MAX_DOMAIN_BYTES} bytes"
                ),
            );
        }
        let descriptors = self.parse_descriptors(&root.descriptors);
        ConfigDomain { position, name, descriptors }
    }

    fn parse_descriptors(&mut self, maps: &ConfigMapList) -> Vec<ConfigDescriptor> {
        let mut first_positions: HashMap<String, SourcePosition> = HashMap::new();
        let mut descriptors = Vec::new();
        for (fields, position) in valid_maps(maps) {
            let descriptor = self.parse_descriptor(fields, position);
            let ConfigDescriptor { position, key, value, .. } = &descriptor;
            // The reference server joins key and value, so key `a` with value `b_c` is a duplicate of key `a_b` with
            // value `c`.
            let joined = match &**value {
                "" => key.clone(),
                value => format!("{key}_{value}"),
            };
            match first_positions.get(&joined) {
                Some(SourcePosition { line, .. }) if !key.is_empty() => {
                    let message = format_args!(
                        "duplicate descriptor `{joined}`, first defined in line {line}; remove one of them (the reference server joins key and value with `_` and compares the result)"
                    );
                    self.push_error(*position, message);
                }
                _ => drop(first_positions.insert(joined, *position)),
            }
            descriptors.push(descriptor);
        }
        descriptors
    }

    fn parse_descriptor(
        &mut self,
        fields: &ConfigMap,
        position: SourcePosition,
    ) -> ConfigDescriptor {
        self.note_misplaced_fields(fields, DESCRIPTOR_FIELDS);
        let key = self.read_text("key", &fields.key);
        let value = self.read_text("value", &fields.value);
        if key.is_empty() {
            let message = "the descriptor has no `key`; add the name of an attribute";
            self.push_error(value_or_map_position(&fields.key, position), message);
        }
        let is_shadow = self.read_bool("shadow_mode", &fields.shadow_mode);
        let is_quota = self.read_bool("quota_mode", &fields.quota_mode);
        let is_shared = self.read_bool("share_threshold", &fields.share_threshold);
        if is_shared && !value.contains('*') && !key.contains('*') {
            let message = "`share_threshold` requires a wildcard; add `*` to `value`, or remove `share_threshold`";
            self.push_error(fields.share_threshold.span().into(), message);
        }
        self.note_ineffective_fields(fields);
        let limit = self.parse_limit(&fields.rate_limit);
        for (name, is_set, field) in [
            ("shadow_mode", is_shadow, &fields.shadow_mode),
            ("quota_mode", is_quota, &fields.quota_mode),
        ] {
            if is_set && present_value(&fields.rate_limit).is_none() {
                let message = format_args!(
                    "`{name}` has no effect without a `rate_limit` in the same descriptor"
                );
                self.push_note(field.span().into(), message);
            }
        }
        ConfigDescriptor {
            position,
            key,
            value_position: value_or_map_position(&fields.value, position),
            value,
            limit,
            is_shadow,
            quota_mode_position: is_quota.then(|| fields.quota_mode.span().into()),
            is_shared,
            descriptors: self.parse_descriptors(&fields.descriptors),
        }
    }

    /// Adds a note for each field about metrics or metadata, because these fields have no effect in slidegate.
    fn note_ineffective_fields(&mut self, fields: &ConfigMap) {
        for (name, field) in [
            ("detailed_metric", &fields.detailed_metric),
            ("value_to_metric", &fields.value_to_metric),
        ] {
            if self.read_bool(name, field) {
                let message = format_args!(
                    "`{name}` has no effect: the labels of metrics contain rule names, not descriptor values"
                );
                self.push_note(field.span().into(), message);
            }
        }
        if let Some((_, position)) = present_value(&fields.metadata) {
            self.push_note(position, "`metadata` has no effect");
        }
    }

    fn parse_limit(&mut self, limit: &Field<Option<Box<ConfigMap>>>) -> Option<ConfigLimit> {
        let (fields, position) = present_value(limit)?;
        self.note_misplaced_fields(fields, RATE_LIMIT_FIELDS);
        let name = self.read_text("name", &fields.name);
        let replaces = self.parse_replaced_limits(&fields.replaces, &name);
        let is_unlimited = self.read_bool("unlimited", &fields.unlimited);
        let unit = self.read_text("unit", &fields.unit);
        let max = self.read_number("requests_per_unit", &fields.requests_per_unit);
        let unit_position = value_or_map_position(&fields.unit, position);
        let unit = match TimeUnit::from_name(&unit) {
            Some(_) if is_unlimited => {
                self.push_error(
                    unit_position,
                    "`unlimited` and `unit` exclude each other; remove one of them",
                );
                return None;
            }
            None if !is_unlimited => {
                let problem = match &*unit {
                    "" => "`unit` is missing".to_owned(),
                    unit => format!("`{unit}` is not a unit of time"),
                };
                let message = format_args!("{problem}; use one of {}", TimeUnit::list_names());
                self.push_error(unit_position, message);
                return None;
            }
            unit => unit,
        };
        let quota = unit.map(|unit| ConfigQuota {
            position: value_or_map_position(&fields.requests_per_unit, position),
            max: max.unwrap_or_default(),
            unit,
        });
        if quota.is_some() && present_value(&fields.requests_per_unit).is_none() {
            let message =
                "`requests_per_unit` is missing, so the limit is 0 and denies every request";
            self.push_note(position, message);
        }
        Some(ConfigLimit { name, quota, replaces })
    }

    /// Returns the positions and the names of the limits in the field `replaces`.
    fn parse_replaced_limits(
        &mut self,
        maps: &ConfigMapList,
        own_name: &str,
    ) -> Vec<(SourcePosition, String)> {
        let mut replaces = Vec::new();
        for (fields, position) in valid_maps(maps) {
            self.note_misplaced_fields(fields, REPLACED_LIMIT_FIELDS);
            let (position, name) = (
                value_or_map_position(&fields.name, position),
                self.read_text("name", &fields.name),
            );
            if name.is_empty() {
                let message = "the entry of `replaces` has no `name`; add the name of a limit";
                self.push_error(position, message);
            } else if name == own_name {
                let message = "a limit cannot replace a limit with its own name; remove this entry";
                self.push_error(position, message);
            }
            replaces.push((position, name));
        }
        replaces
    }

    /// Adds a note for each field that has no effect in this map, because only other maps use it.
    fn note_misplaced_fields(&mut self, map: &ConfigMap, effective_names: &[&str]) {
        for (name, position) in map.present_fields() {
            if !effective_names.contains(&name) {
                let message = format_args!("`{name}` has no effect in this map; move or remove it");
                self.push_note(position, message);
            }
        }
    }

    fn read_text(&mut self, name: &str, field: &ScalarField) -> String {
        match read_scalar(field) {
            Some((Scalar::OtherNumber, text, position)) => {
                let message = format_args!(
                    "`{name}` is `{text}`, which is not an integer, and the reference server rejects other numbers; put it in quotes"
                );
                self.push_error(position, message);
                String::new()
            }
            Some((_, text, _)) => text.to_owned(),
            None => String::new(),
        }
    }

    fn read_bool(&mut self, name: &str, field: &ScalarField) -> bool {
        match read_scalar(field) {
            Some((Scalar::Bool(flag), ..)) => flag,
            Some((_, _, position)) => {
                self.push_error(position, format_args!("`{name}` must be `true` or `false`"));
                false
            }
            None => false,
        }
    }

    fn read_number(&mut self, name: &str, field: &ScalarField) -> Option<u32> {
        let (scalar, _, position) = read_scalar(field)?;
        let number = match scalar {
            Scalar::Int(number) => u32::try_from(number).ok(),
            _ => None,
        };
        if number.is_none() {
            let message =
                format_args!("`{name}` must be an integer from 0 to {}, without quotes", u32::MAX);
            self.push_error(position, message);
        }
        number
    }
}

/// Returns the type of a scalar, its text, and its position. Returns `None` if the field is absent, null, or invalid.
fn read_scalar(field: &ScalarField) -> Option<(Scalar, &str, SourcePosition)> {
    let (text, position) = present_value(field)?;
    let scalar = if field.is_unquoted() { Scalar::from_plain(text) } else { Scalar::Text };
    (scalar != Scalar::Null).then_some((scalar, text, position))
}

/// Returns the value and the position of a field. Returns `None` if the field is absent, null, or invalid.
fn present_value<T>(field: &Field<Option<T>>) -> Option<(&T, SourcePosition)> {
    let (value, span) = field.value_and_span()?;
    Some((value.as_ref()?, span.into()))
}

/// Returns the position of a field's value, or the position of the map if it does not have the field.
fn value_or_map_position<T>(field: &Field<T>, map: SourcePosition) -> SourcePosition {
    if field.is_absent() { map } else { field.span().into() }
}

/// Returns the maps in a list. Skips invalid items, which the deserializer has reported.
fn valid_maps(maps: &ConfigMapList) -> impl Iterator<Item = (&ConfigMap, SourcePosition)> {
    let items = present_value(maps).into_iter().flat_map(|(items, _)| items);
    items.filter_map(|item| item.value_and_span()).map(|(map, span)| (map, span.into()))
}
