//! Parses the YAML tree of a configuration file to descriptors with limits. Rejects everything that Envoy's reference
//! rate limit server rejects.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use slidegate::internal::{Node, NodeKind};

use super::field_names::{
    self, DESCRIPTOR_FIELDS, FILE_FIELDS, RATE_LIMIT_FIELDS, REPLACED_LIMIT_FIELDS,
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
    let node = Node::parse(text)
        .map_err(|error| {
            findings.push_error(path, error.span.into(), error.message);
        })
        .ok()?;
    field_names::check_fields(path, &node, findings);
    DescriptorParser { path, findings }.parse_domain(&node)
}

/// Returns `true` if a text is a YAML map with the fields `domain` and `descriptors`, as in a configuration file of
/// Envoy's reference rate limit server. Ignores errors in the values of the fields.
pub fn looks_like_domain(text: &str) -> bool {
    let Ok(Node { kind: NodeKind::Map(entries), .. }) = Node::parse(text) else { return false };
    FILE_FIELDS.iter().all(|field| entries.iter().any(|(key, _)| key.text() == Some(*field)))
}

/// A parser that converts YAML nodes to descriptors, and collects errors and notes.
struct DescriptorParser<'f> {
    path: &'f Path,
    findings: &'f mut Findings,
}

/// The position of a YAML map in the file, and its fields.
struct YamlMapFields<'n> {
    position: SourcePosition,
    entries: Vec<(&'n str, &'n Node)>,
}

impl<'n> YamlMapFields<'n> {
    fn field_value(&self, field: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(name, _)| *name == field).map(|(_, node)| *node)
    }

    /// Returns the position of a field's value in the file, or the position of the map if the field is missing.
    fn field_position(&self, field: &str) -> SourcePosition {
        self.field_value(field).map_or(self.position, |node| node.span.into())
    }
}

