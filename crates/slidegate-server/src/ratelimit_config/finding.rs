//! What is found in a reference file: mistakes, and what is as good as not there.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where something stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourcePosition {
    /// From 1.
    pub line: u64,
    /// From 1, in characters.
    pub column: u64,
}

/// One thing to tell of a file, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    pub path: PathBuf,
    pub place: SourcePosition,
    pub message: String,
}

/// All that is found, in the order in which it is.
#[derive(Debug, Default)]
pub struct Findings {
    /// Why the files cannot be a policy.
    pub mistakes: Vec<Finding>,
    /// What is accepted, and has no effect or another than one might think.
    pub notes: Vec<Finding>,
}

impl Findings {
    pub fn wrong(&mut self, path: &Path, place: SourcePosition, message: impl fmt::Display) {
        self.mistakes.push(Finding::new(path, place, message));
    }

    /// Notes it once for each file.
    pub fn note(&mut self, path: &Path, place: SourcePosition, message: impl fmt::Display) {
        let note = Finding::new(path, place, message);
        let same = |other: &Finding| other.path == note.path && other.message == note.message;
        if !self.notes.iter().any(same) {
            self.notes.push(note);
        }
    }
}

impl Finding {
    fn new(path: &Path, place: SourcePosition, message: impl fmt::Display) -> Self {
        Self { path: path.to_owned(), place, message: printable(&message.to_string()) }
    }
}

/// `FILE:line:column: message`
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SourcePosition { line, column } = self.place;
        write!(f, "{}:{line}:{column}: {}", self.path.display(), self.message)
    }
}

/// A terminal obeys control characters, and the file may be anybody's.
pub fn printable(text: &str) -> String {
    let printable = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(printable).collect()
}
