//! One module for each subcommand.

pub mod replay;
mod serve;

use std::error::Error;

use crate::args::Command;

/// Does what the command line asks. The error's text is all that the user is told.
pub fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Serve(args) => serve::run(args),
        Command::Replay(args) => replay::run(args),
    }
}
