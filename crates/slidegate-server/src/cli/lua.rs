//! `slidegate lua`: writes the Lua scripts to a folder, for programs in other languages.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::{fs, io};

use slidegate_redis::script_files;
use thiserror::Error;

/// The flags of `slidegate lua`.
#[derive(Debug, clap::Args)]
pub struct LuaArgs {
    /// Directory for the scripts, created if it does not exist; files of earlier calls are replaced
    #[arg(long, value_name = "DIR")]
    pub out: PathBuf,
}

/// The error that is returned if a file or its directory cannot be written.
#[derive(Debug, Error)]
#[error("--out: cannot write `{path}`: {cause}; {remedy}")]
pub struct WriteFileError {
    path: String,
    cause: io::Error,
    remedy: &'static str,
}

/// Runs `slidegate lua`, and returns the list of the written files.
pub fn run(args: LuaArgs) -> Result<String, Box<dyn Error>> {
    let mut written = String::new();
    for file in script_files() {
        let path = args.out.join(&file.path);
        write_file_creating_folder(&path, &file.text)?;
        written.push_str(&format!("{}\n", path.display()));
    }
    Ok(written)
}

/// Writes a file. Creates its folder if necessary.
pub fn write_file_creating_folder(
    path: &Path,
    text: impl AsRef<[u8]>,
) -> Result<(), WriteFileError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    fs::create_dir_all(folder).map_err(|cause| WriteFileError::new(folder, cause))?;
    fs::write(path, text).map_err(|cause| WriteFileError::new(path, cause))
}

impl WriteFileError {
    fn new(path: &Path, cause: io::Error) -> Self {
        use io::ErrorKind::{AlreadyExists, NotADirectory, PermissionDenied, StorageFull};
        let remedy = match cause.kind() {
            AlreadyExists | NotADirectory => {
                "a file has this name: remove it, or name another directory"
            }
            PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                "name a directory in which this user may create files"
            }
            StorageFull => "free disk space, or name a directory on another disk",
            _ => "name another directory",
        };
        Self { path: path.display().to_string(), cause, remedy }
    }
}
