//! The last minutes: a summary for each.

use slidegate::Timestamp;

use super::label::Label;
use super::room::{Room, Taken};
use super::summary::{Merged, Summary};

/// Minutes that are told of: the present one and those before it.
pub const MINUTES: u64 = 5;
/// Seconds in one.
pub const SECONDS: u64 = 60;

/// What was counted in the last minutes, the oldest first.
#[derive(Debug, Default)]
pub struct Minutes(Vec<Minute>);

#[derive(Debug)]
struct Minute {
    /// Minutes since 1970.
    nth: u64,
    summary: Summary<Label>,
    taken: Taken,
}

/// The minute that a moment is in.
pub fn minute_of(now: Timestamp) -> u64 {
    now.as_micros() / (SECONDS * 1_000_000)
}

/// Whether a minute is one of the last, up to this one.
fn is_live(nth: u64, newest: u64) -> bool {
    nth + MINUTES > newest
}

impl Minutes {
    /// Counts so much of a key; of no more than `capacity` keys in a minute, and no more than there is
    /// room for.
    pub fn count(
        &mut self,
        now: Timestamp,
        (key, cost): (u64, u64),
        (capacity, room): (usize, &Room),
        label: impl FnOnce(&mut Label),
    ) {
        if let Some(Minute { summary, taken, .. }) = self.of(minute_of(now), room) {
            summary.count(key, cost, |keys| keys < capacity && taken.one_more(), label);
        }
    }

    /// None if it is not one of the last minutes. Who asked for the time first may come here last, so the
    /// minute before the present one is still counted in.
    fn of(&mut self, nth: u64, room: &Room) -> Option<&mut Minute> {
        if let Some(place) = self.0.iter().rposition(|minute| minute.nth == nth) {
            return Some(&mut self.0[place]);
        }
        let newest = self.0.last().map_or(nth, |last| last.nth.max(nth));
        self.forget(newest);
        let place = self.0.partition_point(|minute| minute.nth < nth);
        is_live(nth, newest).then(|| {
            let minute = Minute { nth, summary: Summary::default(), taken: room.taken() };
            self.0.insert(place, minute);
            &mut self.0[place]
        })
    }

    /// Forgets what is not of the last minutes, up to this one.
    pub fn forget(&mut self, newest: u64) {
        self.0.retain(|minute| is_live(minute.nth, newest));
    }

    /// Whether there is nothing to tell.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The last minutes as one.
    pub fn merged(&self, now: Timestamp, capacity: usize) -> Merged<&Label> {
        let now = minute_of(now);
        let live = self.0.iter().filter(|minute| is_live(minute.nth, now));
        live.map(|minute| Merged::from(&minute.summary))
            .fold(Merged::default(), |all, minute| all.merge(minute, capacity))
    }
}
