//! What a document says that a command prints, and what it prints.
//!
//! - `[…]` stands for anything.
//! - Times that pass while the test runs are not compared: of `retry-after: 10`, `t=10`,
//!   `x-ratelimit-reset: 10` and JSON's `…_after_ms":9995` only that a number stands there.
//! - The headers `content-length` and `date` are left out.

/// What stands before a number that depends on time.
const BEFORE_TIMES: [&str; 4] = ["_after_ms\":", ";t=", "retry-after: ", "ratelimit-reset: "];

pub fn compare(document: &str, found: &str) -> Result<(), String> {
    let (wanted, plain) = (without_times(document), without_times(&without_headers(found)));
    match matches(wanted.trim_end(), plain.trim_end()) {
        true => Ok(()),
        false => Err(format!("should be\n{document}but is\n{found}")),
    }
}

fn without_headers(text: &str) -> String {
    let told = |line: &&str| !line.starts_with("content-length: ") && !line.starts_with("date: ");
    text.lines().filter(told).map(|line| format!("{}\n", line.trim_end())).collect()
}

fn without_times(text: &str) -> String {
    let one = |text: String, before: &str| {
        let mut parts = text.split(before);
        let mut plain = parts.next().unwrap_or_default().to_owned();
        for part in parts {
            let behind = part.trim_start_matches(|char: char| char.is_ascii_digit());
            let number = if behind.len() < part.len() { "N" } else { "" };
            plain = format!("{plain}{before}{number}{behind}");
        }
        plain
    };
    BEFORE_TIMES.into_iter().fold(text.to_owned(), one)
}

/// Takes each part between `[…]` at its first place, and the last at the end.
fn matches(wanted: &str, found: &str) -> bool {
    let mut parts: Vec<&str> = wanted.split("[…]").collect();
    let last = parts.pop().unwrap_or_default();
    let Some((first, between)) = parts.split_first() else { return last == found };
    let Some(mut rest) = found.strip_prefix(first) else { return false };
    for part in between {
        let Some((_, behind)) = rest.split_once(part) else { return false };
        rest = behind;
    }
    rest.ends_with(last)
}

#[test]
fn only_times_dates_and_ellipses_may_differ() {
    let found = "HTTP/1.1 429 Too\r\nratelimit: \"a\";r=0;t=10\r\nretry-after: 9\r\ndate: now\r\ncontent-length: 5\r\n\r\n{\"a\":[1,2],\"retry_after_ms\":8}";
    let head = "HTTP/1.1 429 Too\nratelimit: \"a\";r=0;t=7\nretry-after: 10\n\n";
    for (wanted, right) in [
        (format!("{head}{{\"a\":[…],\"retry_after_ms\":99}}\n"), true),
        ("[…]\n\n{\"a\":[1,2],\"retry_after_ms\":99}\n".to_owned(), true),
        (format!("{head}{{\"a\":[1,2],\"retry_after_ms\":null}}\n"), false),
        (format!("{head}{{\"a\":[1,3],\"retry_after_ms\":8}}\n"), false),
        (format!("{head}[…]\"b\"[…]\n"), false),
        (head.replace("r=0", "r=1") + "[…]", false),
        (head.replace("retry-after: 10\n", "") + "[…]", false),
    ] {
        assert_eq!(compare(&wanted, found).is_ok(), right, "{wanted}");
    }
}
