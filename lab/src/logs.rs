//! Exact logs beside each other: slidegate's packed ring, and a queue of timestamps behind a lock.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// Charges that a key may have in the window.
pub const MAX: usize = 100;

/// The time from one decision to the next. Each key is then asked twice as often as it may be charged,
/// so that about half of the decisions are denied.
pub const STEP_US: u64 = 1;

/// How long the window is if there are so many keys.
const fn window_us(keys: usize) -> u64 {
    2 * STEP_US * (keys * MAX) as u64
}

/// An exact log of 100 charges per key and window, for one thread.
pub trait Log {
    /// What it is called in the tables.
    fn name(&self) -> &'static str;

    /// Takes one unit of a key, if it fits at that moment.
    fn take(&self, key: u64, now_us: u64) -> bool;
}

/// Fills every key of so many, with charges spread evenly over one window; the moment at which they are full.
pub fn fill(log: &dyn Log, keys: usize) -> u64 {
    let mut now_us = window_us(keys);
    for _ in 0..MAX {
        for key in 0..keys as u64 {
            now_us += 2 * STEP_US;
            assert!(log.take(key, now_us), "a key that is filled has room");
        }
    }
    now_us
}

/// slidegate's `sliding_log`.
pub struct Packed {
    clock: ManualClock,
    limiter: Limiter<MemoryStore<ManualClock>>,
}

impl Packed {
    /// An empty log of so many keys.
    ///
    /// # Errors
    /// None: the limit is sound.
    pub fn new(keys: usize) -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let quota = Quota::new(MAX as u64, Duration::from_micros(window_us(keys)))?;
        let limit = Limit::new(quota, Algorithm::SlidingLog)?;
        let store = MemoryStore::with_clock(clock.clone(), keys);
        Ok(Self { clock, limiter: Limiter::with_store([limit], store)? })
    }
}

impl Log for Packed {
    fn name(&self) -> &'static str {
        "slidegate sliding_log"
    }

    fn take(&self, key: u64, now_us: u64) -> bool {
        self.clock.set(Timestamp::from_micros(now_us));
        self.limiter.check(&key).is_allowed()
    }
}

/// What one writes first: a map of locked queues. With foldhash, so that the hash is not what differs.
pub struct Queues {
    queues: DashMap<u64, Mutex<VecDeque<u64>>, foldhash::fast::RandomState>,
    window_us: u64,
}

impl Queues {
    /// Of so many keys, and empty.
    pub fn new(keys: usize) -> Self {
        Self { queues: DashMap::default(), window_us: window_us(keys) }
    }
}

impl Log for Queues {
    fn name(&self) -> &'static str {
        "DashMap of Mutex<VecDeque<u64>>, foldhash"
    }

    fn take(&self, key: u64, now_us: u64) -> bool {
        let expired_us = now_us.saturating_sub(self.window_us);
        match self.queues.get(&key) {
            Some(queue) => take_from(&mut queue.lock(), expired_us, now_us),
            None => take_from(self.queues.entry(key).or_default().get_mut(), expired_us, now_us),
        }
    }
}

fn take_from(queue: &mut VecDeque<u64>, expired_us: u64, now_us: u64) -> bool {
    while queue.front().is_some_and(|oldest| *oldest <= expired_us) {
        queue.pop_front();
    }
    let fits = queue.len() < MAX;
    if fits {
        queue.push_back(now_us);
    }
    fits
}
