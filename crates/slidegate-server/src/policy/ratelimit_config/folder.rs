//! Lists the configuration files of Envoy's reference rate limit server in a folder.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Returns `true` if a file with this name is a configuration file: `*.yaml` or `*.yml`, and not hidden.
fn is_config_file(name: &OsStr) -> bool {
    let name = Path::new(name);
    let is_hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
    !is_hidden
        && name.extension().is_some_and(|extension| extension == "yaml" || extension == "yml")
}

/// Returns the paths of the configuration files in a folder, sorted by name. Returns an error if the folder contains
/// none.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = list_config_files(folder)?;
    if files.is_empty() {
        let message = "the folder contains no *.yaml or *.yml file";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    files.sort();
    Ok(files)
}

fn list_config_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Includes dangling links, for which reading reports an error.
        if is_config_file(&entry.file_name()) && !entry.path().is_dir() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
