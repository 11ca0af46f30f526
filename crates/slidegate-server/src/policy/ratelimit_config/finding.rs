//! Errors and notes about configuration files of Envoy's reference rate limit server.

use std::fmt;
use std::path::{Path, PathBuf};

use slidegate::policy::file::SourceSpan;

/// A line and column in a configuration file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// The line number, starting at 1.
    pub line: u64,
    /// The column number in characters, starting at 1.
    pub column: u64,
}

/// The position of the first character of a file.
pub const FILE_START: SourcePosition = SourcePosition { line: 1, column: 1 };

/// Uses the start of the file, or of the line, for a position that is unknown.
impl From<SourceSpan> for SourcePosition {
    fn from(span: SourceSpan) -> Self {
        Self { line: span.line.max(1), column: span.column.max(1) }
    }
}

/// An error or a note about a position in a configuration file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: PathBuf,
    pub position: SourcePosition,
    pub message: String,
}

/// The errors and notes of a conversion, in the order in which they were found.
#[derive(Debug, Default)]
pub struct Findings {
    /// Errors. A file with an error is not converted into a policy.
    pub errors: Vec<Finding>,
    /// Notes about accepted settings that have no effect, or an unexpected effect.
    pub notes: Vec<Finding>,
}

impl Findings {
    /// Adds an error about a position in a configuration file.
    pub fn push_error(
        &mut self,
        path: &Path,
        position: SourcePosition,
        message: impl fmt::Display,
    ) {
        self.errors.push(Finding::new(path, position, message));
    }

    /// Adds a note, unless there is already a note with the same message for this file.
    pub fn push_note(&mut self, path: &Path, position: SourcePosition, message: impl fmt::Display) {
        let note = Finding::new(path, position, message);
        let is_same = |other: &Finding| other.path == note.path && other.message == note.message;
        if !self.notes.iter().any(is_same) {
            self.notes.push(note);
        }
    }
}

impl Finding {
    fn new(path: &Path, position: SourcePosition, message: impl fmt::Display) -> Self {
        Self {
            path: path.to_owned(),
            position,
            message: escape_control_chars(&message.to_string()),
        }
    }
}

/// Formats the finding as `FILE:line:column: message`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourcePosition { line, column } = self.position;
        write!(f, "{}:{line}:{column}: {}", self.path.display(), self.message)
    }
}

/// Escapes control characters in a text. A terminal would execute them, and the text may be from an untrusted file.
pub fn escape_control_chars(text: &str) -> String {
    let escape = |char: char| {
        if char.is_control() { char.escape_default().to_string() } else { char.to_string() }
    };
    text.chars().map(escape).collect()
}
