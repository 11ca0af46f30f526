//! `slidegate validate`: prints the mistakes of policies, or else what they do and their warnings.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Write};
use std::path::PathBuf;

use slidegate::Policy;
use slidegate::policy::Rule;
use thiserror::Error;

use super::print;
use crate::{policy_file, ratelimit_config, words};

#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// Policies, YAML files
    #[arg(required = true, value_name = "FILE")]
    pub policies: Vec<PathBuf>,
}

/// All that is wrong with all files.
#[derive(Debug, Error)]
#[error("{0}")]
struct Wrong(String);

pub fn run(args: ValidateArgs) -> Result<(), Box<dyn Error>> {
    let (mut told, mut warnings, mut wrong) = (String::new(), String::new(), Vec::new());
    for path in &args.policies {
        match policy_file::read(path) {
            Ok(policy) => {
                describe(&mut told, &path.display(), &policy)?;
                for warning in policy.warnings() {
                    writeln!(warnings, "{}:{warning}", path.display())?;
                }
            }
            Err(error) if ratelimit_config::is_reference(path) => {
                let path = path.display();
                wrong.push(format!(
                    "{error}\n{path}: this looks like a file of the reference server: `slidegate convert {path}` makes a policy of it"
                ));
            }
            Err(error) => wrong.push(error.to_string()),
        }
    }
    print(&told)?;
    // Like errors, but the exit status stays 0.
    eprint!("{warnings}");
    if wrong.is_empty() { Ok(()) } else { Err(Wrong(wrong.join("\n")).into()) }
}

fn describe(told: &mut String, path: &impl fmt::Display, policy: &Policy) -> fmt::Result {
    let mut domains: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in policy.rules() {
        domains.entry(rule.domain()).or_default().push(rule);
    }
    writeln!(told, "{path}: fine, {}", counted(policy.rules().len(), "rule"))?;
    for (domain, rules) in domains {
        writeln!(told, "\ndomain `{domain}`")?;
        for rule in rules {
            writeln!(told, "  {}", rule.name())?;
            for line in words::rule(rule).into_iter().chain(words::max_memory(rule)) {
                writeln!(told, "    {line}")?;
            }
        }
    }
    Ok(())
}

fn counted(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}
