//! The commands of the feature `tools`, which a server does not need.

mod convert;
mod man;
mod replay;

use std::error;
use std::string::FromUtf8Error;

use clap::{ArgMatches, CommandFactory, Error};
use clap_complete::Shell;

use self::convert::ConvertArgs;
use self::man::ManArgs;
use self::replay::ReplayArgs;
use super::{Args, print_to_stdout};

/// The commands of the feature `tools`.
#[derive(Debug, clap::Subcommand)]
pub enum ToolCommand {
    /// Test a policy on the requests of access logs
    ///
    /// With --ratelimit-config, a request has one descriptor for each rule whose keys are attributes of the log:
    /// method, path, ip or remote_address, host, user, header.referer, header.user-agent.
    Replay(ReplayArgs),
    /// Convert files of Envoy's reference rate limit server, or of nginx (--from nginx), to a policy
    ///
    /// For the reference server, prints the policy that `serve --ratelimit-config` enforces. If there is any error, or
    /// a setting that a policy cannot express, prints all of them with their locations and exits with 1. For nginx, the
    /// comments above the policy list the directives that were not converted.
    Convert(ConvertArgs),
    /// Write the manual pages of the program and of its commands
    ///
    /// Prints the path of each file.
    ///
    /// Example: slidegate man --out /usr/local/share/man/man1
    Man(ManArgs),
    /// Print a completion script for a shell
    ///
    /// Example: slidegate completions bash > /usr/share/bash-completion/completions/slidegate
    Completions {
        /// Shell for which the script is written
        shell: Shell,
    },
}

impl ToolCommand {
    /// Selects the policy of `slidegate replay`.
    pub fn resolve_policy_source(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        match self {
            Self::Replay(args) => args.resolve_policy_source(matches),
            Self::Convert(_) | Self::Man(_) | Self::Completions { .. } => Ok(()),
        }
    }
}

/// Runs a command.
pub fn run(command: ToolCommand) -> Result<(), Box<dyn error::Error>> {
    match command {
        ToolCommand::Replay(args) => replay::run(args)?,
        ToolCommand::Convert(args) => print_to_stdout(&convert::run(args)?)?,
        ToolCommand::Man(args) => print_to_stdout(&man::run(&args, Args::command())?)?,
        ToolCommand::Completions { shell } => print_to_stdout(&completion_script(shell)?)?,
    }
    Ok(())
}

/// Returns the completion script of the command line for a shell.
fn completion_script(shell: Shell) -> Result<String, FromUtf8Error> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "slidegate", &mut script);
    String::from_utf8(script)
}
