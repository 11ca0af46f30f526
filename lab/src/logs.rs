//! Exact logs to compare: slidegate's packed ring, and a queue of timestamps behind a lock.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// The maximum number of charges of a key in a window.
pub const MAX: usize = 100;

/// The time between decisions. Each key then receives twice as many requests as its limit allows, so about half of
/// the requests are denied.
pub const STEP_US: u64 = 1;

/// Returns the window length for this number of keys.
const fn window_us(keys: usize) -> u64 {
    2 * STEP_US * (keys * MAX) as u64
}

/// An exact log that allows 100 charges per key and window, used by one thread.
pub trait LogContender {
    /// Returns the name shown in tables.
    fn name(&self) -> &'static str;

    /// Charges one unit to a key if it fits. Returns whether it was charged.
    fn try_charge(&self, key: u64, now_us: u64) -> bool;
}

/// Fills all keys with charges spread evenly over one window. Returns the time of the last charge.
pub fn fill_all_keys(log: &dyn LogContender, keys: usize) -> u64 {
    let mut now_us = window_us(keys);
    for _ in 0..MAX {
        for key in 0..keys as u64 {
            now_us += 2 * STEP_US;
            assert!(log.try_charge(key, now_us), "a key that is not full accepts a charge");
        }
    }
    now_us
}

/// The log of slidegate's `sliding_log` algorithm.
pub struct SlidegateLog {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl SlidegateLog {
    /// Creates an empty log for this number of keys.
    ///
    /// # Errors
    /// None: the limit is valid.
    pub fn new(keys: usize) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let quota = Quota::new(MAX as u64, Duration::from_micros(window_us(keys)))?;
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

/// The obvious implementation: a map of locked queues. It hashes with foldhash, as slidegate does.
pub struct QueueLog {
    queues: DashMap<u64, Mutex<VecDeque<u64>>, foldhash::fast::RandomState>,
    window_us: u64,
}

impl QueueLog {
    /// Creates an empty log for this number of keys.
    pub fn new(keys: usize) -> Self {
        Self { queues: DashMap::default(), window_us: window_us(keys) }
    }
}

impl LogContender for QueueLog {
    fn name(&self) -> &'static str {
        "DashMap of Mutex<VecDeque<u64>>, foldhash"
    }

    fn try_charge(&self, key: u64, now_us: u64) -> bool {
        let expired_us = now_us.saturating_sub(self.window_us);
        match self.queues.get(&key) {
            Some(queue) => try_push(&mut queue.lock(), expired_us, now_us),
            None => try_push(self.queues.entry(key).or_default().get_mut(), expired_us, now_us),
        }
    }
}

fn try_push(queue: &mut VecDeque<u64>, expired_us: u64, now_us: u64) -> bool {
    while queue.front().is_some_and(|oldest| *oldest <= expired_us) {
        queue.pop_front();
    }
    let fits = queue.len() < MAX;
    if fits {
        queue.push_back(now_us);
    }
    fits
}
