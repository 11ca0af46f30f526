//! The command line and its subcommands, one module for each.

mod convert;
mod explain;
mod replay;
mod serve;
mod validate;

use std::error;
use std::io::{self, Write};

use clap::{ArgMatches, CommandFactory, Error, FromArgMatches, Parser};
use slidegate::policy::file;

use self::convert::ConvertArgs;
use self::explain::ExplainArgs;
use self::replay::ReplayArgs;
use self::validate::ValidateArgs;
use crate::args::ServeArgs;

/// A rate limiter for APIs, with sliding windows.
///
/// Write a policy file with the limits, start `slidegate serve`, and check each request before you serve it:
/// `curl localhost:8080/v1/check -d '{"attributes":{"client":"alice"}}'`.
#[derive(Debug, Parser)]
#[command(name = "slidegate", version, disable_help_subcommand = true)]
pub struct Args {
    #[command(subcommand)]
    pub command: Command,
}

/// The subcommands.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Run the server, which decides over HTTP and gRPC whether requests are allowed
    Serve(Box<ServeArgs>),
    /// Check policies, and describe their rules
    ///
    /// Prints every error with its location and the remedy, and exits with 1 if there is any. Otherwise describes
    /// the limits that the policy enforces.
    Validate(ValidateArgs),
    /// Explain the decision about one request, rule by rule
    ///
    /// Evaluates the policy with unused limits, or with the counters of a server (--server). Charges nothing.
    ///
    /// Example: slidegate explain --policy policy.yaml method=POST path=/login ip=192.0.2.7
    Explain(ExplainArgs),
    /// Convert files of Envoy's reference rate limit server to a policy
    ///
    /// Prints the policy that `serve --ratelimit-config` enforces. If there is any error, or a setting that a policy
    /// cannot express, prints all of them with their locations and exits with 1.
    Convert(ConvertArgs),
    /// Print the JSON Schema of policies, for completion and validation in editors
    ///
    /// Write it to a file, and name the file in the first line of a policy:
    /// # yaml-language-server: $schema=./slidegate.schema.json
    Schema,
    /// Test a policy on the requests of access logs
    Replay(ReplayArgs),
}

/// Runs a subcommand. If it fails, the program prints only the text of the returned error.
pub fn run(command: Command) -> Result<(), Box<dyn error::Error>> {
    match command {
        Command::Serve(args) => serve::run(*args),
        Command::Replay(args) => replay::run(args),
        Command::Validate(args) => validate::run(args, print_to_stdout),
        Command::Explain(args) => Ok(print_to_stdout(&explain::run(args)?)?),
        Command::Convert(args) => Ok(print_to_stdout(&convert::run(args)?)?),
        Command::Schema => print_schema(),
    }
}

/// Runs `slidegate schema`: prints the JSON Schema of policy files.
fn print_schema() -> Result<(), Box<dyn error::Error>> {
    print_to_stdout(&format!("{}\n", serde_json::to_string_pretty(&file::schema())?))?;
    Ok(())
}

/// Writes text to standard output. Ignores a closed pipe, since programs such as `head` read only the first lines.
fn print_to_stdout(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

impl Args {
    /// Parses the command line and the environment. If they are invalid, prints the error and exits the process.
    pub fn parse_or_exit() -> Self {
        Self::from_clap_matches(&Self::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

    fn from_clap_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Self::from_arg_matches(matches)?;
        if let (Command::Serve(serve_args), Some(serve_matches)) =
            (&mut args.command, matches.subcommand_matches("serve"))
        {
            serve_args.policy_source.resolve_policy_source_precedence(serve_matches)?;
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::PolicySourceArgs;

    /// Parses flags of `slidegate serve`, and returns only the flags that select the policy.
    fn parse_policy_source(flags: &[&str]) -> Result<PolicySourceArgs, Error> {
        let arguments = ["slidegate", "serve"].iter().chain(flags);
        match Args::from_clap_matches(&Args::command().try_get_matches_from(arguments)?)?.command {
            Command::Serve(args) => Ok(args.policy_source),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn policy_source_flags_exclude_each_other() {
        assert!(parse_policy_source(&["--ratelimit-config", "b"]).unwrap().policy.is_none());
        assert!(parse_policy_source(&["--policy", "a"]).unwrap().ratelimit_config.is_none());
        let both = parse_policy_source(&["--policy", "a", "--ratelimit-config", "b"]).unwrap_err();
        assert!(both.to_string().contains("the argument '--policy <FILE>' cannot be used with"));
    }

    #[test]
    fn args_debug_output_hides_secrets() {
        let arguments = ["slidegate", "serve", "--policy", "p", "--store", "redis://:secret@h"];
        let arguments = arguments.iter().chain(&["--cluster-key", "a secret of nodes"]);
        let debug = format!("{:?}", Args::try_parse_from(arguments).unwrap());
        assert!(debug.contains("redis_prefix") && debug.contains("cluster_key"), "{debug}");
        assert!(!debug.contains("secret"), "{debug}");
    }
}
