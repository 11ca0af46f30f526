//! Describes YAML errors, with specific messages for the common ones: unquoted special characters, and tabs.

use serde_saphyr::Error;
use serde_saphyr::budget::BudgetBreach;

use super::node::{MAX_YAML_NODES, SourceSpan, YamlError};
use super::unquoted;

/// A position in the source text, as the parser reports it.
#[derive(Clone, Copy)]
pub(super) struct ErrorPosition<'s> {
    /// The text up to the position.
    pub(super) before: &'s str,
    /// The text after the position.
    pub(super) after: &'s str,
    pub(super) span: SourceSpan,
}

/// Describes an error of the YAML parser.
pub(super) fn describe(error: &Error, source: &str) -> YamlError {
    let error = error.without_snippet();
    let span = error
        .location()
        .map_or(SourceSpan::default(), |location| SourceSpan::from_location(&location));
    if let Some(message) = describe_by_kind(error) {
        return YamlError { span, message };
    }
    let message = error.to_string();
    // The span already contains the position.
    let suffix = format!(" at line {}, column {}", span.line, span.column);
    let message = message.strip_suffix(&suffix).unwrap_or(&message);
    let position = ErrorPosition::find(source, span);
    let described = position.and_then(|position| {
        describe_tab(source, span, message)
            .or_else(|| unquoted::describe_unquoted_value(position, message))
            .or_else(|| describe_missing_colon(position, message))
            .or_else(|| describe_missing_space(source, span, message))
    });
    described.unwrap_or_else(|| YamlError {
        span,
        message: format!(
            "invalid YAML: {message}; look here and above for an unclosed bracket or quote, wrong indentation, or a value that must be quoted"
        ),
    })
}

/// Describes errors whose messages in the parser are about its options.
fn describe_by_kind(error: &Error) -> Option<String> {
    match error {
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            Some(format!("`{key}` is written twice; remove one"))
        }
        Error::Budget { breach: BudgetBreach::Documents { .. }, .. } => Some(
            "the file has several YAML documents; remove `---` and the other documents".to_owned(),
        ),
        Error::Budget {
            breach: BudgetBreach::Nodes { .. } | BudgetBreach::Events { .. }, ..
        } => Some(format!("too many values in the file; the maximum is {MAX_YAML_NODES}")),
        _ => None,
    }
}

impl<'s> ErrorPosition<'s> {
    /// Splits the source text at a position. Returns `None` if the position is not in the text.
    fn find(source: &'s str, span: SourceSpan) -> Option<Self> {
        let line_index = usize::try_from(span.line.checked_sub(1)?).ok()?;
        let column_index = usize::try_from(span.column.checked_sub(1)?).ok()?;
        let line_start: usize =
            source.split_inclusive('\n').take(line_index).map(|line| line.len()).sum();
        let line = source.get(line_start..)?.lines().next()?;
        let column = line.char_indices().nth(column_index).map_or(line.len(), |(index, _)| index);
        let (before, after) = source.split_at_checked(line_start + column)?;
        Some(Self { before, after, span })
    }

    /// Returns the text of the line before the position.
    pub(super) fn line_before(&self) -> &'s str {
        self.before.rsplit('\n').next().unwrap_or_default()
    }

    /// Returns the text of the line after the position.
    pub(super) fn line_after(&self) -> &'s str {
        self.after.lines().next().unwrap_or_default()
    }

    /// Returns the span of the text that begins with the last `back` bytes before the position.
    pub(super) fn span_of(&self, back: usize, text: &str) -> SourceSpan {
        let skipped =
            self.before.len().checked_sub(back).and_then(|start| self.before.get(start..));
        let skipped = skipped.map_or(0, |skipped| skipped.chars().count() as u64);
        let column = self.span.column.saturating_sub(skipped);
        SourceSpan { column, width: text.chars().count() as u64, ..self.span }
    }
}

/// Describes an indentation with a tab, in the line of an error. For some of them, the position of the error is the
/// value in the line before.
fn describe_tab(source: &str, span: SourceSpan, message: &str) -> Option<YamlError> {
    let first = usize::try_from(span.line.checked_sub(1)?).ok()?;
    let lines = source.lines().zip(1..).skip(first).filter(|(line, _)| !line.trim().is_empty());
    let line_count = if message.contains("found a tab") { 2 } else { 1 };
    let (line, tab, number) = lines.take(line_count).find_map(|(line, number)| {
        let indentation = line.len() - line.trim_start_matches([' ', '\t']).len();
        Some((line, line[..indentation].find('\t')?, number))
    })?;
    let width = line[tab..].bytes().take_while(|byte| *byte == b'\t').count() as u64;
    Some(YamlError {
        span: SourceSpan { line: number, column: tab as u64 + 1, width },
        message: "the indentation contains a tab; use spaces".to_owned(),
    })
}

/// Describes a key without a colon, such as `limits [10/s]`.
fn describe_missing_colon(position: ErrorPosition<'_>, message: &str) -> Option<YamlError> {
    let (key, value) = position.line_after().split_once(' ')?;
    if !message.contains("expected ':'") || !is_key(key) || value.contains(':') {
        return None;
    }
    Some(YamlError {
        span: position.span_of(0, key),
        message: format!("`:` is missing after `{key}`; write `{key}: {}`", value.trim()),
    })
}

/// Describes a key whose colon is not followed by a space, such as `name:a`. The error is in the line after it.
fn describe_missing_space(source: &str, span: SourceSpan, message: &str) -> Option<YamlError> {
    let line_count = usize::try_from(span.line.checked_sub(1)?).ok()?;
    let lines = source.lines().zip(1..).take(line_count);
    let (line, number) = lines.filter(|(line, _)| !line.trim().is_empty()).last()?;
    let text = line.trim_start_matches([' ', '-']).trim_end();
    let (key, value) = text.split_once(':')?;
    let has_space = value.is_empty() || value.starts_with(' ') || value.contains(": ");
    if !message.contains("mapping values are not allowed") || !is_key(key) || has_space {
        return None;
    }
    let column = (line.trim_end().chars().count() - text.chars().count()) as u64 + 1;
    Some(YamlError {
        span: SourceSpan { line: number, column, width: text.chars().count() as u64 },
        message: format!("a space is missing after `{key}:`; write `{key}: {value}`"),
    })
}

/// Returns `true` if a text may be the name of a field.
fn is_key(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_')
}
