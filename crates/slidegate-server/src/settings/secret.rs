//! Secrets that instances share, from the environment, the command line or a file.

use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// The minimum length of a secret in bytes.
const MIN_SECRET_BYTES: usize = 16;

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
