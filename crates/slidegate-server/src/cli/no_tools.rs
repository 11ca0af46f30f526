//! Takes the place of `tools` in a program without the feature `tools`: its commands are known, and cannot run.

use std::error;

use clap::{ArgMatches, Error};

/// A command that this program does not have.
#[derive(Debug, clap::Subcommand)]
pub enum ToolCommand {
    /// Not in this program: install a package of slidegate, or compile it with `--features tools`
    #[command(aliases = ["convert", "man", "completions"], hide = true)]
    Replay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

impl ToolCommand {
    /// Does nothing, because this program has none of the commands.
    pub fn resolve_policy_source(&mut self, _: &ArgMatches) -> Result<(), Error> {
        Ok(())
    }
}

/// Returns an error, because this program has none of the commands.
pub fn run(ToolCommand::Replay { .. }: ToolCommand) -> Result<(), Box<dyn error::Error>> {
    Err("this program was compiled without the commands replay, convert, man and completions; install a package of \
         slidegate, or compile it with `--features tools`"
        .into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Args, Command};

    #[test]
    fn missing_commands_name_the_feature() {
        for arguments in [
            "replay --policy p.yaml a.log",
            "convert --from nginx n.conf",
            "man",
            "completions bash",
        ] {
            let arguments = ["slidegate"].into_iter().chain(arguments.split(' '));
            let Command::Tool(command) = Args::try_parse_from(arguments).unwrap().command else {
                panic!("another command");
            };
            assert!(run(command).unwrap_err().to_string().contains("--features tools"));
        }
    }
}
