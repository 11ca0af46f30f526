//! Suggests corrections of quotas and windows in other notations, such as `10 per minute` and `10rpm`.

use super::{Quota, WINDOW_TIME_UNITS};

/// Time units in the notation of policies, each with other words for it.
const TIME_UNIT_SYNONYMS: [(&str, &[&str]); 6] = [
    ("ms", &["msec", "msecs", "milli", "millis", "millisecond", "milliseconds"]),
    ("s", &["sec", "secs", "second", "seconds"]),
    ("min", &["mins", "minute", "minutes"]),
    ("h", &["hr", "hrs", "hour", "hours", "hourly"]),
    ("d", &["day", "days", "daily"]),
    ("w", &["wk", "week", "weeks", "weekly"]),
];

/// Periods of the calendar whose length varies, each with other words for it and the window of about its length.
const CALENDAR_PERIOD_SYNONYMS: [(&str, &[&str], &str); 3] = [
    ("month", &["mo", "mon", "mth", "mths", "mos", "month", "months", "monthly"], "30d"),
    ("quarter", &["q", "qtr", "quarter", "quarters", "quarterly"], "90d"),
    ("year", &["y", "yr", "yrs", "year", "years", "yearly", "annum"], "365d"),
];

/// Abbreviations of rates, each with the time unit in the notation of policies.
const RATE_ABBREVIATIONS: [(&str, &str); 7] = [
    ("rps", "s"),
    ("qps", "s"),
    ("tps", "s"),
    ("rpm", "min"),
    ("qpm", "min"),
    ("rph", "h"),
    ("rpd", "d"),
];

/// Names of the counted units, such as `requests`, that a text may contain. A quota in a policy has no such name.
const COUNTED_UNIT_NAMES: [&str; 12] = [
    "r", "req", "reqs", "request", "requests", "call", "calls", "hit", "hits", "unit", "units",
    "times",
];

/// Words between the maximum and the window of a quota.
const QUOTA_SEPARATORS: [&str; 6] = ["/", "per", "every", "each", "in", "a"];

/// Returns the quotas that a text in another notation may mean, in the notation of policies: `10/min` for
/// `10 requests per minute`, and `10/30d` and `{ max: 10, calendar: month }` for `10/month`. Returns none if the
/// meaning is not clear.
pub(crate) fn closest_quotas(text: &str) -> Vec<String> {
    let Some((max, window)) = split_max_and_window(text) else { return Vec::new() };
    if let Some((period, window)) = closest_calendar_period(&window) {
        let quotas = [format!("{max}/{window}"), format!("{{ max: {max}, calendar: {period} }}")];
        return if Quota::parse(&quotas[0]).is_ok() { quotas.into() } else { Vec::new() };
    }
    let quota = closest_window(&window).map(|window| format!("{max}/{window}"));
    quota.into_iter().filter(|quota| Quota::parse(quota).is_ok()).collect()
}

/// Returns the digits of the maximum and the text of the window; `None` if the text has other parts.
fn split_max_and_window(text: &str) -> Option<(String, String)> {
    let text = text.to_lowercase().replace('/', " / ");
    let (max, rest) = split_number(&text);
    let mut words = rest.split_whitespace().peekable();
    words.next_if(|word| COUNTED_UNIT_NAMES.contains(word));
    let word = words.next()?;
    let abbreviation = RATE_ABBREVIATIONS.iter().find(|(abbreviation, _)| *abbreviation == word);
    let window = match abbreviation {
        Some((_, unit)) if words.peek().is_none() => (*unit).to_owned(),
        None if QUOTA_SEPARATORS.contains(&word) => words.collect::<Vec<_>>().join(" "),
        _ => return None,
    };
    Some((max, window))
}

