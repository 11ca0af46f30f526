//! Mistakes and warnings of a policy, with their places.

use std::cell::{Cell, RefCell};
use std::fmt;
use std::sync::Arc;

use thiserror::Error;

/// Characters of a line that are shown.
const SHOWN: usize = 120;

/// Mistakes that are told of one text. Who has more has another problem than to find them.
pub(super) const MAX_TOLD: usize = 1_000;

/// Where something stands.
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
    /// The same within a text of these lines. What is missing at its end stands behind its last line; what
    /// has no place, at its beginning.
    fn within(self, lines: &[&str]) -> Self {
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

/// The mistakes that are found in a text.
pub(super) struct Diagnostics<'s> {
    lines: Vec<&'s str>,
    found: RefCell<Vec<(SourceSpan, String)>>,
    /// Whether there are more than are told.
    more: Cell<bool>,
}

impl<'s> Diagnostics<'s> {
    /// None as yet.
    pub(super) fn new(source: &'s str) -> Self {
        Self { lines: source.lines().collect(), found: RefCell::default(), more: Cell::new(false) }
    }

    /// Notes a mistake, once.
    pub(super) fn note(&self, at: SourceSpan, message: impl fmt::Display) {
        let mut found = self.found.borrow_mut();
        if found.len() == MAX_TOLD {
            self.more.set(true);
            return;
        }
        let message = printable(&message.to_string());
        let known = |(place, told): &(SourceSpan, String)| *place == at && *told == message;
        // What a rule and its overrides share is read for each of them.
        if !found.iter().any(known) {
            found.push((at, message));
        }
    }

    /// Whether nothing was noted.
    pub(super) fn is_empty(&self) -> bool {
        self.found.borrow().is_empty()
    }

    /// What was wrong, in the order of the file.
    pub(super) fn into_errors(self) -> Option<PolicyErrors> {
        Some(PolicyErrors(self.into_located())).filter(|errors| !errors.0.is_empty())
    }

    /// The notes as warnings, in the order of the file.
    pub(super) fn into_warnings(self) -> Arc<[PolicyWarning]> {
        self.into_located().into_iter().map(PolicyWarning).collect()
    }

    fn into_located(self) -> Vec<PolicyError> {
        let mut found = self.found.into_inner();
        found.sort_by_key(|(at, _)| (at.line, at.column));
        if let Some(&(last, _)) = found.last().filter(|_| self.more.get()) {
            found.push((last, format!("there are more mistakes than these {MAX_TOLD}")));
        }
        let located =
            found.into_iter().map(|(at, message)| PolicyError::new(at, message, &self.lines));
        located.collect()
    }
}

/// One mistake in a policy, and where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicyError {
    /// The line, from 1.
    pub line: u64,
    /// The column, from 1.
    pub column: u64,
    /// What is wrong, and what would be right.
    pub message: String,
    /// The line as it is written, and below it a mark.
    excerpt: String,
}

impl PolicyError {
    /// A mistake in a text of these lines.
    fn new(place: SourceSpan, message: String, lines: &[&str]) -> Self {
        let place = place.within(lines);
        let SourceSpan { line, column, .. } = place;
        Self { line, column, message, excerpt: excerpt(place, lines).unwrap_or_default() }
    }

    /// The line as it is written with its number, and below it a mark: two lines; or nothing, if the
    /// text has no lines.
    pub fn excerpt(&self) -> &str {
        &self.excerpt
    }
}

/// A warning about a part of a valid policy, with its place: a rule that can be evaded or never applies.
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
    /// The line, from 1.
    pub fn line(&self) -> u64 {
        self.0.line
    }

    /// The column in characters, from 1.
    pub fn column(&self) -> u64 {
        self.0.column
    }

    /// The problem and its remedy.
    pub fn message(&self) -> &str {
        &self.0.message
    }

    /// The line as it is written with its number, and below it a mark.
    pub fn excerpt(&self) -> &str {
        self.0.excerpt()
    }
}

/// `12:5: warning: message`, and the line below.
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

/// A terminal obeys control characters, and the file may be anybody's.
fn printable(text: &str) -> String {
    let printable = |char: char| match char.is_control() {
        true => char.escape_default().to_string(),
        false => char.to_string(),
    };
    text.chars().map(printable).collect()
}

fn excerpt(place: SourceSpan, lines: &[&str]) -> Option<String> {
    let nth = usize::try_from(place.line.checked_sub(1)?).ok()?;
    let before = usize::try_from(place.column.checked_sub(1)?).ok()?;
    let line = lines.get(nth)?;
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
        write!(f, "{}:{}: {}", self.line, self.column, self.message)?;
        match &*self.excerpt {
            "" => Ok(()),
            excerpt => write!(f, "\n{excerpt}"),
        }
    }
}

/// Why a policy cannot be: every mistake that was found, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct PolicyErrors(pub Vec<PolicyError>);

impl PolicyErrors {
    /// Something is wrong that nobody has noted.
    pub(super) fn unknown() -> Self {
        let message = "the policy cannot be read".to_owned();
        Self(vec![PolicyError::new(SourceSpan::default(), message, &[])])
    }
}
