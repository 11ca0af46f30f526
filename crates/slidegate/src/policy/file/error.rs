//! What is wrong with a policy, and where.

use std::fmt;

use thiserror::Error;

/// Characters of a line that are shown.
const SHOWN: usize = 120;

/// Where something stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// From 1; 0 if unknown.
    pub(super) line: u64,
    /// From 1, in characters; 0 if unknown.
    pub(super) column: u64,
    /// In characters.
    pub(super) width: u64,
}

/// One mistake in a policy, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1; 0 if unknown.
    pub line: u64,
    /// The column, from 1; 0 if unknown.
    pub column: u64,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The line as it is written, and below it a mark.
    excerpt: String,
}

impl PolicyError {
    pub(super) fn new(place: Place, message: impl fmt::Display, source: &str) -> Self {
        let Place { line, column, .. } = place;
        let message = printable(&message.to_string());
        Self { line, column, message, excerpt: excerpt(place, source).unwrap_or_default() }
    }

    /// The line as it is written with its number, and below it a mark: two lines; or nothing, if the
    /// mistake has no place.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

/// A terminal obeys control characters, and the file may be anybody's.
fn printable(text: &str) -> String {
    let printable = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(printable).collect()
}

fn excerpt(place: Place, source: &str) -> Option<String> {
    let nth = usize::try_from(place.line.checked_sub(1)?).ok()?;
    let before = usize::try_from(place.column.checked_sub(1)?).ok()?;
    let line = source.lines().nth(nth)?;
    // Of a long line the part around the mistake.
    let is_long = line.chars().nth(SHOWN).is_some();
    let skipped = if is_long { before.saturating_sub(SHOWN / 2) } else { 0 };
    let part: String = line.chars().skip(skipped).take(SHOWN).collect();
    let part = part.replace('\t', " ");
    let behind = part.chars().count().saturating_sub(before - skipped).max(1);
    let width = usize::try_from(place.width).unwrap_or(1).clamp(1, behind);
    let (number, mark) = (place.line.to_string(), "^".repeat(width));
    Some(format!(
        "{number:>5} | {}\n{:>5} | {}{mark}",
        printable(part.trim_end()),
        "",
        " ".repeat(before - skipped)
    ))
}

/// `12:5: message`, and the line below.
impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.message),
            _ => write!(f, "{}:{}: {}\n{}", self.line, self.column, self.message, self.excerpt),
        }
    }
}

/// Why a policy cannot be: every mistake that was found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyErrors(pub Vec<PolicyError>);
