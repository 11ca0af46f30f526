//! The field names of reference server files, and where each has an effect.

use super::finding::Findings;
use super::scalar::Scalar;
use super::yaml_node::{YamlNode, YamlValue};
use std::path::Path;

/// The fields at the top level of a file.
pub const FILE_FIELDS: &[&str] = &["domain", "descriptors"];

/// The fields of a descriptor.
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

/// The fields of a rate limit.
pub const RATE_LIMIT_FIELDS: &[&str] =
    &["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The fields of an entry of `replaces`.
pub const REPLACED_LIMIT_FIELDS: &[&str] = &["name"];

/// Returns whether the reference server knows the field, at any position.
fn is_known(name: &str) -> bool {
    [FILE_FIELDS, DESCRIPTOR_FIELDS, RATE_LIMIT_FIELDS].iter().any(|names| names.contains(&name))
}

/// Reports every field and every value that the reference server rejects at any position. Ignores the contents of
/// `metadata`.
pub fn check_fields(path: &Path, node: &YamlNode, findings: &mut Findings) {
    match &node.value {
        YamlValue::Map(entries) => {
            for (position, name, value) in entries {
                if !is_known(name) {
                    let known =
                        format_list(&[FILE_FIELDS, DESCRIPTOR_FIELDS, RATE_LIMIT_FIELDS].concat());
                    findings.push_error(
                        path,
                        *position,
                        format_args!("unknown field `{name}`; known fields are {known}"),
                    );
                } else if **name != *"metadata" {
                    check_fields(path, value, findings);
                }
            }
        }
        YamlValue::List(items) => {
            for item in items {
                match item.value {
                    YamlValue::Map(_) => check_fields(path, item, findings),
                    _ => {
                        findings.push_error(path, item.position, "items of this list must be maps")
                    }
                }
            }
        }
        YamlValue::Scalar(Scalar::OtherNumber, text) => {
            let message = format_args!(
                "`{text}` is not an integer, which the reference server rejects; write it in quotes"
            );
            findings.push_error(path, node.position, message);
        }
        YamlValue::Scalar(..) => {}
    }
}

/// Formats names without duplicates as `` `a`, `b` and `c` ``.
fn format_list(names: &[&str]) -> String {
    let mut quoted: Vec<String> = Vec::new();
    for name in names.iter().map(|name| format!("`{name}`")) {
        if !quoted.contains(&name) {
            quoted.push(name);
        }
    }
    let last = quoted.pop().unwrap_or_default();
    format!("{} and {last}", quoted.join(", "))
}
