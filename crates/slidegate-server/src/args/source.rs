//! Flags that say where the policy is.

use std::path::PathBuf;

use clap::ArgMatches;
use clap::error::{Error, ErrorKind};
use clap::parser::ValueSource;
use slidegate::{Algorithm, Align};

use crate::policy_file::PolicySource;

#[derive(Debug, clap::Args)]
#[group(skip)]
pub struct SourceArgs {
    /// The rules to enforce, a YAML file
    #[arg(
        long,
        value_name = "FILE",
        env = "SLIDEGATE_POLICY",
        required_unless_present = "ratelimit_config"
    )]
    pub policy: Option<PathBuf>,

    /// Instead of --policy, and of its variable: a file of Envoy's reference rate limit server, or a directory of such files
    /// (*.yaml, *.yml), unchanged
    #[arg(long, value_name = "DIR|FILE", env = "SLIDEGATE_RATELIMIT_CONFIG")]
    pub ratelimit_config: Option<PathBuf>,

    /// How the limits of --ratelimit-config count: sliding_window, sliding_log, sliding_buckets, token_bucket,
    /// or fixed_window, whose windows then begin on the clock, as the reference server's do
    #[arg(
        long,
        value_name = "ALGORITHM",
        env = "SLIDEGATE_RATELIMIT_ALGORITHM",
        default_value = "sliding_window",
        value_parser = algorithm
    )]
    pub ratelimit_algorithm: Algorithm,
}

impl SourceArgs {
    /// Keeps one source. What the command line says goes before the environment; there, the policy is often set by
    /// an image, and whoever sets the other means it.
    pub(super) fn choose(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let is_typed = |id: &str| matches.value_source(id) == Some(ValueSource::CommandLine);
        match (is_typed("policy"), is_typed("ratelimit_config")) {
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

    /// Where the policy is.
    pub fn source(self) -> PolicySource {
        match (self.ratelimit_config, self.policy) {
            (Some(path), _) => {
                PolicySource::Ratelimit { path, algorithm: self.ratelimit_algorithm }
            }
            (None, policy) => PolicySource::Policy(policy.unwrap_or_default()),
        }
    }
}

/// An algorithm for the limits of the reference server, whose windows begin on the clock.
pub fn algorithm(name: &str) -> Result<Algorithm, String> {
    match Algorithm::by_name(name) {
        Some(Algorithm::FixedWindow { .. }) => Ok(Algorithm::FixedWindow { align: Align::Clock }),
        Some(other) => Ok(other),
        None => {
            let names = Algorithm::ALL.map(|algorithm| algorithm.name());
            Err(format!("write one of {}", names.join(", ")))
        }
    }
}
