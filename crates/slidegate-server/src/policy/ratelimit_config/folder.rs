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
    let (mut files, ignored): (Vec<_>, Vec<_>) =
        list_entries(folder)?.into_iter().partition(|path| is_config_file_path(path));
    if files.is_empty() {
        let mut message = "the folder contains no *.yaml or *.yml file".to_owned();
        if ignored.iter().any(|path| path.is_dir()) {
            message += ", and its subfolders are not read; name one of them";
        }
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    files.sort();
    Ok(files)
}

/// Returns the names of the entries of a folder that are not read, sorted: files that are no configuration files, and
/// subfolders, with a `/`. Omits names that begin with `..`, which Kubernetes creates in the folder of a ConfigMap.
pub fn ignored_entries(folder: &Path) -> io::Result<Vec<String>> {
    let ignored = list_entries(folder)?.into_iter().filter(|path| !is_config_file_path(path));
    let name = |path: PathBuf| {
        let name = path.file_name()?.to_string_lossy().into_owned();
        let suffix = if path.is_dir() { "/" } else { "" };
        (!name.starts_with("..")).then(|| name + suffix)
    };
    let mut names: Vec<String> = ignored.filter_map(name).collect();
    names.sort();
    Ok(names)
}

/// Returns `true` if a path in the folder is read. Includes dangling links, for which reading reports an error.
fn is_config_file_path(path: &Path) -> bool {
    path.file_name().is_some_and(is_config_file) && !path.is_dir()
}

fn list_entries(folder: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect()
}
