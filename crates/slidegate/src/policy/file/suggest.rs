//! Suggests corrections of misspelt names in a policy, and formats lists of names for error messages.

/// The maximum length of a word for which a correction is searched, in bytes. The time to compare two words is
/// proportional to the product of their lengths.
const MAX_SUGGESTION_WORD_BYTES: usize = 128;

/// The minimum similarity between a word and its suggested correction. 0 is no similarity, 1 is equality.
const MIN_SUGGESTION_SIMILARITY: f64 = 0.8;

/// Returns the known word that is most similar to `word`; `None` if no known word is similar enough.
pub fn most_similar_word<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    if word.len() > MAX_SUGGESTION_WORD_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let similarity = |candidate: &str| match strsim::osa_distance(&word, candidate) {
        // A single typing error, in a word that is long enough.
        1 if candidate.len() > 2 => 1.0,
        _ => strsim::jaro_winkler(&word, candidate),
    };
    let known = known.into_iter().filter(|candidate| candidate.len() <= MAX_SUGGESTION_WORD_BYTES);
    let known = known.map(|candidate| (candidate, similarity(candidate)));
    let closest = known.max_by(|left, right| left.1.total_cmp(&right.1))?;
    (closest.1 >= MIN_SUGGESTION_SIMILARITY).then_some(closest.0)
}

/// Formats the end of an error message that suggests a correction, ``: did you mean `x`?``. Returns an empty text if no
/// known word is similar enough.
pub(super) fn format_did_you_mean<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> String {
    most_similar_word(word, known).map_or_else(String::new, |most_similar_word| {
        format!(": did you mean `{most_similar_word}`?")
    })
}

pub(super) fn unknown_name_message(word: &str, known: &[&str]) -> String {
    let hint = format_did_you_mean(word, known.iter().copied());
    match hint.is_empty() {
        true => format!("`{word}` is not {}", format_one_of(known)),
        false => format!("`{word}` is not {}{hint}", format_one_of(known)),
    }
}

pub(super) fn unknown_field_message(word: &str, fields: &[&str]) -> String {
    match most_similar_word(word, fields.iter().copied()) {
        Some(most_similar_word) => {
            format!("there is no field `{word}` here: did you mean `{most_similar_word}`?")
        }
        None => format!(
            "there is no field `{word}` here: there is {}",
            format_quoted_list(fields, "and")
        ),
    }
}

/// Formats a list of words, such as ``one of `a`, `b` or `c` ``.
pub(super) fn format_one_of(words: &[&str]) -> String {
    format!("one of {}", format_quoted_list(words, "or"))
}

fn format_quoted_list(words: &[&str], conjunction: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match &quoted[..] {
        [] => String::new(),
        [only] => only.clone(),
        [first @ .., end] => format!("{} {conjunction} {end}", first.join(", ")),
    }
}
