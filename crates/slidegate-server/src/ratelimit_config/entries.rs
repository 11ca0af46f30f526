//! What a reference file says: its tree, read as descriptors with limits.

use std::collections::HashMap;
use std::fmt;
use std::path::Path;

use super::finding::{Findings, SourcePosition};
use super::node::{Kind, Node, START};
use super::scalar::Scalar;
use super::unit::Unit;
use super::words::{self, OF_DESCRIPTOR, OF_FILE, OF_RATE_LIMIT, OF_REPLACED};

/// A domain, as one file has it.
#[derive(Debug)]
pub struct DomainEntry {
    pub place: SourcePosition,
    pub name: String,
    pub descriptors: Vec<DescriptorEntry>,
}

/// A key, perhaps with a value, and what holds for it.
#[derive(Debug)]
pub struct DescriptorEntry {
    pub place: SourcePosition,
    pub key: String,
    /// Empty: whatever the value is.
    pub value: String,
    pub value_place: SourcePosition,
    pub limit: Option<LimitEntry>,
    pub shadow: bool,
    /// Where `quota_mode: true` stands.
    pub quota: Option<SourcePosition>,
    /// Whether all values of a wildcard count as one.
    pub shared: bool,
    pub descriptors: Vec<DescriptorEntry>,
}

/// The limit of a descriptor.
#[derive(Debug)]
pub struct LimitEntry {
    /// Empty: none.
    pub name: String,
    /// None: unlimited.
    pub quota: Option<QuotaEntry>,
    pub replaces: Vec<(SourcePosition, String)>,
}

/// So many in each unit of time.
#[derive(Clone, Copy, Debug)]
pub struct QuotaEntry {
    pub place: SourcePosition,
    pub max: u32,
    pub unit: &'static Unit,
}

/// The domain that a file's text says; none only if something is wrong.
pub fn read(path: &Path, text: &str, findings: &mut Findings) -> Option<DomainEntry> {
    let node = Node::read(path, text, findings)?;
    words::check(path, &node, findings);
    Reader { path, findings }.domain(&node)
}

/// Whether a text is of a domain and its descriptors, right or wrong.
pub fn is_domain(path: &Path, text: &str) -> bool {
    let node = Node::read(path, text, &mut Findings::default());
    let Some(Node { kind: Kind::Map(entries), .. }) = node else { return false };
    OF_FILE.iter().all(|field| entries.iter().any(|(_, name, _)| **name == **field))
}

/// Reads entries, and tells what is wrong with them.
struct Reader<'f> {
    path: &'f Path,
    findings: &'f mut Findings,
}

/// The fields of a map.
struct Fields<'n> {
    place: SourcePosition,
    entries: Vec<(&'n str, SourcePosition, &'n Node)>,
}

impl<'n> Fields<'n> {
    fn get(&self, field: &str) -> Option<&'n Node> {
        self.entries.iter().find(|(name, ..)| *name == field).map(|(_, _, node)| *node)
    }

    fn place_of(&self, field: &str) -> SourcePosition {
        self.get(field).map_or(self.place, |node| node.place)
    }
}

