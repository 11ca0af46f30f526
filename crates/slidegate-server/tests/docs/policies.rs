//! Checks the policies in the code blocks of documents.

use serde_json::Value;
use slidegate::Policy;
use slidegate::policy::file::schema;

use crate::docs::markdown::FencedBlock;

/// Returns the complete policy of a code block. If a block has no `rules:`, it contains fields of a single rule, and
/// the missing required fields of that rule are added.
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

/// Checks that the policy of a block is valid for the parser and for the JSON Schema, and has no warnings.
pub fn check_policy(block: &FencedBlock) -> Result<(), String> {
    check_valid(&complete_policy(block)).and(check_no_warnings(&complete_policy(block)))
}

/// Checks that the policy of a block is valid and has at least one warning.
pub fn check_warned(block: &FencedBlock) -> Result<(), String> {
    check_valid(&complete_policy(block))?;
    match check_no_warnings(&complete_policy(block)) {
        Ok(()) => Err("this policy has no warnings".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Checks that the parser returns no warnings for a policy.
pub fn check_no_warnings(yaml: &str) -> Result<(), String> {
    let policy = Policy::from_yaml(yaml).map_err(|errors| errors.to_string())?;
    let warnings: Vec<String> = policy.warnings().iter().map(ToString::to_string).collect();
    if warnings.is_empty() { Ok(()) } else { Err(warnings.join("\n")) }
}

/// Checks the policies in Rust string literals. The rules must not count by an attribute whose value the client
/// chooses.
///
/// Other warnings are allowed, because some do not apply: for example, the program itself sets the attribute `route`.
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

/// Checks that the parser rejects the policy of a block.
pub fn check_invalid(block: &FencedBlock) -> Result<(), String> {
    match Policy::from_yaml(&complete_policy(block)) {
        Ok(_) => Err("this policy is valid".to_owned()),
        Err(_) => Ok(()),
    }
}

/// Checks that a policy is valid for the parser and for the JSON Schema.
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

/// Checks that the text of a block is valid JSON.
pub fn check_json(block: &FencedBlock) -> Result<(), String> {
    serde_json::from_str(&block.text).map(|_: Value| ()).map_err(|error| error.to_string())
}
