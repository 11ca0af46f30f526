//! Reads policies: from a policy file, or from configuration files of Envoy's reference rate limit server.
//!
//! At start and at each reload, a [`LimitSupportCheck`] checks that the store supports every limit of the policy.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use slidegate::policy::file::MAX_POLICY_BYTES;
use slidegate::policy::{PolicyError, PolicyWarning};
use slidegate::{Algorithm, Policy, PolicyErrors};

use crate::policy::ratelimit_config::{self, Conversion, ConversionOptions, Finding, folder};
use crate::policy::{FileText, LimitSupportCheck, SourceTexts, accept_any_limit};

/// The reason why a policy cannot be read. Displayed as one line per error: `FILE:line:column: message`.
#[derive(Debug, thiserror::Error)]
pub struct PolicyFileError {
    path: PathBuf,
    #[source]
    reason: PolicyFileErrorReason,
}

/// The cause of a [`PolicyFileError`].
#[derive(Debug, thiserror::Error)]
enum PolicyFileErrorReason {
    #[error(transparent)]
    Unreadable(#[from] io::Error),
    #[error(transparent)]
    InvalidPolicy(#[from] PolicyErrors),
    /// The errors in files of Envoy's reference rate limit server, each with the path of its file.
    #[error("invalid configuration of the reference server")]
    InvalidRatelimitConfig(Vec<Finding>),
}

/// The source of a policy.
#[derive(Clone, Debug)]
pub enum PolicySource {
    /// A policy file.
    Policy(PathBuf),
    /// A file of Envoy's reference rate limit server, or a folder of such files. All limits use `algorithm`.
    RatelimitConfig { path: PathBuf, algorithm: Algorithm },
}

/// The result of parsing the files of a [`PolicySource`]: the policy, and notes about its settings.
pub struct ParsedPolicy {
    pub policy: Policy,
    /// Warnings about settings that have no effect or an unexpected effect.
    pub notes: Vec<String>,
}

/// A policy, with its source and the contents of the files from which it was read.
pub struct PolicyFile {
    pub source: PolicySource,
    pub supports: LimitSupportCheck,
    pub texts: SourceTexts,
    pub policy: Policy,
    pub notes: Vec<String>,
}

impl PolicyFile {
    /// Reads a policy. `supports` checks whether the store supports each limit.
    pub fn read(
        source: PolicySource,
        supports: LimitSupportCheck,
    ) -> Result<Self, PolicyFileError> {
        let texts = source.read_texts()?;
        let ParsedPolicy { policy, notes } = source.parse(&texts, supports)?;
        Ok(Self { source, supports, texts, policy, notes })
    }
}

impl PolicySource {
    /// Returns the path of the source's file or folder.
    pub fn path(&self) -> &Path {
        match self {
            Self::Policy(path) | Self::RatelimitConfig { path, .. } => path,
        }
    }

    /// Returns `true` if the source is a folder of files.
    pub fn is_folder(&self) -> bool {
        matches!(self, Self::RatelimitConfig { path, .. } if path.is_dir())
    }

    /// Reads the current contents of all files of the source.
    pub fn read_texts(&self) -> Result<SourceTexts, PolicyFileError> {
        let files = if self.is_folder() {
            folder::files(self.path()).map_err(|error| unreadable_file_error(self.path(), error))?
        } else {
            vec![self.path().to_owned()]
        };
        let texts = files.into_iter().map(|path| {
            let text = read_text(&path)?.into();
            Ok(FileText { path, text })
        });
        texts.collect()
    }

    /// Parses the policy from `texts`, the contents of the files of this source. `supports` checks whether the store
    /// supports each limit.
    pub fn parse(
        &self,
        texts: &[FileText],
        supports: LimitSupportCheck,
    ) -> Result<ParsedPolicy, PolicyFileError> {
        match (self, texts) {
            (Self::Policy(path), texts) => {
                let text = texts.iter().map(|file| &*file.text).collect::<String>();
                let policy = parse_policy(path, &text, supports)?;
                let line = |warning: &PolicyWarning| {
                    let (line, column) = (warning.line(), warning.column());
                    format!("{}:{line}:{column}: {}", path.display(), warning.message())
                };
                let notes = policy.warnings().iter().map(line).collect();
                Ok(ParsedPolicy { policy, notes })
            }
            (Self::RatelimitConfig { path, algorithm }, files) => {
                let options = ConversionOptions { algorithm: *algorithm, supports };
                let Conversion { policy, notes, .. } =
                    convert_ratelimit_config(path, files, options)?;
                Ok(ParsedPolicy { policy, notes: notes.iter().map(ToString::to_string).collect() })
            }
        }
    }
}

/// Converts files of Envoy's reference rate limit server to a policy. The files were read from the file or folder
/// `path`.
pub fn convert_ratelimit_config(
    path: &Path,
    files: &[FileText],
    options: ConversionOptions,
) -> Result<Conversion, PolicyFileError> {
    ratelimit_config::convert(files, options).map_err(|findings| PolicyFileError {
        path: path.to_owned(),
        reason: PolicyFileErrorReason::InvalidRatelimitConfig(findings),
    })
}

/// Reads a policy file for a command that has no store. Accepts every limit.
pub fn read_policy(path: &Path) -> Result<Policy, PolicyFileError> {
    parse_policy(path, &read_text(path)?, accept_any_limit)
}

/// Reads a policy from its source, for a command that has no store. Accepts every limit.
pub fn read_policy_source(source: PolicySource) -> Result<Policy, PolicyFileError> {
    Ok(PolicyFile::read(source, accept_any_limit)?.policy)
}

/// Reads the text of a file.
pub fn read_text(path: &Path) -> Result<String, PolicyFileError> {
    read_bounded(path).map_err(|error| unreadable_file_error(path, error))
}

/// Reads a file of at most [`MAX_POLICY_BYTES`] bytes, so that a device or a wrong file cannot fill the memory.
fn read_bounded(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let max_bytes = MAX_POLICY_BYTES as u64;
    let bytes = File::open(path)?.take(max_bytes + 1).read_to_string(&mut text)?;
    if bytes > MAX_POLICY_BYTES {
        let message = format!("the file is larger than {} MiB", max_bytes >> 20);
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, message));
    }
    Ok(text)
}

