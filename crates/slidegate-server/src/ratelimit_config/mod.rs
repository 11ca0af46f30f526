//! Reads the policy files of Envoy's reference rate limit server, and makes a policy of them.
//!
//! Four steps: `node` makes a tree of a file's text, with places; `entries` reads what it says, and refuses what
//! the reference server refuses; `rules` makes rules of it; `print` writes them as the text of a policy. What the
//! server then enforces is read from that text, so it is what `slidegate convert` shows.

mod entries;
mod finding;
pub mod folder;
mod names;
mod node;
mod print;
mod rules;
mod scalar;
#[cfg(test)]
mod tests;
mod unit;
mod values;
mod words;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use slidegate::{Algorithm, Policy};

use finding::{Findings, SourcePosition};
use print::Printed;

use crate::policy_file::{FileText, LimitCheck};

pub use finding::Finding;

/// The policy that reference files mean.
#[derive(Debug)]
pub struct Converted {
    pub policy: Policy,
    /// The policy as it would be written.
    pub text: String,
    /// What is accepted, and has no effect or another than one might think.
    pub notes: Vec<Finding>,
}

/// How the limits of reference files are counted.
#[derive(Clone, Copy)]
pub struct Counting {
    pub algorithm: Algorithm,
    /// By which limits the store can count.
    pub supports: LimitCheck,
}

/// Makes a policy of reference files, whose limits are counted so; or tells all that is wrong with them.
pub fn convert(files: &[FileText], counting: Counting) -> Result<Converted, Vec<Finding>> {
    let Counting { algorithm, supports } = counting;
    let mut findings = Findings::default();
    let mut known: HashMap<String, String> = HashMap::new();
    let mut domains = Vec::new();
    for FileText { path, text } in files {
        let Some(domain) = entries::read(path, text, &mut findings) else { continue };
        let rules = rules::of_domain(path, &domain, counting, &mut findings);
        if let Some(other) = known.get(&domain.name) {
            let message = format_args!(
                "the domain `{}` stands in {other} already: write all of it in one file",
                domain.name
            );
            findings.wrong(path, domain.place, message);
        } else if !domain.name.is_empty() {
            known.insert(domain.name.clone(), path.display().to_string());
        }
        domains.push((domain.name, rules));
    }
    let order = |finding: &Finding| {
        (files.iter().position(|file| file.path == finding.path), finding.place)
    };
    findings.mistakes.sort_by_key(order);
    if !findings.mistakes.is_empty() {
        return Err(findings.mistakes);
    }
    findings.notes.sort_by_key(order);
    let sources = files.iter().map(|file| file.path.display().to_string()).collect();
    let notes = findings.notes;
    let text = Printed { sources, notes: &notes, algorithm, domains: &domains }.to_string();
    match Policy::from_yaml_for(&text, supports) {
        Ok(policy) => Ok(Converted { policy, text, notes }),
        Err(errors) => Err(unsaid(files, &errors.0)),
    }
}

/// Whether a file looks like one of the reference server: a map with its words.
pub fn is_reference(path: &Path) -> bool {
    let Ok(text) = fs::read_to_string(path) else { return false };
    entries::is_domain(path, &text)
}

/// What is right in reference files, but more than a policy may have.
fn unsaid(files: &[FileText], errors: &[slidegate::PolicyError]) -> Vec<Finding> {
    let mut findings = Findings::default();
    let path = files.first().map_or_else(PathBuf::new, |file| file.path.clone());
    for error in errors {
        let message = format_args!("cannot be expressed: of the policy it makes, {error}");
        findings.wrong(&path, SourcePosition { line: 1, column: 1 }, message);
    }
    findings.mistakes
}
