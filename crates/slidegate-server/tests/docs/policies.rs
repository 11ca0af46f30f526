//! Checks of the policies in documents.

use serde_json::Value;
use slidegate::Policy;
use slidegate::policy::file::schema;

use crate::markdown::FencedBlock;

/// Returns the policy of a block. A block without `rules:` contains fields of a single rule, which is completed with
/// the required fields that are missing.
pub fn complete_policy(block: &FencedBlock) -> String {
    let has = |field: &str| block.text.lines().any(|line| line.starts_with(field));
    if has("rules:") {
        return block.text.clone();
    }
    let required = [("name:", "name: example"), ("limits:", "limits: [100/min]")];
    let added = required.iter().filter(|(field, _)| !has(field)).map(|(_, text)| *text);
    let lines = added.chain(block.text.lines()).map(|line| format!("    {line}\n"));
    format!("rules:\n  -\n{}", lines.collect::<String>())
}

/// Checks a policy that must be valid, also by the schema, and without warnings.
pub fn check_policy(block: &FencedBlock) -> Result<(), String> {
    check_valid(&complete_policy(block)).and(check_no_warnings(&complete_policy(block)))
}

/// Checks a policy that must be valid and have a warning.
pub fn check_warned(block: &FencedBlock) -> Result<(), String> {
    check_valid(&complete_policy(block))?;
    match check_no_warnings(&complete_policy(block)) {
        Ok(()) => Err("this policy has no warnings".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Checks that a policy has no warnings.
pub fn check_no_warnings(yaml: &str) -> Result<(), String> {
    let policy = Policy::from_yaml(yaml).map_err(|errors| errors.to_string())?;
    let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    if warnings.is_empty() { Ok(()) } else { Err(warnings.join("\n")) }
}

/// Checks that policies in Rust string literals do not count by attributes whose values the client chooses.
///
/// Other warnings are allowed: for example, the `route` attribute of these policies comes from the program.
pub fn check_rust_source(source: &str) -> Result<(), String> {
    for literal in source.split('"').filter(|literal| literal.contains("rules:\n")) {
        // Removes the comment markers of policies in doc comments.
        let yaml: String =
            literal.lines().map(|line| line.trim_start_matches("/// ").to_owned() + "\n").collect();
        let policy = Policy::from_yaml(&yaml).map_err(|errors| format!("{errors}\nin\n{yaml}"))?;
        let mut warnings = policy.warnings().iter();
        if let Some(warning) =
            warnings.find(|warning| warning.message().contains("the client chooses"))
        {
            return Err(warning.to_string());
        }
    }
    Ok(())
}

/// Checks a policy that must be invalid.
pub fn check_invalid(block: &FencedBlock) -> Result<(), String> {
    match Policy::from_yaml(&complete_policy(block)) {
        Ok(_) => Err("this policy is valid".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Checks a policy with the parser and with the JSON Schema.
pub fn check_valid(yaml: &str) -> Result<(), String> {
    Policy::from_yaml(yaml).map_err(|errors| format!("{errors}\nin\n{yaml}"))?;
    let policy: Value = serde_saphyr::from_str(yaml).map_err(|error| error.to_string())?;
    let schema = serde_json::to_value(schema()).unwrap();
    let validator = jsonschema::validator_for(&schema).unwrap();
    let errors: Vec<String> = validator
        .iter_errors(&policy)
        .map(|error| format!("schema: {} at {}", error, error.instance_path()))
        .collect();
    if errors.is_empty() { Ok(()) } else { Err(errors.join("\n")) }
}

/// Checks that a block is valid JSON.
pub fn check_json(block: &FencedBlock) -> Result<(), String> {
    serde_json::from_str(&block.text).map(|_: Value| ()).map_err(|error| error.to_string())
}