fn unreadable_file_error(path: &Path, error: io::Error) -> PolicyFileError {
    PolicyFileError { path: path.to_owned(), reason: error.into() }
}

/// Parses the text of a policy file. `supports` checks whether the store supports each limit.
fn parse_policy(
    path: &Path,
    text: &str,
    supports: LimitSupportCheck,
) -> Result<Policy, PolicyFileError> {
    let error =
        |errors: PolicyErrors| PolicyFileError { path: path.to_owned(), reason: errors.into() };
    Policy::from_yaml_for(text, supports).map_err(error)
}

impl PolicyFileError {
    /// Returns one line per error, without excerpts of the files.
    pub fn lines(&self) -> Vec<String> {
        let Self { path, reason } = self;
        match reason {
            PolicyFileErrorReason::Unreadable(_) => vec![self.to_string()],
            PolicyFileErrorReason::InvalidPolicy(PolicyErrors(errors)) => {
                let line = |error: &PolicyError| {
                    let PolicyError { line, column, message, .. } = error;
                    format!("{}:{line}:{column}: {message}", path.display())
                };
                errors.iter().map(line).collect()
            }
            PolicyFileErrorReason::InvalidRatelimitConfig(findings) => {
                findings.iter().map(ToString::to_string).collect()
            }
        }
    }
}

impl fmt::Display for PolicyFileError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = self.path.display();
        let errors = match &self.reason {
            PolicyFileErrorReason::Unreadable(error) => {
                return write!(f, "{path}: cannot be read: {error}");
            }
            PolicyFileErrorReason::InvalidRatelimitConfig(_) => {
                return f.write_str(&self.lines().join("\n"));
            }
            PolicyFileErrorReason::InvalidPolicy(PolicyErrors(errors)) => errors,
        };
        for (index, error) in errors.iter().enumerate() {
            let newline = if index == 0 { "" } else { "\n" };
            write!(f, "{newline}{path}:{error}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses policy files for a store that does not support `sliding_log`, and returns the errors.
    fn parse_and_list_errors(source: &PolicySource, texts: &[&str]) -> Vec<String> {
        let supports: LimitSupportCheck = |limit| match limit.algorithm() {
            Algorithm::SlidingLog => Err("`sliding_log` is not supported".to_owned()),
            _ => Ok(()),
        };
        let file = |(index, text): (usize, &&str)| FileText {
            path: format!("{index}.yaml").into(),
            text: (**text).into(),
        };
        let texts: Vec<FileText> = texts.iter().enumerate().map(file).collect();
        source.parse(&texts, supports).err().map_or_else(Vec::new, |error| error.lines())
    }

    #[test]
    fn policy_limit_unsupported_by_store_is_rejected() {
        let source = PolicySource::Policy("p.yaml".into());
        let policy = "rules: [{ name: a, limits: [9/s, 99/m], algorithm: sliding_log }]";
        let reason = "`sliding_log` is not supported";
        assert_eq!(
            parse_and_list_errors(&source, &[policy]),
            [format!("p.yaml:1:29: {reason}"), format!("p.yaml:1:34: {reason}")]
        );
        assert!(parse_and_list_errors(&source, &[&policy.replace("log", "buckets")]).is_empty());
    }

    #[test]
    fn reference_server_limit_unsupported_by_store_is_rejected() {
        let source = |algorithm| PolicySource::RatelimitConfig { path: "config".into(), algorithm };
        let texts = [
            "domain: a
descriptors:
- { key: k, rate_limit: { unit: day, requests_per_unit: 9 } }
- { key: m, descriptors: [{ key: n, rate_limit: { unit: hour, requests_per_unit: 9 } }] }
- { key: o, rate_limit: { unlimited: true } }",
            "domain: b\ndescriptors: [{ key: k, rate_limit: { unit: second, requests_per_unit: 9 } }]",
        ];
        let reason = "`sliding_log` is not supported (--ratelimit-algorithm)";
        let positions = ["0.yaml:3:57", "0.yaml:4:82", "1.yaml:2:72"];
        let log = source(Algorithm::SlidingLog);
        assert_eq!(
            parse_and_list_errors(&log, &texts),
            positions.map(|position| format!("{position}: {reason}"))
        );
        assert!(
            parse_and_list_errors(&source(Algorithm::SlidingWindow { resolution: None }), &texts)
                .is_empty()
        );
        // Limits that descriptors contain use the same algorithm.
        let requested = parse_and_list_errors(&log, &["domain: a"]);
        assert!(
            requested.len() == 1 && requested[0].contains("`sliding_log` is not"),
            "{requested:?}"
        );
    }
}
