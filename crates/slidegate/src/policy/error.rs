//! Errors and warnings of a policy, with their positions in the source text.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// The maximum number of characters of a source line that the excerpt of an error shows.
const MAX_EXCERPT_CHARS: usize = 120;

/// The maximum number of errors that are reported for one policy.
pub(super) const MAX_REPORTED_ERRORS: usize = 1_000;

/// The position and the width of a value in the source text of a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct SourceSpan {
    /// The line number, counted from 1; 0 if the position is unknown.
    pub line: u64,
    /// The column in characters, counted from 1; 0 if the position is unknown.
    pub column: u64,
    /// The width in characters.
    pub width: u64,
}

impl SourceSpan {
    /// Returns a span whose position is inside of a text. `lines` are the lines of the text. A span after the last line
    /// is moved to the end of the last line, and a span with an unknown position to the beginning of the text.
    fn clamp_to_text(self, lines: &[&str]) -> Self {
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

/// The errors or warnings that were found in the text of a policy.
pub(super) struct Diagnostics<'s> {
    lines: Vec<&'s str>,
    entries: RefCell<Vec<(SourceSpan, String)>>,
    /// Whether errors beyond [`MAX_REPORTED_ERRORS`] were dropped.
    is_truncated: Cell<bool>,
}

impl<'s> Diagnostics<'s> {
    /// Creates an empty list of diagnostics for the policy with the text `source`.
    pub(super) fn new(source: &'s str) -> Self {
        Self {
            lines: source.lines().collect(),
            entries: RefCell::default(),
            is_truncated: Cell::new(false),
        }
    }

    /// Adds an error at a position, unless an error with the same message was added at this position before. Drops the
    /// error if there are [`MAX_REPORTED_ERRORS`] errors.
    pub(super) fn push(&self, at: SourceSpan, message: impl fmt::Display) {
        let mut entries = self.entries.borrow_mut();
        if entries.len() == MAX_REPORTED_ERRORS {
            self.is_truncated.set(true);
            return;
        }
        let message = escape_control_chars(&message.to_string());
        let is_same =
            |(span, known_message): &(SourceSpan, String)| *span == at && *known_message == message;
        // An error in a limit that overrides inherit from their rule is found once for each of them, but is added only
        // once.
        if !entries.iter().any(is_same) {
            entries.push((at, message));
        }
    }

    /// Returns `true` if no error was added.
    pub(super) fn is_empty(&self) -> bool {
        self.entries.borrow().is_empty()
    }

    /// Returns the errors, in the order of the file; `None` if no error was added.
    pub(super) fn into_errors(self) -> Option<PolicyErrors> {
        Some(PolicyErrors(self.into_policy_errors())).filter(|errors| !errors.0.is_empty())
    }

    /// Returns the entries of the list as warnings, in the order of the file.
    pub(super) fn into_warnings(self) -> Arc<[PolicyWarning]> {
        self.into_policy_errors().into_iter().map(PolicyWarning).collect()
    }

    fn into_policy_errors(self) -> Vec<PolicyError> {
        let mut entries = self.entries.into_inner();
        entries.sort_by_key(|(at, _)| (at.line, at.column));
        if let Some(&(last, _)) = entries.last().filter(|_| self.is_truncated.get()) {
            let message =
                format!("more errors follow after these {MAX_REPORTED_ERRORS}; fix these first");
            entries.push((last, message));
        }
        let errors =
            entries.into_iter().map(|(at, message)| PolicyError::new(at, message, &self.lines));
        errors.collect()
    }
}

/// One error in a policy, with its position in the source text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line number of the error, from 1.
    pub line: u64,
    /// The column of the error in characters, from 1.
    pub column: u64,
    /// The problem and its remedy, as text for the author of the policy.
    pub message: String,
    /// The source line of the error and a line below it that marks the position with `^`. Empty if the policy has no
    /// lines.
    excerpt: String,
}

impl PolicyError {
    /// Creates an error in a text that consists of `lines`. Its excerpt shows the line of the error.
    fn new(span: SourceSpan, message: String, lines: &[&str]) -> Self {
        let span = span.clamp_to_text(lines);
        let SourceSpan { line, column, .. } = span;
        Self { line, column, message, excerpt: format_excerpt(span, lines).unwrap_or_default() }
    }

    /// Returns the source line of the error with its number, and a line below it that marks the position with `^`.
    /// Returns an empty text if the policy has no lines.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

/// A warning about a valid policy, with its source position. The policy has a counter that a client can evade, or a
/// part that never has an effect.
///
/// The [`Display`](fmt::Display) form has three lines, for a terminal. For a log, use [`line`](Self::line),
/// [`column`](Self::column) and [`message`](Self::message), which is one line:
///
/// ```
/// use slidegate::Policy;
///
/// let policy = Policy::from_yaml("rules: [{ name: a, per: [header.x-api-key], limits: [9/s] }]")?;
/// let warning = &policy.warnings()[0];
/// assert_eq!((warning.line(), warning.column()), (1, 26));
/// assert!(warning.message().contains("the client chooses `header.x-api-key`"));
/// eprintln!("policy:{}:{}: {}", warning.line(), warning.column(), warning.message());
/// # Ok::<(), slidegate::PolicyErrors>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyWarning(PolicyError);

impl PolicyWarning {
    /// Returns the line number of the warning, from 1.
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

    /// Returns the source line of the warning with its number, and a line below it that marks the position with `^`.
    pub fn excerpt(&self) -> &str {
        self.0.excerpt()
    }
}

/// Formats the warning as `12:5: warning: message` with line and column, followed by the excerpt of the source text.
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

/// Escapes the control characters of a text. The file may come from an untrusted source, and a terminal would execute
/// control characters in an error message.
fn escape_control_chars(text: &str) -> String {
    let escape_control_chars = |char: char| {
        if char.is_control() { char.escape_default().to_string() } else { char.to_string() }
    };
    text.chars().map(escape_control_chars).collect()
}

fn format_excerpt(span: SourceSpan, lines: &[&str]) -> Option<String> {
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
        escape_control_chars(text.trim_end()),
        "",
        " ".repeat(column_index - skipped)
    ))
}

/// Formats the error as `12:5: message` with line and column, followed by the excerpt of the source text.
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
    /// Creates the error that is returned if reading a policy fails although no error was reported.
    pub(super) fn unexplained_failure() -> Self {
        let message = "the policy cannot be read".to_owned();
        Self(vec![PolicyError::new(SourceSpan::default(), message, &[])])
    }
}
