//! Compares the documented output of a command with its actual output.
//!
//! - `[…]` matches any text.
//! - Numbers that depend on time match any number. They are the numbers in `retry-after: 10`, `t=10`,
//!   `x-ratelimit-reset: 10` and `…_after_ms":9995`.
//! - The headers `content-length` and `date` are ignored.

/// Texts that precede a time-dependent number in the output.
const TIME_DEPENDENT_NUMBER_PREFIXES: [&str; 4] =
    ["_after_ms\":", ";t=", "retry-after: ", "ratelimit-reset: "];

pub fn compare_output(documented: &str, actual: &str) -> Result<(), String> {
    let (pattern, output) = (
        mask_time_dependent_numbers(documented),
        mask_time_dependent_numbers(&remove_ignored_headers(actual)),
    );
    if matches_pattern(pattern.trim_end(), output.trim_end()) {
        Ok(())
    } else {
        Err(format!("documented:\n{documented}actual:\n{actual}"))
    }
}

/// Removes the header lines `content-length` and `date`, and trailing spaces of each line.
fn remove_ignored_headers(text: &str) -> String {
    let is_compared =
        |line: &&str| !line.starts_with("content-length: ") && !line.starts_with("date: ");
    text.lines().filter(is_compared).map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Replaces each time-dependent number, which follows a text in [`TIME_DEPENDENT_NUMBER_PREFIXES`], with `N`.
fn mask_time_dependent_numbers(text: &str) -> String {
    let replace = |text: String, prefix: &str| {
        let mut parts = text.split(prefix);
        let mut replaced = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let rest = part.trim_start_matches(|char: char| char.is_ascii_digit());
            let number = if rest.len() < part.len() { "N" } else { "" };
            replaced = format!("{replaced}{prefix}{number}{rest}");
        }
        replaced
    };
    TIME_DEPENDENT_NUMBER_PREFIXES.into_iter().fold(text.to_owned(), replace)
}

/// Returns `true` if a text matches a pattern. In the pattern, `[…]` matches any text.
///
/// A part between two `[…]` matches at its first occurrence in the rest of the text. The last part must match at the
/// end.
fn matches_pattern(pattern: &str, text: &str) -> bool {
    let mut parts: Vec<&str> = pattern.split("[…]").collect();
    let last = parts.pop().unwrap_or_default();
    let Some((first, middle)) = parts.split_first() else { return last == text };
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    for part in middle {
        let Some((_, after)) = rest.split_once(part) else { return false };
        rest = after;
    }
    rest.ends_with(last)
}

#[test]
fn output_comparison_ignores_only_times_and_ellipses() {
    let output = "HTTP/1.1 429 Too\r\nratelimit: \"a\";r=0;t=10\r\nretry-after: 9\r\ndate: now\r\ncontent-length: 5\r\n\r\n{\"a\":[1,2],\"retry_after_ms\":8}";
    let head = "HTTP/1.1 429 Too\nratelimit: \"a\";r=0;t=7\nretry-after: 10\n\n";
    for (documented, is_match) in [
        (format!("{head}{{\"a\":[…],\"retry_after_ms\":99}}\n"), true),
        ("[…]\n\n{\"a\":[1,2],\"retry_after_ms\":99}\n".to_owned(), true),
        (format!("{head}{{\"a\":[1,2],\"retry_after_ms\":null}}\n"), false),
        (format!("{head}{{\"a\":[1,3],\"retry_after_ms\":8}}\n"), false),
        (format!("{head}[…]\"b\"[…]\n"), false),
        (head.replace("r=0", "r=1") + "[…]", false),
        (head.replace("retry-after: 10\n", "") + "[…]", false),
    ] {
        assert_eq!(compare_output(&documented, output).is_ok(), is_match, "{documented}");
    }
}
