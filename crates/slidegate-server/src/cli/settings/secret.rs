//! Secrets that instances share, from the environment, the command line or a file.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use thiserror::Error;

/// The minimum length of a secret in bytes.
const MIN_SECRET_BYTES: usize = 16;

/// The permission of all users of the machine to read a file.
const OTHERS_READ_PERMISSION: u32 = 0o004;

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
        "{location}: the secret has {bytes} bytes and needs {MIN_SECRET_BYTES} bytes or more; generate one with `openssl rand -hex 32`"
    )]
    TooShort { location: String, bytes: usize },
    #[error("{flag}: `{path}` has {lines} lines, each of them a secret; keep at most {max}")]
    TooMany { flag: &'static str, path: PathBuf, lines: usize, max: usize },
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

/// Returns a warning if every user of the machine can read a file with a secret. A file that a group can read causes no
/// warning, because Kubernetes mounts secrets in this way.
pub fn readable_file_warning(file: Option<&Path>, flag: &str) -> Option<String> {
    let file = file?;
    let mode = fs::metadata(file).ok()?.permissions().mode();
    let file = file.display();
    (mode & OTHERS_READ_PERMISSION != 0).then(|| {
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
    match (text, file) {
        (Some(_), Some(_)) => Err(SecretError::Conflicting(flags)),
        (Some(secret), None) => check_secret_length(secret, flags.text).map(Some),
        (None, Some(path)) => read_secret_file(path, flags.file).map(Some),
        (None, None) => Ok(None),
    }
}

/// Returns the secrets that are given as a text, or in the lines of a file; none if neither is given.
pub fn read_secrets(
    text: Option<String>,
    file: Option<&Path>,
    flags: SecretFlags,
    max: usize,
) -> Result<Vec<String>, SecretError> {
    let (None, Some(path)) = (&text, file) else {
        return Ok(read_secret(text, file, flags)?.into_iter().collect());
    };
    let (flag, text) = (flags.file, read_text(path, flags.file)?);
    let lines: Vec<&str> = trim_line_break(&text).split('\n').collect();
    if lines.len() > max {
        let (path, lines) = (path.to_owned(), lines.len());
        return Err(SecretError::TooMany { flag, path, lines, max });
    }
    let secrets = lines.iter().zip(1..).map(|(line, number)| {
        let secret = line.strip_suffix('\r').unwrap_or(line).to_owned();
        check_secret_length(secret, &format!("{flag}: line {number}"))
    });
    secrets.collect()
}

/// Returns the secret in a file.
pub fn read_secret_file(path: &Path, flag: &'static str) -> Result<String, SecretError> {
    let text = read_text(path, flag)?;
    check_secret_length(trim_line_break(&text).to_owned(), flag)
}

fn read_text(path: &Path, flag: &'static str) -> Result<String, SecretError> {
    let path = path.to_owned();
    fs::read_to_string(&path).map_err(|error| SecretError::UnreadableFile { flag, path, error })
}

/// Removes one line break at the end: editors and `echo` end a file with it.
fn trim_line_break(text: &str) -> &str {
    let text = text.strip_suffix('\n').unwrap_or(text);
    text.strip_suffix('\r').unwrap_or(text)
}

fn check_secret_length(secret: String, location: &str) -> Result<String, SecretError> {
    match secret.len() {
        bytes @ ..MIN_SECRET_BYTES => {
            Err(SecretError::TooShort { location: location.to_owned(), bytes })
        }
        _ => Ok(secret),
    }
}
