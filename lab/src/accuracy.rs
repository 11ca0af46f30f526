//! Decisions of a limit held against an exact log of what that limit allowed.

use std::error::Error;
use std::ops::AddAssign;

use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Timestamp};

use crate::exact::ExactLog;

/// A moment at which a window of any usual length begins: 2026-01-01, 00:00 UTC, in microseconds.
pub const MIDNIGHT_US: u64 = 1_767_225_600_000_000;

/// What decisions came to beside the exact log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// All of them.
    pub decisions: u64,
    /// Those that were allowed.
    pub allowed: u64,
    /// Allowed though it did not fit.
    pub false_allows: u64,
    /// Denied though it fitted.
    pub false_denies: u64,
    /// Those within 20 % of the limit: the exact count, with this request, was between 0.8 max and 1.2 max.
    pub near: u64,
    /// The wrong ones of those.
    pub near_wrong: u64,
    /// Units by which wrong decisions were off, in all: for a false allow those beyond max, for a false deny those for
    /// which there was room.
    pub off: u64,
    /// The most units that were allowed in any window.
    pub most: u64,
}

impl Tally {
    /// Decisions other than those of the exact log.
    pub fn wrong(&self) -> u64 {
        self.false_allows + self.false_denies
    }

    /// Wrong decisions in a hundred.
    pub fn wrong_percent(&self) -> f64 {
        percent(self.wrong(), self.decisions)
    }

    /// Wrong decisions in a hundred of those within 20 % of the limit.
    pub fn near_wrong_percent(&self) -> f64 {
        percent(self.near_wrong, self.near)
    }
}

/// So many of so many, in a hundred; none of none.
pub fn percent(some: u64, of: u64) -> f64 {
    100.0 * some as f64 / of.max(1) as f64
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.decisions += other.decisions;
        self.allowed += other.allowed;
        self.false_allows += other.false_allows;
        self.false_denies += other.false_denies;
        self.near += other.near;
        self.near_wrong += other.near_wrong;
        self.off += other.off;
        self.most = self.most.max(other.most);
    }
}

/// A limit over the real memory store, on a clock that is set, beside its exact log. One key.
pub struct Judge {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
    exact: ExactLog,
    key: u64,
    max: u64,
    tally: Tally,
}

impl Judge {
    /// Judges what the limit says of a key, of which nothing is known yet.
    ///
    /// # Errors
    /// None: a limiter can have any one limit.
    pub fn new(limit: &Limit, key: u64) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let limiter = Limiter::with_store([*limit], MemoryStore::with_clock(clock.clone(), 64))?;
        let exact = ExactLog::new(limit.quota().window().as_micros() as u64);
        let max = limit.quota().max();
        Ok(Self { clock, limiter, exact, key, max, tally: Tally::default() })
    }

    /// Asks for one unit at that moment, not before that of the last time; whether it is allowed.
    pub fn ask(&mut self, now_us: u64) -> bool {
        self.clock.set(Timestamp::from_micros(now_us));
        let is_allowed = self.limiter.check(&self.key).is_allowed();
        let with_this = self.exact.inside(now_us) + 1;
        let fits = with_this <= self.max;
        let is_near = 5 * with_this >= 4 * self.max && 5 * with_this <= 6 * self.max;
        if is_allowed {
            self.exact.give(now_us, 1);
        }
        let tally = &mut self.tally;
        tally.decisions += 1;
        tally.allowed += u64::from(is_allowed);
        tally.false_allows += u64::from(is_allowed && !fits);
        tally.false_denies += u64::from(!is_allowed && fits);
        tally.near += u64::from(is_near);
        tally.near_wrong += u64::from(is_near && is_allowed != fits);
        tally.off += match is_allowed {
            true => with_this.saturating_sub(self.max),
            false => (self.max + 1).saturating_sub(with_this),
        };
        tally.most = self.exact.most();
        is_allowed
    }

    /// Units allowed in the window that ends then.
    pub fn inside(&mut self, now_us: u64) -> u64 {
        self.exact.inside(now_us)
    }

    /// What it came to so far.
    pub fn tally(&self) -> Tally {
        self.tally
    }
}

/// Judges a limit on requests of one key, at these moments in their order.
///
/// # Errors
/// None: a limiter can have any one limit.
pub fn judge(limit: &Limit, key: u64, arrivals_us: &[u64]) -> Result<Tally, Box<dyn Error>> {
    let mut judge = Judge::new(limit, key)?;
    for &at_us in arrivals_us {
        judge.ask(at_us);
    }
    Ok(judge.tally())
}

