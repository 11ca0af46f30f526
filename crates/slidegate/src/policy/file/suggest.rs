//! Suggests corrections of unknown names in a policy, and formats lists of names for error messages.

use super::synonyms::{find_known_synonym, misplaced_field_advice};
pub use crate::similar::most_similar_word;

/// Returns the known word that `word` probably means: a word with the same meaning, or the most similar one.
fn closest_word<'w>(word: &str, known: &[&'w str]) -> Option<&'w str> {
    find_known_synonym(word, known).or_else(|| most_similar_word(word, known.iter().copied()))
}

/// Formats the end of an error message that suggests a correction, ``; did you mean `x`?``. Returns an empty text if no
/// known word is similar enough.
pub(super) fn format_did_you_mean<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> String {
    most_similar_word(word, known).map_or_else(String::new, |most_similar_word| {
        format!("; did you mean `{most_similar_word}`?")
    })
}

pub(super) fn unknown_value_message(word: &str, known: &[&str]) -> String {
    match closest_word(word, known) {
        Some(closest_word) => format!("unknown value `{word}`; did you mean `{closest_word}`?"),
        None => format!("unknown value `{word}`; write {}", format_alternatives(known)),
    }
}

pub(super) fn unknown_field_message(word: &str, fields: &[&str]) -> String {
    let closest_word = closest_word(word, fields);
    match (closest_word, misplaced_field_advice(word, fields), fields) {
        (Some(closest_word), _, _) => {
            format!("unknown field `{word}`; did you mean `{closest_word}`?")
        }
        (None, Some(place), _) => format!("unknown field `{word}`; write {place}"),
        (None, None, [only]) => format!("unknown field `{word}`; the only field here is `{only}`"),
        (None, None, _) => format!(
            "unknown field `{word}`; the fields here are {}",
            format_quoted_list(fields, "and")
        ),
    }
}

/// Returns the error message for a missing field. `example` is the field with a value, such as `max: 100`.
pub(super) fn missing_field_message(example: &str) -> String {
    let name = example.split(':').next().unwrap_or(example);
    format!("`{name}` is missing; add it, for example `{example}`")
}

/// Formats a list of words, such as `` `a`, `b` or `c` ``.
pub(super) fn format_alternatives(words: &[&str]) -> String {
    format_quoted_list(words, "or")
}

fn format_quoted_list(words: &[&str], conjunction: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match &quoted[..] {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., end] => format!("{} {conjunction} {end}", first.join(", ")),
    }
}
