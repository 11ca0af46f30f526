//! The field names in configuration files of Envoy's reference rate limit server, grouped by the map in which each has
//! an effect.

use std::path::Path;

use slidegate::internal::{Node, NodeKind};

use super::finding::Findings;
use super::scalar::Scalar;

/// The fields at the top level of a configuration file.
pub const FILE_FIELDS: &[&str] = &["domain", "descriptors"];

/// The fields of a descriptor in a configuration file.
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

/// The fields of the map `rate_limit` in a configuration file.
pub const RATE_LIMIT_FIELDS: &[&str] =
    &["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The fields of each item of the list `replaces` in a configuration file.
pub const REPLACED_LIMIT_FIELDS: &[&str] = &["name"];

/// Returns `true` if Envoy's reference rate limit server has a field with this name at any position in the file. The
/// reference server accepts a known field at a wrong position, where it has no effect.
fn is_reference_server_field(name: &str) -> bool {
    [FILE_FIELDS, DESCRIPTOR_FIELDS, RATE_LIMIT_FIELDS].iter().any(|names| names.contains(&name))
}

/// Adds an error for each invalid field or value in the tree: unknown fields, list items that are not maps, and numbers
/// that are not integers. Envoy's reference rate limit server rejects them in every map of the file. Skips the contents
/// of `metadata`.
pub fn check_fields(path: &Path, node: &Node, findings: &mut Findings) {
    match &node.kind {
        NodeKind::Map(entries) => {
            for (key, value) in entries {
                let Some(name) = key.text() else { continue };
                if !is_reference_server_field(name) {
                    let known = format_name_list(
                        &[FILE_FIELDS, DESCRIPTOR_FIELDS, RATE_LIMIT_FIELDS].concat(),
                    );
                    findings.push_error(
                        path,
                        key.span.into(),
                        format_args!("unknown field `{name}`; known fields are {known}"),
                    );
                } else if name != "metadata" {
                    check_fields(path, value, findings);
                }
            }
        }
        NodeKind::List(items) => {
            for item in items {
                match item.kind {
                    NodeKind::Map(_) => check_fields(path, item, findings),
                    _ => findings.push_error(
                        path,
                        item.span.into(),
                        "items of this list must be maps",
                    ),
                }
            }
        }
        NodeKind::Null | NodeKind::Text(_) => {
            if let Some((Scalar::OtherNumber, text)) = Scalar::from_node(node) {
                let message = format_args!(
                    "`{text}` is not an integer, and the reference server rejects other numbers; put it in quotes"
                );
                findings.push_error(path, node.span.into(), message);
            }
        }
    }
}

/// Formats names as `` `a`, `b` and `c` ``. Lists each name once.
fn format_name_list(names: &[&str]) -> String {
    let mut quoted: Vec<String> = Vec::new();
    for name in names.iter().map(|name| format!("`{name}`")) {
        if !quoted.contains(&name) {
            quoted.push(name);
        }
    }
    let last = quoted.pop().unwrap_or_default();
    format!("{} and {last}", quoted.join(", "))
}
