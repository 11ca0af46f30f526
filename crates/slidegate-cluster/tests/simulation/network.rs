//! The weather between sites.

use std::time::Duration;

use fastrand::Rng;

/// What happens to what is sent.
#[derive(Clone, Debug)]
pub struct Network {
    /// Of a hundred.
    loss: u32,
    repeats: u32,
    longest_delay: Duration,
    /// What is longer is under way for up to so long more: acknowledgements overtake what is told.
    slow_from_bytes: usize,
    slow_by: Duration,
    /// The part in which each site is. Between parts nothing goes.
    part: Vec<usize>,
    /// Links over which no counts go, although gossip does.
    deaf: Vec<(usize, usize)>,
}

impl Network {
    /// Everything arrives at once.
    pub fn calm(sites: usize) -> Self {
        Self {
            loss: 0,
            repeats: 0,
            longest_delay: Duration::ZERO,
            slow_from_bytes: usize::MAX,
            slow_by: Duration::ZERO,
            part: vec![0; sites],
            deaf: Vec::new(),
        }
    }

    /// Other weather. What was parted often comes together over links on which acknowledgements overtake what is told.
    pub fn change(&mut self, rng: &mut Rng, may_partition: bool, may_lose: bool) {
        let sites = self.part.len();
        let is_slow_reunion = self.is_parted() && rng.bool();
        *self = Self::calm(sites);
        if is_slow_reunion {
            self.slow_from_bytes = 50;
            self.slow_by = Duration::from_secs(3);
            return;
        }
        self.longest_delay = Duration::from_millis([0, 2, 20, 150, 600][rng.usize(..5)]);
        if may_lose {
            self.loss = [0, 5, 30][rng.usize(..3)];
            self.repeats = [0, 20][rng.usize(..2)];
        }
        if rng.u32(..4) == 0 {
            self.slow_from_bytes = [1, 20, 50][rng.usize(..3)];
            self.slow_by = Duration::from_millis([100, 1_000, 3_000][rng.usize(..3)]);
        }
        if may_partition && rng.u32(..3) > 0 {
            let parts = rng.usize(1..=3);
            self.part = (0..sites).map(|_| rng.usize(..parts)).collect();
        }
        if may_partition && rng.u32(..4) == 0 {
            let link = |_| (rng.usize(..sites), rng.usize(..sites));
            self.deaf = (0..3).map(link).collect();
        }
    }

    pub fn is_parted(&self) -> bool {
        self.part.iter().any(|part| *part != self.part[0])
    }

    /// When what is sent now arrives: once, never, or more than once.
    pub fn delays(&self, bytes: usize, rng: &mut Rng) -> Vec<Duration> {
        let times = if rng.u32(..100) < self.repeats { 2 } else { 1 };
        let slow_by = if bytes >= self.slow_from_bytes { self.slow_by } else { Duration::ZERO };
        let longest_us = (self.longest_delay + slow_by).as_micros() as u64;
        let arrives = (0..times).filter(|_| rng.u32(..100) >= self.loss).count();
        (0..arrives).map(|_| Duration::from_micros(rng.u64(0..=longest_us))).collect()
    }

    /// Whether gossip goes from one site to another now.
    pub fn carries_gossip(&self, from: usize, to: usize) -> bool {
        self.part[from] == self.part[to]
    }

    /// Whether counts do.
    pub fn carries_counts(&self, from: usize, to: usize) -> bool {
        self.carries_gossip(from, to) && !self.deaf.contains(&(from, to))
    }
}
