//! The flags that select the source of the policy.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use slidegate::{Algorithm, Align};

use super::ineffective::{
    describe_ineffective_flag, explicit_value_source, ineffective_flags_error,
};
use crate::policy::file::PolicySource;

/// The flags that select the source of the policy.
#[derive(Clone, Debug, clap::Args)]
#[group(skip)]
pub struct PolicySourceArgs {
    /// YAML file with the policy
    #[arg(long, value_name = "FILE", env = "SLIDEGATE_POLICY", help_heading = "Policy")]
    pub policy: Option<PathBuf>,

    /// File of Envoy's reference rate limit server, or directory of such files; replaces --policy
    ///
    /// The files (*.yaml, *.yml of a directory) are read unchanged. In the environment, this variable takes precedence
    /// over SLIDEGATE_POLICY.
    #[arg(
        long,
        value_name = "DIR|FILE",
        env = "SLIDEGATE_RATELIMIT_CONFIG",
        help_heading = "Policy"
    )]
    pub ratelimit_config: Option<PathBuf>,

    /// Algorithm of the limits in --ratelimit-config
    ///
    /// sliding_window, sliding_log, sliding_buckets, sliding_counter, token_bucket, or fixed_window, whose windows are
    /// aligned to the clock, as in the reference server.
    #[arg(
        long,
        value_name = "ALGORITHM",
        env = "SLIDEGATE_RATELIMIT_ALGORITHM",
        default_value = "sliding_window",
        value_parser = parse_algorithm,
        help_heading = "Policy"
    )]
    pub ratelimit_algorithm: Algorithm,
}

impl PolicySourceArgs {
    /// Keeps only one of the two sources, the policy file or the files of Envoy's reference rate limit server, and
    /// clears the other. The command line takes precedence over the environment. In the environment,
    /// `SLIDEGATE_RATELIMIT_CONFIG` takes precedence, since a container image often sets `SLIDEGATE_POLICY`.
    ///
    /// # Errors
    /// If the command line sets both sources, or if `--ratelimit-algorithm` has no effect.
    pub fn resolve_policy_source_precedence(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let is_on_command_line =
            |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_on_command_line("policy"), is_on_command_line("ratelimit_config")) {
            (true, true) => {
                let message = "--policy and --ratelimit-config are two sources of the policy; remove one of them";
                return Err(Error::raw(ErrorKind::ArgumentConflict, format_args!("{message}\n")));
            }
            (true, false) => self.ratelimit_config = None,
            (false, _) if self.ratelimit_config.is_some() => self.policy = None,
            (false, _) => {}
        }
        // If `--policy` replaces the `SLIDEGATE_RATELIMIT_CONFIG` of the environment, the algorithm in the environment
        // has no effect, but is not an error.
        let is_replaced = explicit_value_source(matches, "ratelimit_config").is_some()
            && !is_on_command_line("ratelimit_algorithm");
        if self.ratelimit_config.is_none() && !is_replaced {
            let (condition, remedy) = ("without --ratelimit-config", "set --ratelimit-config");
            let id = "ratelimit_algorithm";
            if let Some(line) = describe_ineffective_flag(matches, id, condition, remedy) {
                return Err(ineffective_flags_error(&[line]));
            }
        }
        Ok(())
    }

    /// Returns `true` if the command line or the environment sets a source.
    pub fn has_source(&self) -> bool {
        self.policy.is_some() || self.ratelimit_config.is_some()
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
