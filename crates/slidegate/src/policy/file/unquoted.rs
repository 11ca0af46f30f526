//! Recognizes values that must be quoted in YAML: values with special characters, which YAML reads as aliases, anchors,
//! tags, maps or lists.

use super::node::YamlError;
use super::yaml_error::ErrorPosition;

/// The maximum number of bytes of a tag or an anchor that is searched before a value.
const MAX_INDICATOR_BYTES: usize = 128;

/// Describes an unquoted value at the position of an error, or around it. Returns `None` if the value there needs no
/// quotes.
pub(super) fn describe_unquoted_value(
    position: ErrorPosition<'_>,
    message: &str,
) -> Option<YamlError> {
    let is_flow = is_in_flow(position.before);
    let first = position.after.chars().next()?;
    let before = position.line_before();
    let back = match first {
        ':' => colon_value_start(before, is_flow)?,
        _ => brace_value_start(before, first, is_flow).unwrap_or(0),
    };
    let value = format!("{}{}", &before[before.len() - back..], position.line_after());
    let value = plain_value(&value, is_flow);
    let describe =
        |message: String| Some(YamlError { span: position.span_of(back, value), message });
    let quoted = quote(value);
    let is_alias_error = message.contains("unknown anchor") || message.contains("anchor or alias");
    let is_value_start = before.is_empty() || before.ends_with([' ', '[', '{', ',']);
    match first {
        ':' => describe(format!("`{value}` contains `: `; quote it: {quoted}")),
        _ if back > 0 => {
            let bracket = if value.contains('{') { '{' } else { '[' };
            describe(format!("`{value}` contains `{bracket}`; quote it: {quoted}"))
        }
        _ if !is_value_start => None,
        // Other errors of aliases are about their number.
        '*' if !is_alias_error => None,
        '*' => describe(format!("YAML reads `{value}` as an alias; quote it: {quoted}")),
        '&' => describe(format!("YAML reads `{value}` as an anchor; quote it: {quoted}")),
        '!' => describe(tag_message(value, "")),
        '@' | '%' | '>' | '|' => {
            describe(format!("a YAML value cannot begin with `{first}`; quote it: {quoted}"))
        }
        '`' => describe(format!("a YAML value cannot begin with a backtick; quote it: {quoted}")),
        _ => None,
    }
}

/// Describes a tag or an anchor before a value that YAML reads as `value`, such as `!free` before nothing. Returns its
/// text and the message. `before` is the source text before the value.
pub(super) fn describe_indicator<'s>(
    before: &'s str,
    value: Option<&str>,
) -> Option<(&'s str, String)> {
    let before = before.trim_end_matches(' ');
    let is_delimiter = |byte: &u8| b" \t\n[{,".contains(byte);
    let length =
        before.bytes().rev().take(MAX_INDICATOR_BYTES).position(|byte| is_delimiter(&byte))?;
    let indicator = before.get(before.len() - length..)?;
    match indicator.as_bytes() {
        [b'!', b'!', ..] => None,
        [b'!', ..] => Some((indicator, tag_message(indicator, value.unwrap_or_default()))),
        [b'&', ..] if value.is_none() => {
            let quoted = quote(indicator);
            Some((indicator, format!("YAML reads `{indicator}` as an anchor; quote it: {quoted}")))
        }
        _ => None,
    }
}

/// Describes a map that is written as a word in braces, such as `{id}`. `source` begins with the map.
pub(super) fn describe_word_in_braces(source: &str) -> Option<String> {
    let (word, _) = source.strip_prefix('{')?.split_once('}')?;
    let value = &source[..word.len() + 2];
    is_parameter(word).then(|| format!("YAML reads `{value}` as a map; quote it: {}", quote(value)))
}

/// Returns the message for the tag at the start of `text`, before the value `value`.
fn tag_message(text: &str, value: &str) -> String {
    let negated = text.trim_start_matches(['!', '=']);
    let negated = match (negated, value) {
        ("" | "not", "") => "…",
        ("" | "not", value) => value,
        (negated, _) => negated,
    };
    let has_quotes = negated.starts_with(['"', '\'', '[']);
    let negated = match negated.contains(['{', '}', '[', ']', '*', '&', ':', ',']) && !has_quotes {
        true => quote(negated),
        false => negated.to_owned(),
    };
    format!("YAML reads `{text}` as a tag; to negate a condition, write {{ not: {negated} }}")
}

fn quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}

fn is_parameter(word: &str) -> bool {
    let name = word.strip_prefix('*').unwrap_or(word);
    !name.is_empty()
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-".contains(&byte))
}

