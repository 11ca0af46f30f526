//! The subcommands, one module for each.

pub mod convert;
pub mod explain;
pub mod replay;
mod serve;
pub mod validate;

use std::error::Error;
use std::io::{self, Write};

use slidegate::policy::file;

use crate::args::Command;

/// Runs a subcommand. If it fails, the program prints only the text of the returned error.
pub fn run(command: Command) -> Result<(), Box<dyn Error>> {
    match command {
        Command::Serve(args) => serve::run(*args),
        Command::Replay(args) => replay::run(args),
        Command::Validate(args) => validate::run(args),
        Command::Explain(args) => explain::run(args),
        Command::Convert(args) => convert::run(args),
        Command::Schema => print_schema(),
    }
}

/// Runs `slidegate schema`: prints the JSON Schema of policy files.
fn print_schema() -> Result<(), Box<dyn Error>> {
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
