//! The errors of invalid calendars, with the name that a misspelled name probably means.

use jiff::tz::TimeZoneDatabase;
use thiserror::Error;

use super::{Period, Weekday};
use crate::similar::{most_similar_word, most_similar_word_in_any_case};

/// An invalid calendar.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum CalendarError {
    /// There is no period of this name.
    #[error("`{0}` is not a period; {remedy}", remedy = period_remedy(.0))]
    Period(String),
    /// There is no day of this name.
    #[error("`{0}` is not a day of the week; {remedy}", remedy = weekday_remedy(.0))]
    Weekday(String),
    /// The time zone database has no time zone of this name.
    #[error("`{0}` is not a time zone; {remedy}", remedy = time_zone_remedy(.0))]
    TimeZone(String),
    /// Periods cannot begin at this date or time.
    #[error("`{text}` is not the start of a {period}; {remedy}", remedy = start_remedy(*.period))]
    Start {
        /// The invalid date or time.
        text: String,
        /// The kind of period that cannot begin at this date or time.
        period: Period,
    },
}

fn start_remedy(period: Period) -> &'static str {
    match period {
        Period::Day => "write a time such as `06:00`",
        Period::Week => "write a time such as `06:00`; `week_starts` is the day",
        Period::Month => "write a day such as `15`, a time such as `06:00`, or both: `15 06:00`",
        Period::Quarter | Period::Year => {
            "write month and day such as `04-06`, a time such as `06:00`, or both: `04-06 06:00`"
        }
    }
}

fn period_remedy(word: &str) -> String {
    let synonym = match &*word.to_lowercase() {
        "daily" | "d" => Some("day"),
        "weekly" | "w" => Some("week"),
        "monthly" => Some("month"),
        "quarterly" | "q" => Some("quarter"),
        "yearly" | "annual" | "annually" | "y" => Some("year"),
        _ => None,
    };
    match synonym.or_else(|| most_similar_word(word, Period::ALL.map(Period::name))) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "write `day`, `week`, `month`, `quarter` or `year`".to_owned(),
    }
}

fn weekday_remedy(word: &str) -> String {
    let lower = word.to_lowercase();
    let abbreviated = |day: &Weekday| lower.len() >= 2 && day.name().starts_with(&*lower);
    let day = Weekday::ALL.into_iter().find(abbreviated).map(Weekday::name);
    match day.or_else(|| most_similar_word(word, Weekday::ALL.map(Weekday::name))) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "write a day such as `monday` or `sunday`".to_owned(),
    }
}

fn time_zone_remedy(word: &str) -> String {
    let database = TimeZoneDatabase::bundled();
    let names: Vec<String> = database.available().map(|name| name.as_str().to_owned()).collect();
    // The text may be a city without its continent, such as `Berlin` or `New York`.
    let city = word.replace(' ', "_");
    let last_part = |name: &&String| {
        name.rsplit_once('/').is_some_and(|(_, last)| last.eq_ignore_ascii_case(&city))
    };
    let found = names.iter().find(last_part).map(String::as_str);
    match found.or_else(|| most_similar_word_in_any_case(&city, names.iter().map(String::as_str))) {
        Some(name) => format!("did you mean `{name}`?"),
        None => "write a name of the IANA time zone database, such as `Europe/Berlin` or `UTC`"
            .to_owned(),
    }
}
