//! Prints converted rules as the text of a policy file.

use std::fmt;

use serde::Serialize;
use serde_saphyr::FlowMap;
use slidegate::Algorithm;

use super::converted_rule::ConvertedRule;
use super::finding::{Finding, escape_control_chars};

/// A policy file: the converted rules, and the comments above them.
pub struct PolicyPrinter<'p> {
    /// The paths of the source files, which a comment in the policy file lists.
    pub sources: Vec<String>,
    pub notes: &'p [Finding],
    pub algorithm: Algorithm,
    pub rules: Vec<ConvertedRule>,
}

#[derive(Serialize)]
struct PrintedPolicy<'p> {
    version: u8,
    defaults: FlowMap<PrintedDefaults>,
    rules: &'p [ConvertedRule],
}

#[derive(Serialize)]
struct PrintedDefaults {
    algorithm: &'static str,
    required: u8,
    ipv6_prefix: u8,
}

impl fmt::Display for PolicyPrinter<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "# Converted by `slidegate convert` from")?;
        for source in &self.sources {
            writeln!(f, "# - {}", escape_control_chars(source))?;
        }
        if !self.notes.is_empty() {
            writeln!(f, "# Notes:")?;
        }
        for note in self.notes {
            writeln!(f, "# - {}", escape_control_chars(&note.to_string()))?;
        }
        // As in the reference server, a `hits_addend` of 0 is denied only above max, and every IPv6 address has its own
        // counter.
        let defaults =
            PrintedDefaults { algorithm: self.algorithm.name(), required: 0, ipv6_prefix: 128 };
        let policy = PrintedPolicy { version: 1, defaults: FlowMap(defaults), rules: &self.rules };
        let options =
            serde_saphyr::ser_options! { compact_list_indent: false, prefer_block_scalars: false };
        serde_saphyr::to_fmt_writer_with_options(f, &policy, options).map_err(|_| fmt::Error)
    }
}
