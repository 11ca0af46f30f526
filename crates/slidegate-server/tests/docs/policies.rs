//! Policies in documents.

use serde_json::Value;
use slidegate::Policy;
use slidegate::policy::file::schema;

use crate::markdown::Block;

/// The policy that a block means. Without `rules:` it shows fields of one rule; what a rule needs beside
/// them is added.
pub fn whole(block: &Block) -> String {
    let has = |field: &str| block.text.lines().any(|line| line.starts_with(field));
    if has("rules:") {
        return block.text.clone();
    }
    let needed = [("name:", "name: example"), ("limits:", "limits: [100/min]")];
    let added = needed.iter().filter(|(field, _)| !has(field)).map(|(_, whole)| *whole);
    let lines = added.chain(block.text.lines()).map(|line| format!("    {line}\n"));
    format!("rules:\n  -\n{}", lines.collect::<String>())
}

/// A policy that is right, also by the schema, and has no warning.
pub fn check(block: &Block) -> Result<(), String> {
    is_right(&whole(block)).and(has_no_warning(&whole(block)))
}

/// A policy that is right, and has a warning.
pub fn check_warned(block: &Block) -> Result<(), String> {
    is_right(&whole(block))?;
    match has_no_warning(&whole(block)) {
        Ok(()) => Err("there is no warning of this policy".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Whether a policy has no warning.
pub fn has_no_warning(yaml: &str) -> Result<(), String> {
    let policy = Policy::from_yaml(yaml).map_err(|errors| errors.to_string())?;
    let told: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    if told.is_empty() { Ok(()) } else { Err(told.join("\n")) }
}

/// Whether the policies in Rust's string literals count by nothing that clients can invent. Their `route` comes from the
/// program.
pub fn check_in_rust(source: &str) -> Result<(), String> {
    for literal in source.split('"').filter(|literal| literal.contains("rules:\n")) {
        // In comments each line begins with `///`.
        let yaml: String =
            literal.lines().map(|line| line.trim_start_matches("/// ").to_owned() + "\n").collect();
        let policy = Policy::from_yaml(&yaml).map_err(|errors| format!("{errors}\nin\n{yaml}"))?;
        let mut warnings = policy.warnings().iter();
        if let Some(warning) = warnings.find(|one| one.message().contains("the client chooses")) {
            return Err(warning.to_string());
        }
    }
    Ok(())
}

/// A policy that is wrong.
pub fn check_wrong(block: &Block) -> Result<(), String> {
    match Policy::from_yaml(&whole(block)) {
        Ok(_) => Err("nothing is wrong with this policy".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Holds a policy against the parser, and against the JSON Schema.
pub fn is_right(yaml: &str) -> Result<(), String> {
    Policy::from_yaml(yaml).map_err(|errors| format!("{errors}\nin\n{yaml}"))?;
    let policy: Value = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    let schema = serde_json::to_value(schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> = validator
        .iter_errors(&policy)
        .map(|error| format!("by the schema, {} at {}", error, error.instance_path()))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join("\n")) }
}

/// JSON that no command prints.
pub fn json(block: &Block) -> Result<(), String> {
    serde_json::from_str(&block.text).map(|_: Value| ()).map_err(|error| error.to_string())
}
