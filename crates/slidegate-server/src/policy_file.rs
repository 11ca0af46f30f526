//! Reads a policy from a file, for every command that needs one.

use std::fmt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use slidegate::{Policy, PolicyErrors};

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

/// Reads the policy in a file.
pub fn read(path: &Path) -> Result<Policy, PolicyFileError> {
    let read = || Ok(Policy::from_yaml(&fs::read_to_string(path)?)?);
    read().map_err(|reason| PolicyFileError { path: path.to_owned(), reason })
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
