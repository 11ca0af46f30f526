//! A generator of random traces, which are sequences of store calls and clock changes with an emphasis on boundary
//! cases.

use std::time::Duration;

use fastrand::Rng;

use crate::algorithm::{Algorithm, Align};
use crate::clock::Timestamp;
use crate::hit::{Block, ChargeWhen, Veto};
use crate::limit::Limit;
use crate::outcome::Outcome;
use crate::quota::{MAX_SMALL_UNITS, MAX_UNITS, MAX_WINDOW};
use crate::store::{Adjustment, PermitChange};

use super::calendar::draw_calendar;
use super::limits::{new_limit, valid_limit};

/// Maximum time by which one step of a trace sets the clock back.
///
/// A store must therefore keep a counter for at least this time after the counter has expired. After a longer step
/// back, it is undefined whether the store still has a counter that had expired before the step.
pub const MAX_BACKWARD_STEP: Duration = Duration::from_millis(50);

/// Latest time of a trace in microseconds since the Unix epoch, in the year 2103. Store scripts can represent all times
/// up to this one as microseconds in a double and as seconds in 32 bits.
const MAX_CLOCK_TIME_US: u64 = 4_200_000_000_000_000;

/// The earliest time to which a trace sets the clock back, in the year 2001.
const MIN_CLOCK_TIME_US: u64 = 1_000_000_000_000_000;

/// Window lengths in microseconds. Counters measure time in ticks, which are longer for longer windows. The list covers
/// ticks of every length, and windows that are not a whole number of ticks.
const WINDOW_LENGTHS_US: [u64; 12] = [
    1_000,
    10_000,
    77_700,
    1_000_000,
    16_777_220,
    60_000_000,
    2_148_000_010,
    3_600_000_000,
    86_400_000_000,
    604_800_000_000,
    777_777_777_770,
    31_622_400_000_000,
];

/// One step of a trace: a call to the store, or a change of the clock.
pub(super) enum ConformanceStep {
    SetClock(Timestamp),
    /// Sets the clock to a time that may be long before the present time. The hits are for all counters of the trace.
    StepClock(Timestamp, Vec<PlannedHit>),
    Charge(Vec<PlannedHit>),
    ChargeMany(Vec<Vec<PlannedHit>>),
    Peek(Vec<PlannedHit>),
    /// Changes the charges of an earlier receipt. The first field is the index of the receipt, where 0 is the newest
    /// one.
    Adjust(usize, Adjustment),
    /// Changes the permit of an earlier receipt. The first field is the index of the receipt, where 0 is the newest
    /// one.
    ChangePermit(usize, PermitChange),
    /// Refunds the cost of each hit to the counter of the hit.
    Refund(Vec<PlannedHit>),
    Reset(Vec<PlannedHit>),
}

/// A hit of a trace, with the index of its key instead of the key.
#[derive(Clone, Debug)]
pub(super) struct PlannedHit {
    pub(super) key: usize,
    pub(super) limit: Limit,
    pub(super) cost: u64,
    pub(super) required: u64,
    pub(super) veto: Veto,
    pub(super) charge: ChargeWhen,
}

/// A generator of the steps of one random trace.
pub(super) struct ConformanceStepGenerator {
    rng: Rng,
    limits: Vec<Limit>,
    keys: usize,
    now: Timestamp,
    has_clock_steps: bool,
    /// Times at which, according to recent outcomes, a request fits or a counter is reset. At most eight times are
    /// kept, the most recently recorded ones.
    promised_times: Vec<Timestamp>,
}

impl ConformanceStepGenerator {
    /// Creates a generator whose trace uses limits of these algorithms. With `has_clock_steps`, the clock of the trace
    /// also steps far ahead and back.
    pub(super) fn new(seed: u64, algorithms: &[Algorithm], has_clock_steps: bool) -> Self {
        let mut rng = Rng::with_seed(seed);
        let limits = (0..rng.usize(1..=4)).map(|_| draw_limit(&mut rng, algorithms)).collect();
        let now = Timestamp::from_micros(1_700_000_000_000_000 + rng.u64(..10_000_000_000_000));
        let (keys, promised_times) = (rng.usize(1..=4), Vec::new());
        Self { limits, keys, now, has_clock_steps, promised_times, rng }
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    pub(super) fn key_count(&self) -> usize {
        self.keys
    }

    /// Records the times at which, according to these outcomes, a request fits or a counter is reset. Later steps set
    /// the clock to the recorded times.
    pub(super) fn record_retry_and_reset_times(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            let waits = [outcome.retry_after(), Some(outcome.reset_after())];
            // Very long waits are ignored, such as the wait for a token bucket that leaks one unit per year.
            let soon = waits.into_iter().flatten().filter(|wait| *wait < 10 * MAX_WINDOW);
            self.promised_times.extend(soon.map(|wait| self.now.after(wait)));
        }
        let old = self.promised_times.len().saturating_sub(8);
        self.promised_times.drain(..old);
    }

