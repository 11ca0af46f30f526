//! Secrets that instances share, from the environment, the command line or a file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// The minimum length of a secret in bytes.
const MIN_SECRET_BYTES: usize = 16;

/// The permission of all users of the machine to read a file.
const READ_BY_OTHERS: u32 = 0o004;

/// The flag of a secret, and the flag of a file that contains it, each with its environment variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SecretFlags {
    pub text: &'static str,
    pub file: &'static str,
}

/// The reason why a secret cannot be used.
#[derive(Debug, Error)]
pub enum SecretError {
    #[error("{text} and {file}: both are set; set only one of them", text = .0.text, file = .0.file)]
    Conflicting(SecretFlags),
    #[error("{flag}: `{path}` cannot be read: {error}")]
    UnreadableFile { flag: &'static str, path: PathBuf, error: io::Error },
    #[error(
        "{flag}: the key has {bytes} bytes and needs {MIN_SECRET_BYTES} bytes or more; generate one with `openssl rand -hex 32`"
    )]
    TooShort { flag: &'static str, bytes: usize },
}

/// Returns a warning if the command line has a secret.
pub fn command_line_warning(is_on_command_line: bool, flags: SecretFlags) -> Option<String> {
    let SecretFlags { text, file } = flags;
    is_on_command_line.then(|| {
        format!(
            "{text}: every user of the machine can read the command line; use the variable, or {file}"
        )
    })
}

/// Returns a warning if every user of the machine can read a file with a secret. Files that a group can read are usual:
/// Kubernetes mounts secrets in this way.
pub fn readable_file_warning(file: Option<&Path>, flag: &str) -> Option<String> {
    let file = file?;
    let mode = fs::metadata(file).ok()?.permissions().mode();
    let file = file.display();
    (mode & READ_BY_OTHERS != 0).then(|| {
        format!(
            "{flag}: every user of the machine can read `{file}`; remove this permission with chmod o-rwx"
        )
    })
}

/// Returns the secret that is given as a text or in a file; `None` if neither is given.
pub fn read_secret(
    text: Option<String>,
    file: Option<&Path>,
    flags: SecretFlags,
) -> Result<Option<String>, SecretError> {
    let (key, flag) =
        match (text, file) {
            (Some(_), Some(_)) => return Err(SecretError::Conflicting(flags)),
            (Some(key), None) => (key, flags.text),
            (None, Some(path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    SecretError::UnreadableFile { flag: flags.file, path: path.to_owned(), error }
                })?;
                // Editors and `echo` end a file with a line break.
                let key = text.strip_suffix('\n').unwrap_or(&text);
                (key.strip_suffix('\r').unwrap_or(key).to_owned(), flags.file)
            }
            (None, None) => return Ok(None),
        };
    match key.len() {
        bytes @ ..MIN_SECRET_BYTES => Err(SecretError::TooShort { flag, bytes }),
        _ => Ok(Some(key)),
    }
}
