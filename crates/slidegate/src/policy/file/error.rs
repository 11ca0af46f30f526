//! Errors and warnings of a policy, with their source positions.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The maximum number of characters of a line in an excerpt.
const MAX_EXCERPT_CHARS: usize = 120;

/// The maximum number of errors that are reported for one policy.
pub(super) const MAX_REPORTED_ERRORS: usize = 1_000;

/// A position in the source text.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SourceSpan {
    /// From 1; 0 if unknown.
    pub(super) line: u64,
    /// From 1, in characters; 0 if unknown.
    pub(super) column: u64,
    /// In characters.
    pub(super) width: u64,
}

impl SourceSpan {
    /// Moves the span into a text of these lines. A span after the last line moves to the end of that line; an unknown
    /// span moves to the beginning of the text.
    fn clamp_to(self, lines: &[&str]) -> Self {
        let start = Self { line: 1, column: 1, width: 1 };
        match lines.last() {
            Some(last) if self.line > lines.len() as u64 => {
                let column = last.chars().count() as u64 + 1;
                Self { line: lines.len() as u64, column, width: 1 }
            }
            Some(_) if self.line > 0 => Self { column: self.column.max(1), ..self },
            _ => start,
        }
    }
}

/// The errors that were found in a text.
pub(super) struct Diagnostics<'s> {
    lines: Vec<&'s str>,
    entries: RefCell<Vec<(SourceSpan, String)>>,
    /// Whether errors beyond [`MAX_REPORTED_ERRORS`] were dropped.
    is_truncated: Cell<bool>,
}

impl<'s> Diagnostics<'s> {
    /// Creates an empty list of errors for a text.
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            lines: source.lines().collect(),
            entries: RefCell::default(),
            is_truncated: Cell::new(false),
        }
    }

    /// Adds an error, unless the same error was added at this position before.
    pub(super) fn push(&self, at: SourceSpan, message: impl fmt::Display) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() == MAX_REPORTED_ERRORS {
            self.is_truncated.set(true);
            return;
        }
        let message = printable(&message.to_string());
        let is_same =
            |(span, known_message): &(SourceSpan, String)| *span == at && *known_message == message;
        // The limits that a rule and its overrides share are compiled for each of them.
        if !entries.iter().any(is_same) {
            entries.push((at, message));
        }
    }

    /// Returns whether no error was added.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// Returns the errors, in the order of the file; `None` if there are none.
    pub(super) fn into_errors(self) -> Option<PolicyErrors> {
        Some(PolicyErrors(self.into_policy_errors())).filter(|errors| !errors.0.is_empty())
    }

    /// Returns the entries as warnings, in the order of the file.
    pub(super) fn into_warnings(self) -> Arc<[PolicyWarning]> {
        self.into_policy_errors().into_iter().map(PolicyWarning).collect()
    }

    fn into_policy_errors(self) -> Vec<PolicyError> {
        let mut entries = self.entries.into_inner();
        entries.sort_by_key(|(at, _)| (at.line, at.column));
        if let Some(&(last, _)) = entries.last().filter(|_| self.is_truncated.get()) {
            entries
                .push((last, format!("there are more mistakes than these {MAX_REPORTED_ERRORS}")));
        }
        let errors =
            entries.into_iter().map(|(at, message)| PolicyError::new(at, message, &self.lines));
        errors.collect()
    }
}

/// One error in a policy, with its source position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1.
    pub line: u64,
    /// The column in characters, from 1.
    pub column: u64,
    /// The problem and its remedy.
    pub message: String,
    /// The source line and a marker line below it.
    excerpt: String,
}

impl PolicyError {
    /// Creates an error in a text of these lines.
    fn new(span: SourceSpan, message: String, lines: &[&str]) -> Self {
        let span = span.clamp_to(lines);
        let SourceSpan { line, column, .. } = span;
        Self { line, column, message, excerpt: excerpt(span, lines).unwrap_or_default() }
    }

    /// Returns the source line with its number, and a marker line below it; empty if the text has no lines.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

/// A warning about a part of a valid policy, with its source position: a rule that can be evaded or never applies.
///
/// ```
/// use slidegate::Policy;
///
/// let policy = Policy::from_yaml("rules: [{ name: a, per: [header.x-api-key], limits: [9/s] }]")?;
/// let warning = &policy.warnings()[0];
/// assert_eq!((warning.line(), warning.column()), (1, 26));
/// assert!(warning.message().contains("the client chooses `header.x-api-key`"));
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWarning(PolicyError);

impl PolicyWarning {
    /// Returns the line, from 1.
    pub fn line(&self) -> u64 {
        self.0.line
    }

    /// Returns the column in characters, from 1.
    pub fn column(&self) -> u64 {
        self.0.column
    }

    /// Returns the problem and its remedy.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// Returns the source line with its number, and a marker line below it.
    pub fn excerpt(&self) -> &str {
        self.0.excerpt()
    }
}

/// Formats as `12:5: warning: message`, followed by the excerpt.
impl fmt::Display for PolicyWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let PolicyError { line, column, message, excerpt } = &self.0;
        write!(f, "{line}:{column}: warning: {message}")?;
        match &**excerpt {
            "" => Ok(()),
            excerpt => write!(f, "\n{excerpt}"),
        }
    }
}

/// Escapes control characters: a terminal would obey them, and the file may come from an untrusted source.
fn printable(text: &str) -> String {
    let printable = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(printable).collect()
}

fn excerpt(span: SourceSpan, lines: &[&str]) -> Option<String> {
    let line_index = usize::try_from(span.line.checked_sub(1)?).ok()?;
    let column_index = usize::try_from(span.column.checked_sub(1)?).ok()?;
    let line = lines.get(line_index)?;
    // An excerpt of a long line shows the part around the error.
    let is_long = line.chars().nth(MAX_EXCERPT_CHARS).is_some();
    let skipped = if is_long { column_index.saturating_sub(MAX_EXCERPT_CHARS / 2) } else { 0 };
    let text: String = line.chars().skip(skipped).take(MAX_EXCERPT_CHARS).collect();
    let text = text.replace('\t', " ");
    let remaining = text.chars().count().saturating_sub(column_index - skipped).max(1);
    let width = usize::try_from(span.width).unwrap_or(1).clamp(1, remaining);
    let (number, mark) = (span.line.to_string(), "^".repeat(width));
    Some(format!(
        "{number:>5} | {}\n{:>5} | {}{mark}",
        printable(text.trim_end()),
        "",
        " ".repeat(column_index - skipped)
    ))
}

/// Formats as `12:5: message`, followed by the excerpt.
impl fmt::Display for PolicyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.line, self.column, self.message)?;
        match &*self.excerpt {
            "" => Ok(()),
            excerpt => write!(f, "\n{excerpt}"),
        }
    }
}

/// All errors of a policy, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyErrors(pub Vec<PolicyError>);

impl PolicyErrors {
    /// Creates the error for a failure without a reported error.
    pub(super) fn unknown() -> Self {
        let message = "the policy cannot be read".to_owned();
        Self(vec![PolicyError::new(SourceSpan::default(), message, &[])])
    }
}
