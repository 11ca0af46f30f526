//! Reads a policy from a file, for every command that needs one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use slidegate::{Policy, PolicyError, PolicyErrors};

/// Why a file gives no policy. Prints one line per mistake: `FILE:line:column: message`.
#[derive(Debug, thiserror::Error)]
pub struct PolicyFileError {
    path: PathBuf,
    #[source]
    reason: Reason,
}

#[derive(Debug, thiserror::Error)]
enum Reason {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    Mistakes(#[from] PolicyErrors),
}

/// A policy, and the file that it was read from.
pub struct PolicyFile {
    pub path: PathBuf,
    pub text: Arc<str>,
    pub policy: Policy,
}

impl PolicyFile {
    /// Reads a file.
    pub fn read(path: PathBuf) -> Result<Self, PolicyFileError> {
        let text = text(&path)?;
        Ok(Self { policy: parse(&path, &text)?, text: text.into(), path })
    }
}

/// Reads the policy in a file.
pub fn read(path: &Path) -> Result<Policy, PolicyFileError> {
    parse(path, &text(path)?)
}

/// The text of a file.
pub fn text(path: &Path) -> Result<String, PolicyFileError> {
    let error = |error: io::Error| PolicyFileError { path: path.to_owned(), reason: error.into() };
    fs::read_to_string(path).map_err(error)
}

/// The policy that a file's text says.
pub fn parse(path: &Path, text: &str) -> Result<Policy, PolicyFileError> {
    let error =
        |errors: PolicyErrors| PolicyFileError { path: path.to_owned(), reason: errors.into() };
    Policy::from_yaml(text).map_err(error)
}

impl PolicyFileError {
    /// What is wrong, a line for each mistake, without the lines of the file.
    pub fn lines(&self) -> Vec<String> {
        let Self { path, reason } = self;
        match reason {
            Reason::Unreadable(_) => vec![self.to_string()],
            Reason::Mistakes(PolicyErrors(mistakes)) => {
                let line = |mistake: &PolicyError| {
                    let PolicyError { line, column, message, .. } = mistake;
                    format!("{}:{line}:{column}: {message}", path.display())
                };
                mistakes.iter().map(line).collect()
            }
        }
    }
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let mistakes = match &self.reason {
            Reason::Unreadable(error) => return write!(f, "{path}: cannot be read: {error}"),
            Reason::Mistakes(PolicyErrors(mistakes)) => mistakes,
        };
        for (nth, mistake) in mistakes.iter().enumerate() {
            let newline = if nth == 0 { "" } else { "\n" };
            write!(f, "{newline}{path}:{mistake}")?;
        }
        Ok(())
    }
}
