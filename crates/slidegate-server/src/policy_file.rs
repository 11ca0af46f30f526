//! Reads a policy from a file, for every command that needs one, or from files of the reference server.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fs, io};

use slidegate::{Algorithm, Limit, Policy, PolicyError, PolicyErrors, PolicyWarning};

use crate::ratelimit_config::{self, Converted, Counting, Finding, folder};

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

/// Says whether the store that is to count can do so by a limit, or else why not and what it could.
pub type LimitCheck = fn(&Limit) -> Result<(), String>;

/// For commands that ask no store.
pub fn any_limit(_: &Limit) -> Result<(), String> {
    Ok(())
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
    pub supports: LimitCheck,
    pub texts: Texts,
    pub policy: Policy,
    pub notes: Vec<String>,
}

impl PolicyFile {
    /// Reads a source, for a store that bears these limits.
    pub fn read(source: PolicySource, supports: LimitCheck) -> Result<Self, PolicyFileError> {
        let texts = source.texts()?;
        let Meaning { policy, notes } = source.meaning(&texts, supports)?;
        Ok(Self { source, supports, texts, policy, notes })
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

    /// The policy that texts of it are, for a store that bears these limits.
    pub fn meaning(
        &self,
        texts: &[FileText],
        supports: LimitCheck,
    ) -> Result<Meaning, PolicyFileError> {
        match (self, texts) {
            (Self::Policy(path), texts) => {
                let text = texts.iter().map(|file| &*file.text).collect::<String>();
                let policy = parse(path, &text, supports)?;
                let line = |warning: &PolicyWarning| {
                    let (line, column) = (warning.line(), warning.column());
                    format!("{}:{line}:{column}: {}", path.display(), warning.message())
                };
                let notes = policy.warnings().iter().map(line).collect();
                Ok(Meaning { policy, notes })
            }
            (Self::Ratelimit { path, algorithm }, files) => {
                let counting = Counting { algorithm: *algorithm, supports };
                let Converted { policy, notes, .. } = convert(path, files, counting)?;
                Ok(Meaning { policy, notes: notes.iter().map(ToString::to_string).collect() })
            }
        }
    }
}

/// The policy that files of the reference server mean, which were found at a path.
pub fn convert(
    path: &Path,
    files: &[FileText],
    counting: Counting,
) -> Result<Converted, PolicyFileError> {
    ratelimit_config::convert(files, counting).map_err(|findings| PolicyFileError {
        path: path.to_owned(),
        reason: Reason::Findings(findings),
    })
}

/// Reads the policy in a file.
pub fn read(path: &Path) -> Result<Policy, PolicyFileError> {
    parse(path, &text(path)?, any_limit)
}

/// The text of a file.
pub fn text(path: &Path) -> Result<String, PolicyFileError> {
    fs::read_to_string(path).map_err(|error| unreadable(path, error))
}

fn unreadable(path: &Path, error: io::Error) -> PolicyFileError {
    PolicyFileError { path: path.to_owned(), reason: error.into() }
}

/// The policy that a file's text says, for a store that bears these limits.
fn parse(path: &Path, text: &str, supports: LimitCheck) -> Result<Policy, PolicyFileError> {
    let error =
        |errors: PolicyErrors| PolicyFileError { path: path.to_owned(), reason: errors.into() };
    Policy::from_yaml_for(text, supports).map_err(error)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What is wrong with texts for a store that has no log.
    fn wrong(source: &PolicySource, texts: &[&str]) -> Vec<String> {
        let supports: LimitCheck = |limit| match limit.algorithm() {
            Algorithm::SlidingLog => Err("`sliding_log` is not counted here".to_owned()),
            _ => Ok(()),
        };
        let file = |(nth, text): (usize, &&str)| FileText {
            path: format!("{nth}.yaml").into(),
            text: (**text).into(),
        };
        let texts: Vec<FileText> = texts.iter().enumerate().map(file).collect();
        source.meaning(&texts, supports).err().map_or_else(Vec::new, |error| error.lines())
    }

    #[test]
    fn a_policy_by_which_the_store_cannot_count_is_refused() {
        let source = PolicySource::Policy("p.yaml".into());
        let policy = "rules: [{ name: a, limits: [9/s, 99/m], algorithm: sliding_log }]";
        let why = "`sliding_log` is not counted here";
        assert_eq!(
            wrong(&source, &[policy]),
            [format!("p.yaml:1:29: {why}"), format!("p.yaml:1:34: {why}")]
        );
        assert!(wrong(&source, &[&policy.replace("log", "buckets")]).is_empty());
    }

    #[test]
    fn reference_files_by_which_the_store_cannot_count_are_refused() {
        let source = |algorithm| PolicySource::Ratelimit { path: "config".into(), algorithm };
        let texts = [
            "domain: a
descriptors:
- { key: k, rate_limit: { unit: day, requests_per_unit: 9 } }
- { key: m, descriptors: [{ key: n, rate_limit: { unit: hour, requests_per_unit: 9 } }] }
- { key: o, rate_limit: { unlimited: true } }",
            "domain: b\ndescriptors: [{ key: k, rate_limit: { unit: second, requests_per_unit: 9 } }]",
        ];
        let why = "`sliding_log` is not counted here (--ratelimit-algorithm)";
        let places = ["0.yaml:3:57", "0.yaml:4:82", "1.yaml:2:72"];
        let log = source(Algorithm::SlidingLog);
        assert_eq!(wrong(&log, &texts), places.map(|place| format!("{place}: {why}")));
        assert!(wrong(&source(Algorithm::SlidingWindow), &texts).is_empty());
        // Limits that descriptors bring along count so, too.
        let brought = wrong(&log, &["domain: a"]);
        assert!(brought.len() == 1 && brought[0].contains("`sliding_log` is not"), "{brought:?}");
    }
}
