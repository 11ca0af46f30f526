//! One module for each subcommand.

pub mod convert;
pub mod explain;
pub mod replay;
mod schema;
mod serve;
pub mod validate;

use std::error::Error;
use std::io::{self, Write};

use crate::args::Command;

/// Does what the command line asks. The error's text is all that the user is told.
pub fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Serve(args) => serve::run(*args),
        Command::Replay(args) => replay::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Schema => schema::run(),
    }
}

/// Writes to standard output. Whoever reads only the first lines, as `head` does, has read enough.
fn print(text: &str) -> io::Result<()> {
    match io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}
