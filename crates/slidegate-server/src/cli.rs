//! The command line and its subcommands, one module for each.

mod args;
mod client;
mod explain;
mod health;
mod lua;
mod serve;
mod settings;
#[cfg(feature = "tools")]
mod tools;
#[cfg(not(feature = "tools"))]
#[path = "cli/no_tools.rs"]
mod tools;
mod top;
mod validate;

use std::collections::BTreeSet;
use std::error;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, Error, FromArgMatches, Parser};
use slidegate::Policy;

use self::explain::ExplainArgs;
use self::health::HealthArgs;
use self::lua::LuaArgs;
use self::tools::ToolCommand;
use self::top::TopArgs;
use self::validate::ValidateArgs;
use crate::cli::args::{ServeArgs, reject_ineffective_flags};

/// The JSON Schema of policy files, as `slidegate::policy::file::schema` generates it.
const POLICY_SCHEMA: &str = include_str!("../generated/policy.schema.json");

/// A rate limiter for APIs, with sliding windows.
///
/// Write a policy file with the limits, start `slidegate serve`, and check each request before you serve it:
/// `curl localhost:8080/v1/check -d '{"attributes":{"client":"alice"}}'`.
#[derive(Debug, Parser)]
// A width of 0 disables wrapping, so that `-h` prints each flag on one line.
#[command(name = "slidegate", version, disable_help_subcommand = true, term_width = 0)]
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
    /// Write the Lua scripts of the Redis store, for programs in other languages
    ///
    /// Programs call check.lua with a JSON argument, without slidegate, and share their counters in Redis with it.
    /// Prints the path of each file.
    ///
    /// Example: slidegate lua --out lua
    Lua(LuaArgs),
    /// Print the JSON Schema of policies, for completion and validation in editors
    ///
    /// Write it to a file, and name the file in the first line of a policy:
    /// # yaml-language-server: $schema=./slidegate.schema.json
    Schema,
    /// List the keys that an observing rule would have denied, summed over all servers
    ///
    /// Counts since the roll-out of the rule began, up to 10,000 keys per server.
    ///
    /// Example: slidegate top per-client --server http://10.0.0.5:6070,http://10.0.0.6:6070
    Top(TopArgs),
    /// Check that a server runs, for the health check of a container
    ///
    /// Calls /healthz. Exits with 1 if the server does not respond within 5 seconds.
    Health(HealthArgs),
    #[command(flatten)]
    Tool(ToolCommand),
}

/// Runs a subcommand. If it fails, the program prints only the text of the returned error.
pub fn run(command: Command) -> Result<ExitCode, Box<dyn error::Error>> {
    match command {
        Command::Serve(args) => return serve::run(*args),
        Command::Validate(args) => validate::run(args, print_to_stdout)?,
        Command::Explain(args) => print_to_stdout(&explain::run(args)?)?,
        Command::Lua(args) => print_to_stdout(&lua::run(args)?)?,
        Command::Schema => print_to_stdout(POLICY_SCHEMA)?,
        Command::Top(args) => print_to_stdout(&top::run(&args)?)?,
        Command::Health(args) => print_to_stdout(health::run(&args)?)?,
        Command::Tool(command) => tools::run(command)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the remedy for a domain that no rule of the policy has.
fn unknown_domain_remedy(policy: &Policy) -> String {
    let domains: BTreeSet<&str> = policy.domains().collect();
    let domains: Vec<String> = domains.iter().map(|domain| format!("`{domain}`")).collect();
    if domains.is_empty() {
        "add rules to the policy".to_owned()
    } else {
        format!("set --domain to one of {}", domains.join(", "))
    }
}

/// Writes text to standard output. Ignores a closed pipe, since programs such as `head` read only the first lines.
fn print_to_stdout(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

/// Writes text to standard error. Ignores a failed write, because there is no other place for the text; `eprintln!`
/// would panic.
pub fn print_to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

impl Args {
    /// Parses the command line and the environment. If they are invalid, prints the error and exits the process.
    pub fn parse_or_exit() -> Self {
        Self::from_clap_matches(&Self::command().get_matches()).unwrap_or_else(|error| error.exit())
    }

    fn from_clap_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut args = Self::from_arg_matches(matches)?;
        let Some((_, matches)) = matches.subcommand() else { return Ok(args) };
        match &mut args.command {
            Command::Serve(args) => {
                args.policy_source.resolve_policy_source_precedence(matches)?;
                reject_ineffective_flags(matches)?;
                args.connections.is_max_connections_given =
                    matches.value_source("max_connections") != Some(ValueSource::DefaultValue);
                let from_command_line = Some(ValueSource::CommandLine);
                args.is_token_key_on_command_line =
                    matches.value_source("token_key") == from_command_line;
                args.is_cluster_key_on_command_line =
                    matches.value_source("cluster_key") == from_command_line;
            }
            Command::Explain(args) => {
                args.policy_source.resolve_policy_source_precedence(matches)?;
                args.require_policy_or_server()?;
            }
            Command::Tool(command) => command.resolve_policy_source(matches)?,
            Command::Validate(args) => args.resolve_policy_precedence(matches),
            Command::Health(_) | Command::Lua(_) | Command::Schema | Command::Top(_) => {}
        }
        Ok(args)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::PolicySourceArgs;

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
        assert!(both.to_string().contains("--policy and --ratelimit-config are two sources"));
    }

    #[test]
    fn ratelimit_algorithm_requires_ratelimit_config() {
        let algorithm = ["--ratelimit-algorithm", "fixed_window"];
        let config = [&algorithm[..], &["--ratelimit-config", "a"]].concat();
        assert!(parse_policy_source(&config).is_ok());
        let error = parse_policy_source(&[&algorithm[..], &["--policy", "a"]].concat());
        assert_eq!(
            error.unwrap_err().to_string(),
            "error: --ratelimit-algorithm has no effect without --ratelimit-config; remove it, or set --ratelimit-config\n"
        );
    }

    #[test]
    fn args_debug_output_hides_secrets() {
        let arguments = ["slidegate", "serve", "--policy", "p", "--store", "redis://:hidden@h"];
        let arguments = arguments.iter().chain(&["--cluster-key", "a hidden key of nodes"]);
        let debug = format!("{:?}", Args::try_parse_from(arguments).unwrap());
        assert!(debug.contains("redis_prefix") && debug.contains("cluster_key"), "{debug}");
        assert!(!debug.contains("hidden"), "{debug}");
    }
}
