//! The words of reference files: where each may stand.

use super::finding::Findings;
use super::node::{Kind, Node};
use super::scalar::Scalar;
use std::path::Path;

/// The fields of a file.
pub const OF_FILE: &[&str] = &["domain", "descriptors"];

/// The fields of a descriptor.
pub const OF_DESCRIPTOR: &[&str] = &[
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
pub const OF_RATE_LIMIT: &[&str] = &["unit", "requests_per_unit", "unlimited", "name", "replaces"];

/// The fields of an entry of `replaces`.
pub const OF_REPLACED: &[&str] = &["name"];

/// Whether it is a word of the language, wherever it may stand.
fn is_known(word: &str) -> bool {
    [OF_FILE, OF_DESCRIPTOR, OF_RATE_LIMIT].iter().any(|words| words.contains(&word))
}

/// Tells of every word that the reference server does not know, and of every value that it cannot take
/// anywhere. What is in `metadata` is not looked at.
pub fn check(path: &Path, node: &Node, findings: &mut Findings) {
    match &node.kind {
        Kind::Map(entries) => {
            for (place, word, value) in entries {
                if !is_known(word) {
                    let known = listed(&[OF_FILE, OF_DESCRIPTOR, OF_RATE_LIMIT].concat());
                    findings.wrong(
                        path,
                        *place,
                        format_args!("there is no `{word}`: there is {known}"),
                    );
                } else if **word != *"metadata" {
                    check(path, value, findings);
                }
            }
        }
        Kind::List(items) => {
            for item in items {
                match item.kind {
                    Kind::Map(_) => check(path, item, findings),
                    _ => findings.wrong(path, item.place, "only maps may stand in a list here"),
                }
            }
        }
        Kind::Scalar(Scalar::Odd, text) => {
            let message = format_args!(
                "`{text}` is a number that is no integer here, which the reference server refuses: write it in quotes"
            );
            findings.wrong(path, node.place, message);
        }
        Kind::Scalar(..) => {}
    }
}

/// `a`, `b` and `c`
fn listed(words: &[&str]) -> String {
    let mut quoted: Vec<String> = Vec::new();
    for word in words.iter().map(|word| format!("`{word}`")) {
        if !quoted.contains(&word) {
            quoted.push(word);
        }
    }
    let last = quoted.pop().unwrap_or_default();
    format!("{} and {last}", quoted.join(", "))
}