impl DescriptorParser<'_> {
    fn push_error(&mut self, position: SourcePosition, message: impl fmt::Display) {
        self.findings.push_error(self.path, position, message);
    }

    fn push_note(&mut self, position: SourcePosition, message: impl fmt::Display) {
        self.findings.push_note(self.path, position, message);
    }

    fn parse_domain(&mut self, node: &Node) -> Option<ConfigDomain> {
        let fields = if is_null(node) {
            YamlMapFields { position: FILE_START, entries: Vec::new() }
        } else {
            self.read_map_fields(node, FILE_FIELDS, "a map with `domain` and `descriptors`")?
        };
        let name = self.read_text_field(&fields, "domain");
        let position = fields.field_position("domain");
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
        let descriptors = self.parse_descriptors(&fields);
        Some(ConfigDomain { position, name, descriptors })
    }

    fn parse_descriptors(&mut self, fields: &YamlMapFields<'_>) -> Vec<ConfigDescriptor> {
        let mut first_positions: HashMap<String, SourcePosition> = HashMap::new();
        let mut descriptors = Vec::new();
        for node in self.read_list_of_maps(fields, "descriptors") {
            let Some(descriptor) = self.parse_descriptor(node) else { continue };
            let ConfigDescriptor { position, key, value, .. } = &descriptor;
            // The reference server joins key and value: key `a` with value `b_c` equals key `a_b` with value `c`.
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

    fn parse_descriptor(&mut self, node: &Node) -> Option<ConfigDescriptor> {
        let fields =
            self.read_map_fields(node, DESCRIPTOR_FIELDS, "a descriptor: a map with `key`")?;
        let (key, value) =
            (self.read_text_field(&fields, "key"), self.read_text_field(&fields, "value"));
        if key.is_empty() {
            let message = "the descriptor has no `key`; add the name of an attribute";
            self.push_error(fields.field_position("key"), message);
        }
        let is_shadow = self.read_bool_field(&fields, "shadow_mode");
        let quota_mode_position = self
            .read_bool_field(&fields, "quota_mode")
            .then(|| fields.field_position("quota_mode"));
        let is_shared = self.read_bool_field(&fields, "share_threshold");
        if is_shared && !value.contains('*') && !key.contains('*') {
            let message = "`share_threshold` requires a wildcard; add `*` to `value`, or remove `share_threshold`";
            self.push_error(fields.field_position("share_threshold"), message);
        }
        self.note_ineffective_fields(&fields);
        let limit = self.parse_limit(&fields);
        for (field, is_set) in
            [("shadow_mode", is_shadow), ("quota_mode", quota_mode_position.is_some())]
        {
            if is_set && limit.is_none() && fields.field_value("rate_limit").is_none_or(is_null) {
                let message = format_args!(
                    "`{field}` has no effect without a `rate_limit` in the same descriptor"
                );
                self.push_note(fields.field_position(field), message);
            }
        }
        Some(ConfigDescriptor {
            position: fields.position,
            key,
            value,
            value_position: fields.field_position("value"),
            limit,
            is_shadow,
            quota_mode_position,
            is_shared,
            descriptors: self.parse_descriptors(&fields),
        })
    }

    /// Adds a note for each field about metrics or metadata, because these fields have no effect in slidegate. Adds an
    /// error if `metadata` is not a map.
    fn note_ineffective_fields(&mut self, fields: &YamlMapFields<'_>) {
        for field in ["detailed_metric", "value_to_metric"] {
            if self.read_bool_field(fields, field) {
                let message = format_args!(
                    "`{field}` has no effect: the labels of metrics contain rule names, not descriptor values"
                );
                self.push_note(fields.field_position(field), message);
            }
        }
        let Some(metadata) = fields.field_value("metadata").filter(|node| !is_null(node)) else {
            return;
        };
        match metadata.kind {
            NodeKind::Map(_) => {
                let message = "`metadata` has no effect";
                self.push_note(metadata.span.into(), message);
            }
            _ => self.push_error(metadata.span.into(), "`metadata` must be a map"),
        }
    }

    fn parse_limit(&mut self, fields: &YamlMapFields<'_>) -> Option<ConfigLimit> {
        let node = fields.field_value("rate_limit").filter(|node| !is_null(node))?;
        let fields = self.read_map_fields(
            node,
            RATE_LIMIT_FIELDS,
            "a limit: a map with `unit` and `requests_per_unit`",
        )?;
        let name = self.read_text_field(&fields, "name");
        let replaces = self.parse_replaced_limits(&fields, &name);
        let is_unlimited = self.read_bool_field(&fields, "unlimited");
        let unit = self.read_text_field(&fields, "unit");
        let max = self.read_number_field(&fields, "requests_per_unit");
        let position = fields.field_position("unit");
        let unit = match TimeUnit::from_name(&unit) {
            Some(_) if is_unlimited => {
                self.push_error(
                    position,
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
                self.push_error(position, message);
                return None;
            }
            unit => unit,
        };
        let position = fields.field_position("requests_per_unit");
        let quota = unit.map(|unit| ConfigQuota { position, max: max.unwrap_or_default(), unit });
        if quota.is_some() && fields.field_value("requests_per_unit").is_none_or(is_null) {
            let message =
                "`requests_per_unit` is missing, so the limit is 0 and denies every request";
            self.push_note(fields.position, message);
        }
        Some(ConfigLimit { name, quota, replaces })
    }

    /// Returns the positions and the names of the limits in the field `replaces`.
    fn parse_replaced_limits(
        &mut self,
        fields: &YamlMapFields<'_>,
        own_name: &str,
    ) -> Vec<(SourcePosition, String)> {
        let mut replaces = Vec::new();
        for node in self.read_list_of_maps(fields, "replaces") {
            let Some(fields) = self.read_map_fields(
                node,
                REPLACED_LIMIT_FIELDS,
                "a map with the `name` of a limit",
            ) else {
                continue;
            };
            let (position, name) =
                (fields.field_position("name"), self.read_text_field(&fields, "name"));
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

    /// Returns the fields of a YAML map. Adds a note for each field that has no effect in this map; `check_fields` has
    /// already reported unknown fields. Returns `None` and adds an error if the node is not a map.
    fn read_map_fields<'n>(
        &mut self,
        node: &'n Node,
        known_fields: &[&str],
        expected: &str,
    ) -> Option<YamlMapFields<'n>> {
        let NodeKind::Map(entries) = &node.kind else {
            self.push_error(node.span.into(), format_args!("expected {expected}"));
            return None;
        };
        let mut fields = Vec::new();
        for (key, value) in entries {
            let Some(name) = key.text() else { continue };
            if !known_fields.contains(&name) {
                let message = format_args!("`{name}` has no effect in this map; move or remove it");
                self.push_note(key.span.into(), message);
            }
            fields.push((name, value));
        }
        Some(YamlMapFields { position: node.span.into(), entries: fields })
    }

    /// Returns the items of a list field that are maps. Skips other items, because `check_fields` has already reported
    /// them.
    fn read_list_of_maps<'n>(
        &mut self,
        fields: &YamlMapFields<'n>,
        field: &str,
    ) -> impl Iterator<Item = &'n Node> + use<'n> {
        let items = match fields.field_value(field) {
            Some(Node { kind: NodeKind::List(items), .. }) => &items[..],
            Some(node) if !is_null(node) => {
                self.push_error(node.span.into(), format_args!("`{field}` must be a list"));
                &[]
            }
            _ => &[],
        };
        items.iter().filter(|item| matches!(item.kind, NodeKind::Map(_)))
    }

    fn read_text_field(&mut self, fields: &YamlMapFields<'_>, field: &str) -> String {
        match fields.field_value(field).map(|node| (Scalar::from_node(node), node)) {
            None | Some((Some((Scalar::Null, _)), _)) => String::new(),
            Some((Some((_, text)), _)) => text.to_owned(),
            Some((None, node)) => {
                self.push_error(node.span.into(), format_args!("`{field}` must be text"));
                String::new()
            }
        }
    }

    fn read_bool_field(&mut self, fields: &YamlMapFields<'_>, field: &str) -> bool {
        match fields.field_value(field).map(|node| (Scalar::from_node(node), node)) {
            None | Some((Some((Scalar::Null, _)), _)) => false,
            Some((Some((Scalar::Bool(flag), _)), _)) => flag,
            Some((_, node)) => {
                self.push_error(
                    node.span.into(),
                    format_args!("`{field}` must be `true` or `false`"),
                );
                false
            }
        }
    }

    fn read_number_field(&mut self, fields: &YamlMapFields<'_>, field: &str) -> Option<u32> {
        let node = fields.field_value(field).filter(|node| !is_null(node))?;
        let number = match Scalar::from_node(node) {
            Some((Scalar::Int(number), _)) => u32::try_from(number).ok(),
            // `check_fields` has already reported it.
            Some((Scalar::OtherNumber, _)) => return None,
            _ => None,
        };
        if number.is_none() {
            let message =
                format_args!("`{field}` must be an integer from 0 to {}, without quotes", u32::MAX);
            self.push_error(node.span.into(), message);
        }
        number
    }
}

/// Returns `true` if a node is null, as Envoy's reference rate limit server reads it.
fn is_null(node: &Node) -> bool {
    matches!(Scalar::from_node(node), Some((Scalar::Null, _)))
}
