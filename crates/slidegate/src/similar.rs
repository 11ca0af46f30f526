//! Finds the known word that a misspelled word probably means.

/// The maximum length, in bytes, of the words that are compared. The bound limits the time of a comparison, which is
/// proportional to the product of the lengths.
const MAX_SUGGESTION_WORD_BYTES: usize = 128;

/// The minimum similarity between a word and its suggested correction. 0 is no similarity, 1 is equality.
const MIN_SUGGESTION_SIMILARITY: f64 = 0.8;

/// Returns the known word that is most similar to `word`; `None` if no known word is similar enough. `word` is
/// converted to lower case, so a known word that contains upper case is less similar.
pub fn most_similar_word<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    most_similar_by(word, known, similarity)
}

/// Returns the known word that is most similar to `word`, as [`most_similar_word`] does, without regard to upper and lower
/// case in known words.
pub fn most_similar_word_in_any_case<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    most_similar_by(word, known, |candidate, word| similarity(&candidate.to_lowercase(), word))
}

fn most_similar_by<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
    similarity: impl Fn(&str, &str) -> f64,
) -> Option<&'w str> {
    if word.len() > MAX_SUGGESTION_WORD_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let known = known.into_iter().filter(|candidate| candidate.len() <= MAX_SUGGESTION_WORD_BYTES);
    let known = known.map(|candidate| (candidate, similarity(candidate, &word)));
    let closest = known.max_by(|left, right| left.1.total_cmp(&right.1))?;
    (closest.1 >= MIN_SUGGESTION_SIMILARITY).then_some(closest.0)
}

fn similarity(candidate: &str, word: &str) -> f64 {
    match strsim::osa_distance(word, candidate) {
        // A single typing error counts as equality, except in known words of one or two bytes.
        1 if candidate.len() > 2 => 1.0,
        _ => strsim::jaro_winkler(word, candidate),
    }
}
