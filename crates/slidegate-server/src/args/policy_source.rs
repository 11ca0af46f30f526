//! The flags that select the source of the policy.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use slidegate::{Algorithm, Align};

use crate::policy_file::PolicySource;

/// The flags that select the source of the policy.
#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct PolicySourceArgs {
    /// YAML file with the policy to enforce
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_POLICY",
        required_unless_present = "ratelimit_config"
    )]
    pub policy: Option<PathBuf>,

    /// File of Envoy's reference rate limit server, or directory of such files (*.yaml, *.yml), unchanged; replaces
    /// --policy and its variable
    #[arg(long, value_name = "DIR|FILE", env = "SLIDEGATE_RATELIMIT_CONFIG")]
    pub ratelimit_config: Option<PathBuf>,

    /// Algorithm of the limits in --ratelimit-config: sliding_window, sliding_log, sliding_buckets, token_bucket, or
    /// fixed_window, whose windows are aligned to the clock, as in the reference server
    #[arg(
        long,
        value_name = "ALGORITHM",
        env = "SLIDEGATE_RATELIMIT_ALGORITHM",
        default_value = "sliding_window",
        value_parser = parse_algorithm
    )]
    pub ratelimit_algorithm: Algorithm,
}

impl PolicySourceArgs {
    /// Keeps only one of the two sources, the policy file or the files of Envoy's reference rate limit server, and
    /// clears the other. The command line takes precedence over the environment. In the environment,
    /// `SLIDEGATE_RATELIMIT_CONFIG` takes precedence, since a container image often sets `SLIDEGATE_POLICY`.
    ///
    /// # Errors
    /// If the command line sets both sources.
    pub fn resolve_policy_source_precedence(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let is_on_command_line =
            |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_on_command_line("policy"), is_on_command_line("ratelimit_config")) {
            (true, true) => {
                let message = "the argument '--policy <FILE>' cannot be used with '--ratelimit-config <DIR|FILE>'";
                return Err(Error::raw(ErrorKind::ArgumentConflict, format_args!("{message}\n")));
            }
            (true, false) => self.ratelimit_config = None,
            (false, _) if self.ratelimit_config.is_some() => self.policy = None,
            (false, _) => {}
        }
        Ok(())
    }

    /// Returns the source of the policy.
    pub fn into_source(self) -> PolicySource {
        match (self.ratelimit_config, self.policy) {
            (Some(path), _) => {
                PolicySource::RatelimitConfig { path, algorithm: self.ratelimit_algorithm }
            }
            (None, policy) => PolicySource::Policy(policy.unwrap_or_default()),
        }
    }
}

/// Parses the name of the algorithm that enforces the limits in files of Envoy's reference rate limit server. The name
/// `fixed_window` selects windows that are aligned to the clock.
pub fn parse_algorithm(name: &str) -> Result<Algorithm, String> {
    match Algorithm::by_name(name) {
        Some(Algorithm::FixedWindow { .. }) => Ok(Algorithm::FixedWindow { align: Align::Clock }),
        Some(other) => Ok(other),
        None => {
            let names = Algorithm::ALL.map(|algorithm| algorithm.name());
            Err(format!("write one of {}", names.join(", ")))
        }
    }
}
