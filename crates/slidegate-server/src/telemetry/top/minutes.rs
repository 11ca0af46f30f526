//! Keeps a summary of the most frequent keys for each of the last minutes.

use slidegate::Timestamp;

use super::key_budget::{KeyBudget, KeyBudgetGuard};
use super::label::KeyLabel;
use super::summary::{MergedSummary, Summary};

/// Number of minutes that a report covers: the current minute and the minutes before it.
pub const WINDOW_MINUTES: u64 = 5;
/// Number of seconds in a minute.
pub const SECONDS_PER_MINUTE: u64 = 60;

/// A summary of the most frequent keys for each of the last minutes, oldest first.
#[derive(Debug, Default)]
pub struct MinuteSummaries(Vec<MinuteSummary>);

/// The summary of the most frequent keys in one minute.
#[derive(Debug)]
struct MinuteSummary {
    /// Number of minutes from the Unix epoch to the start of this minute.
    unix_minute: u64,
    summary: Summary<KeyLabel>,
    budget_guard: KeyBudgetGuard,
}

/// Returns the number of whole minutes from the Unix epoch to a time.
pub fn unix_minute(now: Timestamp) -> u64 {
    now.as_micros() / (SECONDS_PER_MINUTE * 1_000_000)
}

/// Returns `true` if a minute is one of the last [`WINDOW_MINUTES`] minutes up to the minute `newest`.
fn is_minute_in_report_window(unix_minute: u64, newest: u64) -> bool {
    unix_minute + WINDOW_MINUTES > newest
}

impl MinuteSummaries {
    /// Adds `amount` to the count of a key in the minute of `now`. A minute holds at most `capacity` keys, and no more
    /// than the budget allows. `write_label` is called only for a new key.
    pub fn record(
        &mut self,
        now: Timestamp,
        (key, amount): (u64, u64),
        (capacity, key_budget): (usize, &KeyBudget),
        write_label: impl FnOnce(&mut KeyLabel),
    ) {
        if let Some(MinuteSummary { summary, budget_guard, .. }) =
            self.find_or_create_minute_summary(unix_minute(now), key_budget)
        {
            summary.add(
                key,
                amount,
                |keys| keys < capacity && budget_guard.try_take(),
                write_label,
            );
        }
    }

    /// Returns the summary of a minute, and creates it if necessary. Returns `None` if the minute has expired. Accepts
    /// a minute before the newest one: a thread that read the clock earlier than another may call this function later.
    fn find_or_create_minute_summary(
        &mut self,
        unix_minute: u64,
        key_budget: &KeyBudget,
    ) -> Option<&mut MinuteSummary> {
        if let Some(index) = self.0.iter().rposition(|minute| minute.unix_minute == unix_minute) {
            return Some(&mut self.0[index]);
        }
        let newest = self.0.last().map_or(unix_minute, |last| last.unix_minute.max(unix_minute));
        self.remove_expired(newest);
        let index = self.0.partition_point(|minute| minute.unix_minute < unix_minute);
        is_minute_in_report_window(unix_minute, newest).then(|| {
            let minute = MinuteSummary {
                unix_minute,
                summary: Summary::default(),
                budget_guard: key_budget.guard(),
            };
            self.0.insert(index, minute);
            &mut self.0[index]
        })
    }

    /// Removes the minutes that have expired when `newest` is the current minute.
    pub fn remove_expired(&mut self, newest: u64) {
        self.0.retain(|minute| is_minute_in_report_window(minute.unix_minute, newest));
    }

    /// Returns `true` if there are no summaries.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges the summaries of the last minutes into one with at most `capacity` keys.
    pub fn merged(&self, now: Timestamp, capacity: usize) -> MergedSummary<&KeyLabel> {
        let now = unix_minute(now);
        let live =
            self.0.iter().filter(|minute| is_minute_in_report_window(minute.unix_minute, now));
        live.map(|minute| MergedSummary::from(&minute.summary))
            .fold(MergedSummary::default(), |merged, minute| merged.merge(minute, capacity))
    }
}