    pub(super) fn next_step(&mut self) -> ConformanceStep {
        if self.limits.iter().any(Limit::is_concurrent) && self.rng.u32(..8) == 0 {
            let change = [PermitChange::Release, PermitChange::Renew][self.rng.usize(..2)];
            return ConformanceStep::ChangePermit(self.rng.usize(..4), change);
        }
        if self.has_clock_steps && self.rng.u32(..16) == 0 {
            return self.draw_clock_step();
        }
        match self.rng.u32(..100) {
            0..=34 => ConformanceStep::SetClock(self.draw_next_time()),
            35..=75 => ConformanceStep::Charge(self.draw_hits()),
            76..=79 => ConformanceStep::Refund(self.draw_hits()),
            80..=85 => ConformanceStep::ChargeMany(
                (0..self.rng.usize(..=5)).map(|_| self.draw_hits()).collect(),
            ),
            86..=91 => ConformanceStep::Peek(self.draw_hits()),
            92..=97 => ConformanceStep::Adjust(self.rng.usize(..3), self.draw_adjustment()),
            98 => ConformanceStep::Reset(self.draw_hits()),
            _ => {
                // A policy change: the max changes, and the counts remain.
                let index = self.rng.usize(..self.limits.len());
                self.limits[index] = with_random_max(&mut self.rng, &self.limits[index]);
                ConformanceStep::SetClock(self.now)
            }
        }
    }

    /// Draws a step of the clock by some windows, or by up to three days.
    fn draw_clock_step(&mut self) -> ConformanceStep {
        let window_us = self.limits[self.rng.usize(..self.limits.len())].quota().window_us();
        let max_step_us = if self.rng.bool() { 5 * window_us } else { 3 * 86_400_000_000 };
        let (now_us, step_us) = (self.now.as_micros(), self.rng.u64(..=max_step_us));
        self.now = Timestamp::from_micros(match self.rng.u32(..3) {
            0 => (now_us + step_us).min(MAX_CLOCK_TIME_US),
            _ => now_us.saturating_sub(step_us).max(MIN_CLOCK_TIME_US),
        });
        let hits = (0..self.keys).flat_map(|key| {
            self.limits.iter().map(move |limit| PlannedHit {
                key,
                limit: *limit,
                cost: 1,
                required: 1,
                veto: Veto::Alone,
                charge: ChargeWhen::IfAdmitted,
            })
        });
        ConformanceStep::StepClock(self.now, hits.collect())
    }

    fn draw_next_time(&mut self) -> Timestamp {
        let index = self.rng.usize(..self.limits.len());
        let window_us = self.limits[index].quota().window_us();
        let now_us = self.now.as_micros();
        let draw = self.rng.u32(..20);
        let us = match draw {
            0..=1 => now_us,
            2..=3 => now_us + 1,
            4..=6 => now_us + self.rng.u64(..=window_us / 10),
            7 => now_us + self.rng.u64(..=window_us * 2),
            // Calls arrive at the ends of windows and of tenths of windows, or 1 us before, where an error in a
            // boundary shows.
            8..=9 => next_multiple_after(now_us, window_us) - self.rng.u64(..=1),
            10 => next_multiple_after(now_us, window_us / 10) - self.rng.u64(..=1),
            11 => now_us - self.rng.u64(..=MAX_BACKWARD_STEP.as_micros() as u64),
            12 => now_us + window_us * self.rng.u64(3..100),
            // At a time at which a request should fit or a counter should be reset, or 1 us before.
            _ => match self.rng.choice(&self.promised_times) {
                Some(moment) if moment.as_micros() > now_us => {
                    moment.as_micros() - self.rng.u64(..=1)
                }
                _ => now_us + self.rng.u64(..1_000),
            },
        };
        self.now = Timestamp::from_micros(us.min(MAX_CLOCK_TIME_US));
        self.now
    }

    fn draw_adjustment(&mut self) -> Adjustment {
        let capacity = self.limits[self.rng.usize(..self.limits.len())].capacity();
        match self.rng.u32(..4) {
            0 | 1 => Adjustment::Revert,
            2 => Adjustment::SetCost(self.rng.u64(..=3)),
            _ => Adjustment::SetCost(self.rng.u64(..=capacity)),
        }
    }

    fn draw_hits(&mut self) -> Vec<PlannedHit> {
        let hits = if self.rng.bool() { 1 } else { self.rng.usize(..=5) };
        let mut hits: Vec<PlannedHit> = (0..hits).map(|_| self.draw_hit()).collect();
        if self.rng.u32(..6) == 0 {
            self.draw_block(&mut hits);
        }
        hits
    }

