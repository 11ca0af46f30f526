//! Who asks when: both sides are asked the same.

use std::time::Duration;

use slidegate::Timestamp;

/// One ask of one unit.
#[derive(Clone, Copy)]
pub struct Ask {
    /// Whose.
    pub who: usize,
    /// The how manieth of all.
    pub nth: u64,
    /// When; none where Redis tells the time.
    pub now: Option<Timestamp>,
}

/// Asks without end, of identities that are drawn uniformly, at even steps of time.
#[derive(Clone, Copy)]
pub struct Course {
    /// Identities.
    pub who: usize,
    /// The time of the first ask, and from one to the next; none where Redis tells the time.
    pub time: Option<(Timestamp, Duration)>,
    /// Asks that have been.
    pub passed: u64,
}

impl Course {
    /// The next asks.
    pub fn next(&self, count: usize) -> impl Iterator<Item = Ask> + use<> {
        let Self { who, time, passed } = *self;
        let mut rng = fastrand::Rng::with_seed(passed);
        (passed..passed + count as u64).map(move |nth| {
            let now = time.map(|(start, step)| {
                Timestamp::from_micros(start.as_micros() + nth * step.as_micros() as u64)
            });
            Ask { who: rng.usize(0..who), nth, now }
        })
    }
}
