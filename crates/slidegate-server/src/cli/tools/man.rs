//! `slidegate man`: writes the manual pages of the program.

use std::error::Error;
use std::path::{Path, PathBuf};

use clap::Command;
use clap_mangen::Man;

use crate::cli::lua::write_file_creating_folder;

/// The flags of `slidegate man`.
#[derive(Debug, clap::Args)]
pub struct ManArgs {
    /// Directory for the pages, created if it does not exist; files of earlier calls are replaced
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// Runs `slidegate man`, and returns the list of the written files.
pub fn run(args: &ManArgs, mut program: Command) -> Result<String, Box<dyn Error>> {
    // `build` gives the subcommands their full names, such as `slidegate-serve`.
    program.build();
    let mut written = write_page(&program, &args.out)?;
    for command in program.get_subcommands() {
        written.push_str(&write_page(command, &args.out)?);
    }
    Ok(written)
}

/// Writes the page of a command, and returns its path in a line.
fn write_page(command: &Command, folder: &Path) -> Result<String, Box<dyn Error>> {
    let page = Man::new(command.clone());
    let path = folder.join(page.get_filename());
    let mut text = Vec::new();
    page.render(&mut text)?;
    write_file_creating_folder(&path, text)?;
    Ok(format!("{}\n", path.display()))
}