    /// Appends a few hits of one key, and a hit that blocks this key if one of them does not fit.
    fn draw_block(&mut self, hits: &mut Vec<PlannedHit>) {
        let limits = self.rng.u8(1..=3);
        let key = self.rng.usize(..self.keys);
        let veto = [Veto::Alone, Veto::Never][self.rng.usize(..2)];
        for _ in 0..limits {
            hits.push(PlannedHit { key, veto, ..self.draw_hit() });
        }
        let charge = ChargeWhen::Block(Block { limits, extends: self.rng.bool() });
        hits.push(PlannedHit { key, veto, charge, ..self.draw_hit() });
    }

    fn draw_hit(&mut self) -> PlannedHit {
        let limit = self.limits[self.rng.usize(..self.limits.len())];
        let capacity = limit.capacity();
        let cost = match self.rng.u32(..16) {
            0..=7 => 1,
            8 => 0,
            9 => 2,
            10 => capacity.saturating_sub(1),
            11 => capacity,
            12 => capacity + 1,
            13 => 10_000,
            14 => self.rng.u64(..=capacity),
            _ if self.rng.u32(..8) == 0 => u64::MAX - self.rng.u64(..2),
            _ => 3,
        };
        // Mostly combinations that rules produce, sometimes any other.
        let (veto, charge) = match self.rng.u32(..14) {
            0..=6 => (Veto::Alone, ChargeWhen::IfAdmitted),
            7..=8 => (Veto::Never, ChargeWhen::IfAdmittedAndFits),
            9 => (Veto::Never, ChargeWhen::Always),
            10 => (Veto::Alone, ChargeWhen::Always),
            11..=12 => (Veto::Jointly, ChargeWhen::IfAdmittedAndFits),
            _ => (self.draw_veto(), self.draw_charge_condition()),
        };
        let required = match self.rng.u32(..8) {
            0 => 0,
            1 => self.rng.u64(..=capacity),
            2 if self.rng.u32(..8) == 0 => u64::MAX,
            _ => cost.max(1),
        };
        PlannedHit { key: self.rng.usize(..self.keys), limit, cost, required, veto, charge }
    }

    fn draw_veto(&mut self) -> Veto {
        [Veto::Alone, Veto::Jointly, Veto::Never][self.rng.usize(..3)]
    }

    fn draw_charge_condition(&mut self) -> ChargeWhen {
        let all = [ChargeWhen::IfAdmitted, ChargeWhen::IfAdmittedAndFits, ChargeWhen::Always];
        all[self.rng.usize(..3)]
    }
}

fn next_multiple_after(now_us: u64, step_us: u64) -> u64 {
    (now_us / step_us + 1) * step_us
}

fn draw_limit(rng: &mut Rng, algorithms: &[Algorithm]) -> Limit {
    let algorithm = algorithms[rng.usize(..algorithms.len())];
    let window = Duration::from_micros(WINDOW_LENGTHS_US[rng.usize(..WINDOW_LENGTHS_US.len())]);
    let algorithm = match algorithm {
        Algorithm::SlidingBuckets { .. } => {
            let parts = [1, 2, 5, 10][rng.usize(..4)];
            Algorithm::SlidingBuckets { precision: Some(window / parts) }
        }
        Algorithm::FixedWindow { .. } => match rng.u32(..3) {
            0 => Algorithm::FixedWindow { align: Align::Key },
            1 => Algorithm::FixedWindow { align: Align::Clock },
            _ => {
                let (calendar, max) = (draw_calendar(rng), draw_max_units(rng, algorithm));
                return valid_limit(Limit::calendar(max, calendar));
            }
        },
        Algorithm::TokenBucket { .. } if rng.bool() => {
            let max_debt = [None, Some(0), Some(rng.u64(..500)), Some(MAX_SMALL_UNITS)];
            let max_debt = max_debt[rng.usize(..4)];
            Algorithm::TokenBucket { burst: Some(rng.u64(1..200)), max_debt }
        }
        other => other,
    };
    new_limit(draw_max_units(rng, algorithm), window, algorithm)
}

/// Returns a copy of the limit with a random max.
fn with_random_max(rng: &mut Rng, limit: &Limit) -> Limit {
    let algorithm = limit.algorithm();
    new_limit(draw_max_units(rng, algorithm), limit.quota().window(), algorithm)
}

fn draw_max_units(rng: &mut Rng, algorithm: Algorithm) -> u64 {
    let max = match algorithm {
        Algorithm::SlidingLog | Algorithm::Concurrent => 1_000,
        Algorithm::SlidingCounter | Algorithm::TokenBucket { .. } => MAX_SMALL_UNITS,
        _ => MAX_UNITS,
    };
    let small_max = max.min(MAX_SMALL_UNITS);
    let draws =
        [0, 1, 2, 3, 5, 10, 17, 100, 1_000, small_max - 1, small_max, max / 1_000, max - 1, max];
    draws[rng.usize(..draws.len())]
}
