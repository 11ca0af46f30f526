//! Exact logs beside each other: slidegate's packed ring, and a queue of timestamps behind a lock.

use std::collections::VecDeque;
use std::error::Error;
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::Mutex;
use slidegate::{Algorithm, Limit, Limiter, ManualClock, MemoryStore, Quota, Timestamp};

/// Keys in each log.
pub const KEYS: usize = 100_000;

/// Charges that a key may have in the window.
pub const MAX: usize = 100;

/// The time from one decision to the next. Each key is then asked twice as often as it may be charged,
/// so that about half of the decisions are denied.
pub const STEP_US: u64 = 1;

const WINDOW_US: u64 = 2 * STEP_US * (KEYS * MAX) as u64;

/// An exact log of 100 charges per key and window, for one thread.
pub trait Log {
    /// What it is called in the tables.
    fn name(&self) -> &'static str;

    /// Takes one unit of a key, if it fits at that moment.
    fn take(&self, key: u64, now_us: u64) -> bool;
}

/// Fills every key, with charges spread evenly over one window; the moment at which they are full.
pub fn fill(log: &dyn Log) -> u64 {
    let mut now_us = WINDOW_US;
    for _ in 0..MAX {
        for key in 0..KEYS as u64 {
            now_us += WINDOW_US / (KEYS * MAX) as u64;
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
    /// An empty log.
    ///
    /// # Errors
    /// None: the limit is sound.
    pub fn new() -> Result<Self, Box<dyn Error>> {
        let clock = ManualClock::default();
        let quota = Quota::new(MAX as u64, Duration::from_micros(WINDOW_US))?;
        let limit = Limit::new(quota, Algorithm::SlidingLog)?;
        let store = MemoryStore::with(clock.clone(), KEYS);
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
#[derive(Default)]
pub struct Queues(DashMap<u64, Mutex<VecDeque<u64>>, foldhash::fast::RandomState>);

impl Log for Queues {
    fn name(&self) -> &'static str {
        "DashMap of Mutex<VecDeque<u64>>, foldhash"
    }

    fn take(&self, key: u64, now_us: u64) -> bool {
        match self.0.get(&key) {
            Some(queue) => take_from(&mut queue.lock(), now_us),
            None => take_from(self.0.entry(key).or_default().get_mut(), now_us),
        }
    }
}

fn take_from(queue: &mut VecDeque<u64>, now_us: u64) -> bool {
    while queue.front().is_some_and(|oldest| oldest + WINDOW_US <= now_us) {
        queue.pop_front();
    }
    let fits = queue.len() < MAX;
    if fits {
        queue.push_back(now_us);
    }
    fits
}