impl Reader<'_> {
    fn wrong(&mut self, place: SourcePosition, message: impl fmt::Display) {
        self.findings.wrong(self.path, place, message);
    }

    fn note(&mut self, place: SourcePosition, message: impl fmt::Display) {
        self.findings.note(self.path, place, message);
    }

    fn domain(&mut self, node: &Node) -> Option<DomainEntry> {
        let fields = if node.is_null() {
            Fields { place: START, entries: Vec::new() }
        } else {
            self.fields(node, OF_FILE, "a file with a domain and its descriptors")?
        };
        let name = self.text(&fields, "domain");
        let place = fields.place_of("domain");
        if name.is_empty() {
            self.wrong(place, "a file needs a `domain` with a name");
        }
        if name.len() > 128 {
            self.wrong(place, "cannot be expressed: a domain's name has at most 128 bytes here");
        }
        let descriptors = self.descriptors(&fields);
        Some(DomainEntry { place, name, descriptors })
    }

    fn descriptors(&mut self, fields: &Fields<'_>) -> Vec<DescriptorEntry> {
        let mut known: HashMap<String, SourcePosition> = HashMap::new();
        let mut descriptors = Vec::new();
        for node in self.list(fields, "descriptors") {
            let Some(descriptor) = self.descriptor(node) else { continue };
            let DescriptorEntry { place, key, value, .. } = &descriptor;
            // As the reference server joins them: `a` with `b_c` is `a_b` with `c`.
            let joined = match &**value {
                "" => key.clone(),
                value => format!("{key}_{value}"),
            };
            match known.get(&joined) {
                Some(SourcePosition { line, .. }) if !key.is_empty() => {
                    let message = format_args!(
                        "`{joined}` stands in this list already, in line {line} (the reference server joins a key and its value by `_`)"
                    );
                    self.wrong(*place, message);
                }
                _ => drop(known.insert(joined, *place)),
            }
            descriptors.push(descriptor);
        }
        descriptors
    }

    fn descriptor(&mut self, node: &Node) -> Option<DescriptorEntry> {
        let fields = self.fields(node, OF_DESCRIPTOR, "a descriptor: a map with `key`")?;
        let (key, value) = (self.text(&fields, "key"), self.text(&fields, "value"));
        if key.is_empty() {
            self.wrong(fields.place_of("key"), "a descriptor needs a `key`");
        }
        let shadow = self.flag(&fields, "shadow_mode");
        let quota = self.flag(&fields, "quota_mode").then(|| fields.place_of("quota_mode"));
        let shared = self.flag(&fields, "share_threshold");
        if shared && !value.contains('*') && !key.contains('*') {
            let message = "`share_threshold` needs a `value` with `*`";
            self.wrong(fields.place_of("share_threshold"), message);
        }
        self.metrics(&fields);
        let limit = self.limit(&fields);
        for (field, given) in [("shadow_mode", shadow), ("quota_mode", quota.is_some())] {
            if given && limit.is_none() && fields.get("rate_limit").is_none_or(Node::is_null) {
                let message = format_args!("`{field}` has no effect without a `rate_limit` beside");
                self.note(fields.place_of(field), message);
            }
        }
        Some(DescriptorEntry {
            place: fields.place,
            key,
            value,
            value_place: fields.place_of("value"),
            limit,
            shadow,
            quota,
            shared,
            descriptors: self.descriptors(&fields),
        })
    }

    fn metrics(&mut self, fields: &Fields<'_>) {
        for field in ["detailed_metric", "value_to_metric"] {
            if self.flag(fields, field) {
                let message = format_args!(
                    "`{field}` is accepted and has no effect: metrics are labelled by rules, never by values"
                );
                self.note(fields.place_of(field), message);
            }
        }
        let Some(metadata) = fields.get("metadata").filter(|node| !node.is_null()) else { return };
        match metadata.kind {
            Kind::Map(_) => {
                let message = "`metadata` is accepted and has no effect";
                self.note(metadata.place, message);
            }
            _ => self.wrong(metadata.place, "`metadata` is a map"),
        }
    }

    fn limit(&mut self, fields: &Fields<'_>) -> Option<LimitEntry> {
        let node = fields.get("rate_limit").filter(|node| !node.is_null())?;
        let fields =
            self.fields(node, OF_RATE_LIMIT, "a limit: a map with `unit` and `requests_per_unit`")?;
        let name = self.text(&fields, "name");
        let replaces = self.replaces(&fields, &name);
        let unlimited = self.flag(&fields, "unlimited");
        let unit = self.text(&fields, "unit");
        let max = self.number(&fields, "requests_per_unit");
        let place = fields.place_of("unit");
        let unit = match Unit::by_name(&unit) {
            Some(_) if unlimited => {
                self.wrong(place, "what is `unlimited` has no `unit`: take one of them away");
                return None;
            }
            None if !unlimited => {
                let message =
                    format_args!("`{unit}` is no unit of time: there is {}", Unit::names());
                self.wrong(place, message);
                return None;
            }
            unit => unit,
        };
        let place = fields.place_of("requests_per_unit");
        let quota = unit.map(|unit| QuotaEntry { place, max: max.unwrap_or_default(), unit });
        if quota.is_some() && fields.get("requests_per_unit").is_none_or(Node::is_null) {
            let message = "without `requests_per_unit` a limit is 0: nothing passes";
            self.note(fields.place, message);
        }
        Some(LimitEntry { name, quota, replaces })
    }

    fn replaces(&mut self, fields: &Fields<'_>, own: &str) -> Vec<(SourcePosition, String)> {
        let mut replaces = Vec::new();
        for node in self.list(fields, "replaces") {
            let Some(fields) = self.fields(node, OF_REPLACED, "a map with the `name` of a limit")
            else {
                continue;
            };
            let (place, name) = (fields.place_of("name"), self.text(&fields, "name"));
            if name.is_empty() {
                self.wrong(place, "an entry of `replaces` needs the `name` of a limit");
            } else if name == own {
                self.wrong(place, "a limit cannot replace those of its own name");
            }
            replaces.push((place, name));
        }
        replaces
    }

    /// The fields of a map, of which it is told if they are none of those that have an effect there. What is
    /// none at all is a mistake, and told already.
    fn fields<'n>(&mut self, node: &'n Node, known: &[&str], expected: &str) -> Option<Fields<'n>> {
        let Kind::Map(entries) = &node.kind else {
            self.wrong(node.place, format_args!("here should be {expected}"));
            return None;
        };
        let mut fields = Vec::new();
        for (place, name, value) in entries {
            if !known.contains(&&**name) {
                self.note(*place, format_args!("`{name}` has no effect here"));
            }
            fields.push((&**name, *place, value));
        }
        Some(Fields { place: node.place, entries: fields })
    }

    /// The maps of a list. Of what else stands there it is told already.
    fn list<'n>(
        &mut self,
        fields: &Fields<'n>,
        field: &str,
    ) -> impl Iterator<Item = &'n Node> + use<'n> {
        let items = match fields.get(field) {
            Some(Node { kind: Kind::List(items), .. }) => &items[..],
            Some(node) if !node.is_null() => {
                self.wrong(node.place, format_args!("`{field}` is a list"));
                &[]
            }
            _ => &[],
        };
        items.iter().filter(|item| matches!(item.kind, Kind::Map(_)))
    }

    fn text(&mut self, fields: &Fields<'_>, field: &str) -> String {
        match fields.get(field).map(|node| (&node.kind, node.place)) {
            None | Some((Kind::Scalar(Scalar::Null, _), _)) => String::new(),
            Some((Kind::Scalar(_, text), _)) => text.to_string(),
            Some((_, place)) => {
                self.wrong(place, format_args!("`{field}` is a text"));
                String::new()
            }
        }
    }

    fn flag(&mut self, fields: &Fields<'_>, field: &str) -> bool {
        match fields.get(field).map(|node| (&node.kind, node.place)) {
            None | Some((Kind::Scalar(Scalar::Null, _), _)) => false,
            Some((Kind::Scalar(Scalar::Bool(flag), _), _)) => *flag,
            Some((_, place)) => {
                self.wrong(place, format_args!("`{field}` is `true` or `false`"));
                false
            }
        }
    }

    fn number(&mut self, fields: &Fields<'_>, field: &str) -> Option<u32> {
        let node = fields.get(field).filter(|node| !node.is_null())?;
        let number = match &node.kind {
            Kind::Scalar(Scalar::Int(number), _) => u32::try_from(*number).ok(),
            // Told already.
            Kind::Scalar(Scalar::Odd, _) => return None,
            _ => None,
        };
        if number.is_none() {
            let message =
                format_args!("`{field}` is a whole number without quotes, from 0 to {}", u32::MAX);
            self.wrong(node.place, message);
        }
        number
    }
}