/// Returns the number of bytes before a second colon that belong to the value, such as `/a` in `path: /a: b`.
fn colon_value_start(before: &str, is_flow: bool) -> Option<usize> {
    let start = match is_flow {
        true => before.rfind([' ', '[', '{', ','])? + 1,
        false => before.find(": ")? + 2,
    };
    let value = before[start..].trim_start();
    let has_key = before[..start].trim_end().ends_with(':');
    // A collection or a value with quotes is not a plain value.
    let is_plain = !value.is_empty() && !value.starts_with(['"', '\'', '{', '[']);
    (has_key && is_plain).then_some(value.len())
}

/// Returns the number of bytes before the position that belong to a value with braces or brackets. The position is at
/// the opening brace, after the closing brace, or at a `*` in braces. Returns `None` if there is no such value.
fn brace_value_start(before: &str, first: char, is_flow: bool) -> Option<usize> {
    let back = match first {
        '{' | '[' if is_flow => {
            before.len() - before.rfind([' ', '[', '{', ',']).map_or(0, |index| index + 1)
        }
        '*' if before.ends_with('{') => 1,
        _ if before.ends_with('}') && !" ,]}:".contains(first) => {
            let open = before.rfind('{')?;
            is_parameter(&before[open + 1..before.len() - 1]).then_some(before.len() - open)?
        }
        _ => 0,
    };
    let value = &before[before.len() - back..];
    (back > 0 && !value.starts_with(['"', '\''])).then_some(back)
}

/// Returns the part of `text` up to the end of the value that it begins with. A value in a flow collection also ends
/// at `,` and at the bracket that closes the collection.
fn plain_value(text: &str, is_flow: bool) -> &str {
    let (mut depth, mut previous) = (0_usize, ' ');
    let ends_value = |(_, char): &(usize, char)| {
        match char {
            '{' | '[' => depth += 1,
            '}' | ']' if depth > 0 => depth -= 1,
            '}' | ']' | ',' if is_flow && depth == 0 => return true,
            '#' if previous == ' ' => return true,
            _ => {}
        }
        previous = *char;
        false
    };
    let end = text.char_indices().find(ends_value).map_or(text.len(), |(index, _)| index);
    text[..end].trim_end()
}

/// Returns `true` if the end of the text is in a flow collection: a list in brackets, or a map in braces.
fn is_in_flow(text: &str) -> bool {
    let (mut depth, mut quote, mut is_comment, mut previous) = (0_usize, None, false, '\n');
    for char in text.chars() {
        let is_token_start = previous.is_whitespace() || "[{,".contains(previous);
        match (char, quote) {
            ('\n', _) => is_comment = false,
            _ if is_comment => {}
            (_, Some(mark)) if char == mark && previous != '\\' => quote = None,
            (_, Some(_)) => {}
            ('#', None) if previous.is_whitespace() => is_comment = true,
            ('"' | '\'', None) if is_token_start => quote = Some(char),
            ('[' | '{', None) if is_token_start => depth += 1,
            (']' | '}', None) => depth = depth.saturating_sub(1),
            _ => {}
        }
        previous = char;
    }
    depth > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flow_collections_are_recognized() {
        for text in ["a: [", "a: { b: [c], ", "[\n  x,\n", "a: [\"]\", '}', # ]\n", "- [it's, {"] {
            assert!(is_in_flow(text), "{text}");
        }
        for text in ["", "a: /b/{", "a: [b]\nc: ", "a: \"[\"", "# [\n", "a: b[", "a: ']{'\n"] {
            assert!(!is_in_flow(text), "{text}");
        }
    }

    #[test]
    fn plain_value_ends_with_its_collection() {
        assert_eq!(plain_value("/a/{b}/c, d]", true), "/a/{b}/c");
        assert_eq!(plain_value("* }", true), "*");
        assert_eq!(plain_value("[a, b], c }", true), "[a, b]");
        assert_eq!(plain_value("a, b} # c", false), "a, b}");
        assert_eq!(plain_value("a#b", false), "a#b");
    }

    #[test]
    fn tag_message_suggests_negation() {
        for (text, value, expected) in [
            ("!free", "", "{ not: free }"),
            ("!", "free", "{ not: free }"),
            ("!=", "free", "{ not: free }"),
            ("!=free", "", "{ not: free }"),
            ("!not", "free", "{ not: free }"),
            ("!not", "", "{ not: … }"),
            ("!/a/*", "", "{ not: '/a/*' }"),
            ("![a, b]", "", "{ not: [a, b] }"),
        ] {
            let message = tag_message(text, value);
            assert!(message.ends_with(expected), "{text} {value} gives {message}");
        }
    }
}
