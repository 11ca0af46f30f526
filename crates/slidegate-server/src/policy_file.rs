//! Reads a policy from a file, for every command that needs one, or from files of the reference server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use slidegate::{Algorithm, Policy, PolicyError, PolicyErrors};

use crate::ratelimit_config::{self, Converted, Finding, folder};

/// Why there is no policy. Prints one line per mistake: `FILE:line:column: message`.
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
    /// Of files of the reference server, whose paths they name themselves.
    #[error("these are no policy")]
    Findings(Vec<Finding>),
}

/// Where a policy is written.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// In a file of its own.
    Policy(PathBuf),
    /// In a file of the reference server, or a folder of them; its limits count by the algorithm.
    Ratelimit { path: PathBuf, algorithm: Algorithm },
}

/// A file's path and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileText {
    pub path: PathBuf,
    pub text: Arc<str>,
}

/// What a policy's source says.
pub type Texts = Arc<[FileText]>;

/// What texts mean.
pub struct Meaning {
    pub policy: Policy,
    /// What they say that has no effect, or another than one might think.
    pub notes: Vec<String>,
}

/// A policy, and the source that it was read from.
pub struct PolicyFile {
    pub source: PolicySource,
    pub texts: Texts,
    pub policy: Policy,
    pub notes: Vec<String>,
}

impl PolicyFile {
    /// Reads a source.
    pub fn read(source: PolicySource) -> Result<Self, PolicyFileError> {
        let texts = source.texts()?;
        let Meaning { policy, notes } = source.meaning(&texts)?;
        Ok(Self { source, texts, policy, notes })
    }
}

impl PolicySource {
    pub fn path(&self) -> &Path {
        match self {
            Self::Policy(path) | Self::Ratelimit { path, .. } => path,
        }
    }

    /// Whether it is a folder of files.
    pub fn is_folder(&self) -> bool {
        matches!(self, Self::Ratelimit { path, .. } if path.is_dir())
    }

    /// What it says now.
    pub fn texts(&self) -> Result<Texts, PolicyFileError> {
        let files = match self.is_folder() {
            true => folder::files(self.path()).map_err(|error| unreadable(self.path(), error))?,
            false => vec![self.path().to_owned()],
        };
        let texts = files.into_iter().map(|path| {
            let text = text(&path)?.into();
            Ok(FileText { path, text })
        });
        texts.collect()
    }

    /// The policy that texts of it are.
    pub fn meaning(&self, texts: &[FileText]) -> Result<Meaning, PolicyFileError> {
        match (self, texts) {
            (Self::Policy(path), texts) => {
                let text = texts.iter().map(|file| &*file.text).collect::<String>();
                Ok(Meaning { policy: parse(path, &text)?, notes: Vec::new() })
            }
            (Self::Ratelimit { path, algorithm }, files) => {
                let Converted { policy, notes, .. } = convert(path, files, *algorithm)?;
                Ok(Meaning { policy, notes: notes.iter().map(ToString::to_string).collect() })
            }
        }
    }
}

/// The policy that files of the reference server mean, which were found at a path.
pub fn convert(
    path: &Path,
    files: &[FileText],
    algorithm: Algorithm,
) -> Result<Converted, PolicyFileError> {
    ratelimit_config::convert(files, algorithm).map_err(|findings| PolicyFileError {
        path: path.to_owned(),
        reason: Reason::Findings(findings),
    })
}

/// Reads the policy in a file.
pub fn read(path: &Path) -> Result<Policy, PolicyFileError> {
    parse(path, &text(path)?)
}

/// The text of a file.
pub fn text(path: &Path) -> Result<String, PolicyFileError> {
    fs::read_to_string(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: io::Error) -> PolicyFileError {
    PolicyFileError { path: path.to_owned(), reason: error.into() }
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
            Reason::Findings(findings) => findings.iter().map(ToString::to_string).collect(),
        }
    }
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let mistakes = match &self.reason {
            Reason::Unreadable(error) => return write!(f, "{path}: cannot be read: {error}"),
            Reason::Findings(_) => return f.write_str(&self.lines().join("\n")),
            Reason::Mistakes(PolicyErrors(mistakes)) => mistakes,
        };
        for (nth, mistake) in mistakes.iter().enumerate() {
            let newline = if nth == 0 { "" } else { "\n" };
            write!(f, "{newline}{path}:{mistake}")?;
        }
        Ok(())
    }
}
