//! Converts configuration files of Envoy's reference rate limit server to a policy, in four steps.
//!
//! 1. The YAML deserializer of policy files reads a file as the maps of `config_map`, with positions; `scalar` has the
//!    scalar types of Go's YAML.
//! 2. `parse` turns the maps into descriptors, and rejects everything that the reference server rejects.
//! 3. `rules` turns the descriptors into rules, which `rule_names` names.
//! 4. `print` writes the rules as a policy file. The server enforces the policy that it parses from this text, so
//!    `slidegate convert` prints exactly the enforced policy.

mod config_map;
mod converted_rule;
mod finding;
pub mod folder;
mod parse;
mod print;
mod rule_names;
mod rules;
mod scalar;
#[cfg(test)]
mod tests;
mod time_unit;
mod wildcard;

use std::collections::HashMap;
use std::path::PathBuf;

use serde::Serialize;
use serde_saphyr::FlowMap;
use slidegate::Policy;

use finding::FILE_START;

use crate::policy::FileText;

#[cfg(feature = "tools")]
pub use converted_rule::{Conditions, ConvertedCondition, ConvertedOverride};
#[cfg(feature = "tools")]
pub use finding::SourcePosition;
pub use finding::{Finding, Findings};
pub use parse::looks_like_ratelimit_config;
pub use print::format_policy_file;
pub use rules::ConversionOptions;

/// The result of converting configuration files of Envoy's reference rate limit server to a policy.
#[derive(Debug)]
pub struct Conversion {
    pub policy: Policy,
    /// The converted policy as the text of a policy file.
    #[cfg_attr(
        not(any(feature = "tools", test)),
        expect(dead_code, reason = "only `convert` uses it")
    )]
    pub text: String,
    /// Notes about accepted settings that have no effect, or an unexpected effect.
    pub notes: Vec<Finding>,
}

/// The converted policy, as it is printed.
#[derive(Serialize)]
struct PrintedPolicy {
    version: u8,
    defaults: FlowMap<PrintedDefaults>,
    rules: Vec<converted_rule::ConvertedRule>,
}

#[derive(Serialize)]
struct PrintedDefaults {
    algorithm: &'static str,
    required: u8,
    ipv6_prefix: u8,
}

/// Converts configuration files of Envoy's reference rate limit server to a policy.
///
/// # Errors
/// Returns all errors in the files, sorted by file and position.
pub fn convert(files: &[FileText], options: ConversionOptions) -> Result<Conversion, Vec<Finding>> {
    let ConversionOptions { algorithm, supports } = options;
    let mut findings = Findings::default();
    let mut domain_paths: HashMap<String, String> = HashMap::new();
    let mut all_rules = Vec::new();
    for FileText { path, text } in files {
        let Some(domain) = parse::parse_file(path, text, &mut findings) else { continue };
        let rules = rules::convert_domain(path, &domain, options, &mut findings);
        if let Some(other) = domain_paths.get(&domain.name) {
            let message = format_args!(
                "domain `{}` is already defined in {other}; merge both into one file",
                domain.name
            );
            findings.push_error(path, domain.position, message);
        } else if !domain.name.is_empty() {
            domain_paths.insert(domain.name, path.display().to_string());
        }
        all_rules.extend(rules);
    }
    let sort_key = |finding: &Finding| {
        (files.iter().position(|file| file.path == finding.path), finding.position)
    };
    findings.errors.sort_by_key(sort_key);
    if !findings.errors.is_empty() {
        return Err(findings.errors);
    }
    findings.notes.sort_by_key(sort_key);
    let notes = findings.notes;
    // As in the reference server, a `hits_addend` of 0 is denied only above max, and every IPv6 address has its own
    // counter.
    let defaults = PrintedDefaults { algorithm: algorithm.name(), required: 0, ipv6_prefix: 128 };
    let policy = PrintedPolicy { version: 1, defaults: FlowMap(defaults), rules: all_rules };
    let text = format_policy_file(files, &notes, &policy);
    match Policy::from_yaml_for(&text, supports) {
        Ok(policy) => Ok(Conversion { policy, text, notes }),
        Err(errors) => Err(findings_from_policy_errors(files, &errors.0)),
    }
}

/// Converts errors in the converted policy to findings. Valid configuration files can result in an invalid policy, for
/// example in a policy with too many rules.
fn findings_from_policy_errors(
    files: &[FileText],
    errors: &[slidegate::policy::PolicyError],
) -> Vec<Finding> {
    let mut findings = Findings::default();
    let path = files.first().map_or_else(PathBuf::new, |file| file.path.clone());
    for error in errors {
        // Only the message is used: the position and the excerpt are in the converted policy, which the author of the
        // files does not see.
        let message =
            format_args!("cannot be converted: the resulting policy is invalid: {}", error.message);
        findings.push_error(&path, FILE_START, message);
    }
    findings.errors
}
