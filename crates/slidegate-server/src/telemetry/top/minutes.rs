//! The last minutes: a summary for each.

use slidegate::Timestamp;

use super::key_budget::{BudgetGuard, KeyBudget};
use super::label::KeyLabel;
use super::summary::{Merged, Summary};

/// Minutes that are told of: the present one and those before it.
pub const WINDOW_MINUTES: u64 = 5;
/// Seconds in one.
pub const SECONDS_PER_MINUTE: u64 = 60;

/// What was counted in the last minutes, the oldest first.
#[derive(Debug, Default)]
pub struct MinuteSummaries(Vec<MinuteSummary>);

#[derive(Debug)]
struct MinuteSummary {
    /// Minutes since 1970.
    unix_minute: u64,
    summary: Summary<KeyLabel>,
    budget_guard: BudgetGuard,
}

/// The minute that a moment is in.
pub fn unix_minute(now: Timestamp) -> u64 {
    now.as_micros() / (SECONDS_PER_MINUTE * 1_000_000)
}

/// Whether a minute is one of the last, up to this one.
fn is_live(unix_minute: u64, newest: u64) -> bool {
    unix_minute + WINDOW_MINUTES > newest
}

impl MinuteSummaries {
    /// Counts so much of a key; of no more than `capacity` keys in a minute, and no more than there is
    /// room for.
    pub fn count(
        &mut self,
        now: Timestamp,
        (key, cost): (u64, u64),
        (capacity, key_budget): (usize, &KeyBudget),
        label: impl FnOnce(&mut KeyLabel),
    ) {
        if let Some(MinuteSummary { summary, budget_guard, .. }) =
            self.minute_mut(unix_minute(now), key_budget)
        {
            summary.count(key, cost, |keys| keys < capacity && budget_guard.try_take(), label);
        }
    }

    /// None if it is not one of the last minutes. Who asked for the time first may come here last, so the
    /// minute before the present one is still counted in.
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

    /// Forgets what is not of the last minutes, up to this one.
    pub fn remove_expired(&mut self, newest: u64) {
        self.0.retain(|minute| is_live(minute.unix_minute, newest));
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last minutes as one.
    pub fn merged(&self, now: Timestamp, capacity: usize) -> Merged<&KeyLabel> {
        let now = unix_minute(now);
        let live = self.0.iter().filter(|minute| is_live(minute.unix_minute, now));
        live.map(|minute| Merged::from(&minute.summary))
            .fold(Merged::default(), |all, minute| all.merge(minute, capacity))
    }
}