/// Returns the period of the calendar that a text such as `month` or `1 yr` means, and the window of about its length.
pub(super) fn closest_calendar_period(text: &str) -> Option<(&'static str, &'static str)> {
    let text = text.to_lowercase();
    let (number, unit) = split_number(&text);
    let (period, _, window) =
        CALENDAR_PERIOD_SYNONYMS.iter().find(|(_, words, _)| words.contains(&unit.trim()))?;
    matches!(&*number, "" | "1").then_some((period, window))
}

/// Returns the window that a text in another notation probably means, in the notation of policies: `5min` for
/// `5 minutes`. Returns `None` if the meaning is not clear.
pub(super) fn closest_window(text: &str) -> Option<String> {
    let text = text.to_lowercase();
    let (number, unit) = split_number(&text);
    let unit = unit.trim();
    let is_known = |known: &str| known == unit;
    let unit = match TIME_UNIT_SYNONYMS.iter().find(|(_, words)| words.contains(&unit)) {
        Some((unit, _)) => unit,
        None if unit == "min" || WINDOW_TIME_UNITS.iter().any(|(name, _)| is_known(name)) => unit,
        None => return None,
    };
    let window = format!("{number}{unit}");
    Quota::parse(&format!("1/{window}")).is_ok().then_some(window)
}

/// Splits a text into the digits of the number at its start and the rest. Removes `_` and `,` between the digits, and
/// converts the suffix `k`, as in `10k`, to three zeros.
fn split_number(text: &str) -> (String, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '_' && c != ',');
    let (number, rest) = text.split_at(end.unwrap_or(text.len()));
    let digits = number.replace(['_', ','], "");
    let mut after_k = rest.strip_prefix('k').unwrap_or("x").chars();
    match after_k.next() {
        None | Some(' ') if !digits.is_empty() => (format!("{digits}000"), &rest[1..]),
        _ => (digits, rest),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_quota_notation_has_closest_quota() {
        for (text, expected) in [
            ("10/minute", "10/min"),
            ("10/Minutes", "10/min"),
            ("10 per minute", "10/min"),
            ("10 / 1 min", "10/1min"),
            ("10rpm", "10/min"),
            ("10 rps", "10/s"),
            ("10r/s", "10/s"),
            ("10 requests per hour", "10/h"),
            ("10 every 5 minutes", "10/5min"),
            ("10/15 minutes", "10/15min"),
            ("10/sec", "10/s"),
            ("10/secs", "10/s"),
            ("10/hrs", "10/h"),
            ("10/days", "10/d"),
            ("10/week", "10/w"),
            ("10/500 millis", "10/500ms"),
            ("10_000/min", "10000/min"),
            ("10,000/h", "10000/h"),
            ("10k/day", "10000/d"),
            ("10k per day", "10000/d"),
        ] {
            assert_eq!(closest_quotas(text), [expected], "{text}");
        }
    }

    #[test]
    fn long_period_has_two_closest_quotas() {
        for (text, max, window, period) in [
            ("10/month", 10, "30d", "month"),
            ("1/Month", 1, "30d", "month"),
            ("100/mo", 100, "30d", "month"),
            ("100/1 month", 100, "30d", "month"),
            ("10k per quarter", 10_000, "90d", "quarter"),
            ("100/y", 100, "365d", "year"),
        ] {
            let calendar_limit = format!("{{ max: {max}, calendar: {period} }}");
            assert_eq!(closest_quotas(text), [format!("{max}/{window}"), calendar_limit], "{text}");
        }
    }

    #[test]
    fn unclear_quota_has_no_closest_quota() {
        for text in [
            "",
            "10",
            "ten/min",
            "/min",
            "10/",
            "10/fortnight",
            "10/60",
            "10/min/ip",
            "10/2 months",
            "99999999999999999999999/month",
            "10 minutes",
            "-1/s",
            "1.5/s",
            "10/min per ip",
            "k/s",
            "99999999999999999/s",
            "10/0s",
            "10 kk/s",
            "10ö/s",
            "10/ö",
        ] {
            assert_eq!(closest_quotas(text), [""; 0], "{text}");
        }
    }
}