/// The most units in any window, as `docs/ALGORITHMS.md` proves it under *Bound* of each algorithm.
pub fn bound(limit: &Limit) -> u64 {
    let max = limit.quota().max();
    match limit.algorithm() {
        Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. } => max,
        Algorithm::SlidingWindow => (2 * max).saturating_sub(1),
        Algorithm::FixedWindow { .. } => 2 * max,
        Algorithm::TokenBucket { .. } => limit.capacity() + max,
    }
}

/// Whether an algorithm promises never more than max in any window.
pub fn is_strict(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingLog | Algorithm::SlidingBuckets { .. })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use slidegate::{Limit, Quota};

    use super::*;
    use crate::arrivals::{LOADS, PATTERNS};

    const MAX: u64 = 20;

    fn limits() -> impl Iterator<Item = Limit> {
        let quota = Quota::new(MAX, Duration::from_millis(100)).unwrap();
        Algorithm::ALL.into_iter().map(move |algorithm| Limit::new(quota, algorithm).unwrap())
    }

    /// A burst at each of two moments, many times, at each of ten places of the first and ten of the second.
    fn bursts() -> Vec<u64> {
        let places = (0..100).map(|nth| (nth % 10, nth / 10));
        let at = |nth: usize, (first, gap): (u64, u64)| {
            let first = MIDNIGHT_US + 300_000 * nth as u64 + 10_000 * first + 9_999;
            [first, first + 10_000 * gap + 9_999]
        };
        let moments = places.enumerate().flat_map(|(nth, place)| at(nth, place));
        moments.flat_map(|at| std::iter::repeat_n(at, MAX as usize)).collect()
    }

    #[test]
    fn strict_algorithms_never_allow_what_does_not_fit_and_no_algorithm_passes_its_bound() {
        let mut traffic: Vec<Vec<u64>> = vec![bursts()];
        for (pattern, load) in PATTERNS.iter().flat_map(|p| LOADS.map(|load| (p, load))) {
            traffic.push(pattern.arrivals(100_000, load * MAX as f64, 40, 7));
        }
        for limit in limits() {
            let mut all = Tally::default();
            for arrivals in &traffic {
                all += judge(&limit, 7, arrivals).unwrap();
            }
            assert!(all.most <= bound(&limit), "{limit}: {all:?}");
            assert!(all.most >= MAX && all.allowed < all.decisions, "{limit}: {all:?}");
            match is_strict(limit.algorithm()) {
                true => assert_eq!((all.false_allows, all.most), (0, MAX), "{limit}"),
                false => assert!(all.false_allows > 0, "{limit}: {all:?}"),
            }
            if limit.algorithm() == Algorithm::SlidingLog {
                assert_eq!(all.wrong(), 0);
            }
        }
    }

    #[test]
    fn near_is_from_four_fifths_to_six_fifths_of_max() {
        let limit = limits().next().unwrap();
        let at = vec![MIDNIGHT_US; 30];
        let tally = judge(&limit, 1, &at).unwrap();
        // The 16th to the 20th are allowed; ten more would each be the 21st.
        assert_eq!((tally.allowed, tally.near, tally.near_wrong, tally.off), (20, 15, 0, 0));
    }

    #[test]
    fn a_false_allow_is_off_by_what_is_beyond_max_and_a_false_deny_by_the_room_there_was() {
        let quota = Quota::new(MAX, Duration::from_millis(100)).unwrap();
        let aligned = Algorithm::FixedWindow { align: slidegate::Align::Clock };
        let twenty = |at_us| vec![MIDNIGHT_US + at_us; MAX as usize];
        let fixed = Limit::new(quota, aligned).unwrap();
        let tally = judge(&fixed, 1, &[twenty(99_999), twenty(100_000)].concat()).unwrap();
        let expected = (20, 0, (1..=MAX).sum::<u64>());
        assert_eq!((tally.false_allows, tally.false_denies, tally.off), expected);
        let window = Limit::new(quota, Algorithm::SlidingWindow).unwrap();
        // The first have left when the others come, and weigh half still: ten of these fit, and ten would.
        let tally = judge(&window, 1, &[twenty(0), twenty(150_000)].concat()).unwrap();
        let expected = (0, 10, 10 * 10);
        assert_eq!((tally.false_allows, tally.false_denies, tally.off), expected);
    }
}
