//! `slidegate validate`: prints the errors of policies, or a description of their rules and the warnings.

use std::collections::BTreeMap;
use std::error::Error;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

use clap::ArgMatches;
use clap::parser::ValueSource;
use slidegate::Policy;
use slidegate::policy::{DomainNames, Rule};
use thiserror::Error;

use crate::policy::description::{describe_max_memory, describe_rule};
use crate::policy::{file, ratelimit_config};

/// The flags of `slidegate validate`.
#[derive(Debug, clap::Args)]
pub struct ValidateArgs {
    /// YAML file with a policy, can be repeated; its variable applies only if the command line names no file
    #[arg(long = "policy", value_name = "FILE", env = "SLIDEGATE_POLICY")]
    policy: Vec<PathBuf>,

    /// YAML files with policies, checked after the files of --policy
    #[arg(required_unless_present = "policy", value_name = "FILE")]
    files: Vec<PathBuf>,
}

impl ValidateArgs {
    /// Ignores the policy in the environment if the command line names files.
    pub fn resolve_policy_precedence(&mut self, matches: &ArgMatches) {
        let is_from_environment = matches.value_source("policy") == Some(ValueSource::EnvVariable);
        if is_from_environment && !self.files.is_empty() {
            self.policy.clear();
        }
    }
}

/// The error that is returned if policy files are invalid. Contains the errors in all files, one per line.
#[derive(Debug, Error)]
#[error("{0}")]
struct InvalidPoliciesError(String);

/// Runs `slidegate validate`. `print` writes to standard output.
pub fn run(
    args: ValidateArgs,
    print: impl FnOnce(&str) -> io::Result<()>,
) -> Result<(), Box<dyn Error>> {
    let (mut description, mut warnings, mut errors) = (String::new(), String::new(), Vec::new());
    for path in args.policy.iter().chain(&args.files) {
        match file::read_policy(path) {
            Ok(policy) => {
                write_policy_description(&mut description, &path.display(), &policy)?;
                for warning in policy.warnings() {
                    writeln!(warnings, "{}:{warning}", path.display())?;
                }
            }
            Err(error) if is_envoy_ratelimit_file(path) => {
                let path = path.display();
                errors.push(format!(
                    "{error}\n{path}: this looks like a file of the reference server; `slidegate convert {path}` prints the equivalent policy"
                ));
            }
            Err(error) => errors.push(error.to_string()),
        }
    }
    print(&description)?;
    // Standard error has the warnings and the errors, but warnings do not change the exit status.
    super::print_to_stderr(&warnings);
    if errors.is_empty() { Ok(()) } else { Err(InvalidPoliciesError(errors.join("\n")).into()) }
}

/// Returns whether a file looks like a configuration file of Envoy's reference rate limit server.
fn is_envoy_ratelimit_file(path: &Path) -> bool {
    file::read_text(path).is_ok_and(|text| ratelimit_config::looks_like_ratelimit_config(&text))
}

fn write_policy_description(
    out: &mut String,
    path: &impl fmt::Display,
    policy: &Policy,
) -> fmt::Result {
    let mut domains: BTreeMap<&str, Vec<&Rule>> = BTreeMap::new();
    for rule in policy.rules() {
        domains.entry(rule.domain()).or_default().push(rule);
    }
    writeln!(out, "{path}: valid, {}", format_count_with_noun(policy.rules().len(), "rule"))?;
    for (domain, rules) in domains {
        writeln!(out, "\ndomain `{domain}`")?;
        if let Some(names) = policy.domain_names(domain).and_then(DomainNames::declared_attributes)
        {
            writeln!(out, "  attributes: {}", names.collect::<Vec<_>>().join(", "))?;
        }
        for rule in rules {
            writeln!(out, "  {}", rule.name())?;
            for line in describe_rule(rule).into_iter().chain(describe_max_memory(rule)) {
                writeln!(out, "    {line}")?;
            }
        }
    }
    Ok(())
}

/// Formats a count with a noun in the singular or plural, such as `1 rule` or `2 rules`.
fn format_count_with_noun(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
