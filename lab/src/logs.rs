//! The exact logs that a benchmark compares: slidegate's log, and a queue of timestamps behind a lock. An exact log
//! keeps the time of every charge.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// The maximum number of charges per key and window in the compared logs.
pub const MAX: usize = 100;

/// The time between two decisions, in microseconds. At this rate each key receives twice as many requests as its limit
/// allows, so about half of the requests are denied.
pub const STEP_US: u64 = 1;

/// Returns the window length in microseconds for this number of keys.
const fn window_us_for_key_count(keys: usize) -> u64 {
    2 * STEP_US * (keys * MAX) as u64
}

/// A compared exact log, which keeps the time of every charge and allows 100 charges per key and window. One thread
/// uses it.
pub trait LogContender {
    /// Returns the name of the log in tables.
    fn name(&self) -> &'static str;

    /// Charges one unit to a key if the limit allows it. Returns `true` if the unit was charged.
    fn try_charge(&self, key: u64, now_us: u64) -> bool;
}

/// Charges every key up to its limit. The charges are spread evenly over one window. Returns the time of the last
/// charge in microseconds.
pub fn fill_all_keys(log: &dyn LogContender, keys: usize) -> u64 {
    let mut now_us = window_us_for_key_count(keys);
    for _ in 0..MAX {
        for key in 0..keys as u64 {
            now_us += 2 * STEP_US;
            assert!(log.try_charge(key, now_us), "a key that is not full accepts a charge");
        }
    }
    now_us
}

/// Slidegate's exact log: a limiter with the algorithm `sliding_log` and a manual clock.
pub struct SlidegateLog {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl SlidegateLog {
    /// Creates an empty log for this number of keys.
    ///
    /// # Errors
    /// Never fails: the limit is valid.
    pub fn new(keys: usize) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let quota = Quota::new(MAX as u64, Duration::from_micros(window_us_for_key_count(keys)))?;
        let limit = Limit::new(quota, Algorithm::SlidingLog)?;
        let store = MemoryStore::with_clock(clock.clone(), keys);
        Ok(Self { clock, limiter: Limiter::with_store([limit], store)? })
    }
}

impl LogContender for SlidegateLog {
    fn name(&self) -> &'static str {
        "slidegate sliding_log"
    }

    fn try_charge(&self, key: u64, now_us: u64) -> bool {
        self.clock.set(Timestamp::from_micros(now_us));
        self.limiter.check(&key).is_allowed()
    }
}

/// The obvious implementation of an exact log: a map from key to a locked queue of timestamps. The map hashes with
/// foldhash, as slidegate does.
pub struct QueueLog {
    queues: DashMap<u64, Mutex<VecDeque<u64>>, foldhash::fast::RandomState>,
    window_us: u64,
}

impl QueueLog {
    /// Creates an empty log for this number of keys.
    pub fn new(keys: usize) -> Self {
        Self::with_window(window_us_for_key_count(keys))
    }

    /// Creates an empty log for windows of `window_us` microseconds.
    pub fn with_window(window_us: u64) -> Self {
        Self { queues: DashMap::default(), window_us }
    }

    /// Charges one unit to a key if the limit allows it. Returns `true` if the unit was charged.
    #[inline]
    pub fn try_charge_at(&self, key: u64, now_us: u64) -> bool {
        let expired_us = now_us.saturating_sub(self.window_us);
        match self.queues.get(&key) {
            Some(queue) => push_if_below_max(&mut queue.lock(), expired_us, now_us),
            None => {
                push_if_below_max(self.queues.entry(key).or_default().get_mut(), expired_us, now_us)
            }
        }
    }
}

impl LogContender for QueueLog {
    fn name(&self) -> &'static str {
        "DashMap of Mutex of VecDeque, foldhash"
    }

    fn try_charge(&self, key: u64, now_us: u64) -> bool {
        self.try_charge_at(key, now_us)
    }
}

fn push_if_below_max(queue: &mut VecDeque<u64>, expired_us: u64, now_us: u64) -> bool {
    while queue.front().is_some_and(|oldest| *oldest <= expired_us) {
        queue.pop_front();
    }
    let fits = queue.len() < MAX;
    if fits {
        queue.push_back(now_us);
    }
    fits
}
