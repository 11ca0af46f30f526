//! What a misspelt word was meant to be.

/// Bytes of a word that anybody may have misspelt. To compare two takes the product of their lengths.
const MAX_BYTES: usize = 128;

/// How much alike two words have to be, from 0 to 1.
const ALIKE: f64 = 0.8;

/// The word that was most likely meant.
pub(super) fn closest_match<'w>(
    word: &str,
    known: impl IntoIterator<Item = &'w str>,
) -> Option<&'w str> {
    if word.len() > MAX_BYTES {
        return None;
    }
    let word = word.to_lowercase();
    let alike = |other: &str| match strsim::osa_distance(&word, other) {
        // One slip of the finger, in words that are long enough to tell.
        1 if other.len() > 2 => 1.0,
        _ => strsim::jaro_winkler(&word, other),
    };
    let known = known.into_iter().filter(|other| other.len() <= MAX_BYTES);
    let known = known.map(|other| (other, alike(other)));
    let best = known.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (best.1 >= ALIKE).then_some(best.0)
}

/// ``: did you mean `x`?``, or nothing.
pub(super) fn did_you_mean<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> String {
    closest_match(word, known)
        .map_or_else(String::new, |closest_match| format!(": did you mean `{closest_match}`?"))
}

pub(super) fn not_one_of(word: &str, known: &[&str]) -> String {
    let hint = did_you_mean(word, known.iter().copied());
    match hint.is_empty() {
        true => format!("`{word}` is not {}", one_of(known)),
        false => format!("`{word}` is not {}{hint}", one_of(known)),
    }
}

pub(super) fn no_field(word: &str, fields: &[&str]) -> String {
    match closest_match(word, fields.iter().copied()) {
        Some(closest_match) => {
            format!("there is no field `{word}` here: did you mean `{closest_match}`?")
        }
        None => format!("there is no field `{word}` here: there is {}", listed(fields, "and")),
    }
}

/// ``one of `a`, `b` or `c` ``
pub(super) fn one_of(words: &[&str]) -> String {
    format!("one of {}", listed(words, "or"))
}

fn listed(words: &[&str], last: &str) -> String {
    let quoted: Vec<String> = words.iter().map(|word| format!("`{word}`")).collect();
    match &quoted[..] {
        [] => String::new(),
        [one] => one.clone(),
        [most @ .., end] => format!("{} {last} {end}", most.join(", ")),
    }
}
