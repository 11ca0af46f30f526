//! A folder of reference files: which of its files are read.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::{fs, io};

/// Whether a file of this name is read: `*.yaml` and `*.yml`, unless they are hidden.
pub fn is_read(name: &OsStr) -> bool {
    let name = Path::new(name);
    let hidden = name.as_os_str().as_encoded_bytes().starts_with(b".");
    !hidden && name.extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

/// The files of a folder that are read, in the order of their names.
pub fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = names(folder)?;
    if files.is_empty() {
        let message = "there is no *.yaml or *.yml in this folder";
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    files.sort();
    Ok(files)
}

fn names(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        // Also a link that leads nowhere: it is told that it cannot be read.
        if is_read(&entry.file_name()) && !entry.path().is_dir() {
            files.push(entry.path());
        }
    }
    Ok(files)
}
