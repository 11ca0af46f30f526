//! The summaries of the last minutes.

use slidegate::Timestamp;

use super::key_budget::{BudgetGuard, KeyBudget};
use super::label::KeyLabel;
use super::summary::{Merged, Summary};

/// Number of minutes in a report: the current minute and the minutes before it.
pub const WINDOW_MINUTES: u64 = 5;
/// Number of seconds in a minute.
pub const SECONDS_PER_MINUTE: u64 = 60;

/// Summaries of the last minutes, oldest first.
#[derive(Debug, Default)]
pub struct MinuteSummaries(Vec<MinuteSummary>);

/// The summary of one minute.
#[derive(Debug)]
struct MinuteSummary {
    /// Minutes since the Unix epoch.
    unix_minute: u64,
    summary: Summary<KeyLabel>,
    budget_guard: BudgetGuard,
}

/// Returns the number of minutes from the Unix epoch to a time.
pub fn unix_minute(now: Timestamp) -> u64 {
    now.as_micros() / (SECONDS_PER_MINUTE * 1_000_000)
}

/// Returns whether a minute is among the last [`WINDOW_MINUTES`] minutes up to `newest`.
fn is_live(unix_minute: u64, newest: u64) -> bool {
    unix_minute + WINDOW_MINUTES > newest
}

impl MinuteSummaries {
    /// Adds `amount` to the count of a key. A minute holds at most `capacity` keys, and no more than the budget allows.
    pub fn record(
        &mut self,
        now: Timestamp,
        (key, amount): (u64, u64),
        (capacity, key_budget): (usize, &KeyBudget),
        write_label: impl FnOnce(&mut KeyLabel),
    ) {
        if let Some(MinuteSummary { summary, budget_guard, .. }) =
            self.minute_mut(unix_minute(now), key_budget)
        {
            summary.add(
                key,
                amount,
                |keys| keys < capacity && budget_guard.try_take(),
                write_label,
            );
        }
    }

    /// Returns the summary of a minute, and creates it if necessary. Returns `None` for an expired minute. A minute
    /// before the newest is accepted too: threads may arrive in a different order than they read the clock.
    fn minute_mut(
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
        is_live(unix_minute, newest).then(|| {
            let minute = MinuteSummary {
                unix_minute,
                summary: Summary::default(),
                budget_guard: key_budget.guard(),
            };
            self.0.insert(index, minute);
            &mut self.0[index]
        })
    }

    /// Removes the minutes that are expired if `newest` is the current minute.
    pub fn remove_expired(&mut self, newest: u64) {
        self.0.retain(|minute| is_live(minute.unix_minute, newest));
    }

    /// Returns whether there are no minutes.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Merges the summaries of the last minutes.
    pub fn merged(&self, now: Timestamp, capacity: usize) -> Merged<&KeyLabel> {
        let now = unix_minute(now);
        let live = self.0.iter().filter(|minute| is_live(minute.unix_minute, now));
        live.map(|minute| Merged::from(&minute.summary))
            .fold(Merged::default(), |merged, minute| merged.merge(minute, capacity))
    }
}
