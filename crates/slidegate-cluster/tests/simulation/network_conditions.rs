//! Conditions of the simulated network between hosts.

use std::time::Duration;

use fastrand::Rng;

/// The current faults of the simulated network. They affect frames when these are sent.
#[derive(Clone, Debug)]
pub struct NetworkConditions {
    /// Probability that a message is lost, in percent.
    loss_percent: u32,
    /// Probability that a message is sent twice, in percent.
    duplication_percent: u32,
    /// Maximum delay of a message.
    max_delay: Duration,
    /// Minimum size of a slow frame. Acknowledgements are shorter, so they can overtake updates.
    slow_frame_bytes: usize,
    /// Maximum additional delay of a slow frame.
    slow_frame_delay: Duration,
    /// The partition of each host. Messages between partitions are lost.
    partition_of: Vec<usize>,
    /// Links that carry nothing although both hosts are in the same partition. Each is a pair of sending host and
    /// receiving host.
    blocked_links: Vec<(usize, usize)>,
}

impl NetworkConditions {
    /// Returns a network that delivers every message immediately.
    pub fn without_faults(hosts: usize) -> Self {
        Self {
            loss_percent: 0,
            duplication_percent: 0,
            max_delay: Duration::ZERO,
            slow_frame_bytes: usize::MAX,
            slow_frame_delay: Duration::ZERO,
            partition_of: vec![0; hosts],
            blocked_links: Vec::new(),
        }
    }

    /// Replaces the conditions with random ones. After a partition, with a probability of one half, the only fault is a
    /// delay of long frames, so that acknowledgements overtake updates between the former partitions.
    pub fn randomize(&mut self, rng: &mut Rng, can_partition: bool, can_lose_frames: bool) {
        let hosts = self.partition_of.len();
        let has_slow_frames_after_heal = self.is_partitioned() && rng.bool();
        *self = Self::without_faults(hosts);
        if has_slow_frames_after_heal {
            self.slow_frame_bytes = 50;
            self.slow_frame_delay = Duration::from_secs(3);
            return;
        }
        self.max_delay = Duration::from_millis([0, 2, 20, 150, 600][rng.usize(..5)]);
        if can_lose_frames {
            self.loss_percent = [0, 5, 30][rng.usize(..3)];
            self.duplication_percent = [0, 20][rng.usize(..2)];
        }
        if rng.u32(..4) == 0 {
            self.slow_frame_bytes = [1, 20, 50][rng.usize(..3)];
            self.slow_frame_delay = Duration::from_millis([100, 1_000, 3_000][rng.usize(..3)]);
        }
        if can_partition && rng.u32(..3) > 0 {
            let partitions = rng.usize(1..=3);
            self.partition_of = (0..hosts).map(|_| rng.usize(..partitions)).collect();
        }
        if can_partition && rng.u32(..2) == 0 {
            self.block_random_links(rng);
        }
    }

    /// Blocks links so that the network is partially partitioned: single links in one direction, pairs of hosts, half
    /// of all links, or all links from or to one host.
    fn block_random_links(&mut self, rng: &mut Rng) {
        let hosts = self.partition_of.len();
        let all = (0..hosts).flat_map(|from| (0..hosts).map(move |to| (from, to)));
        let host = rng.usize(..hosts);
        self.blocked_links = match rng.u32(..6) {
            0 | 1 => (0..3).map(|_| (rng.usize(..hosts), rng.usize(..hosts))).collect(),
            2 => {
                let other = rng.usize(..hosts);
                vec![(host, other), (other, host)]
            }
            3 => all.filter(|_| rng.bool()).collect(),
            4 => all.filter(|(from, _)| *from == host).collect(),
            _ => all.filter(|(_, to)| *to == host).collect(),
        };
    }

    /// Returns `true` if not all hosts are in the same partition.
    pub fn is_partitioned(&self) -> bool {
        self.partition_of.iter().any(|partition| *partition != self.partition_of[0])
    }

    /// Draws random delays for one message. Returns one delay for each copy that arrives, and an empty list if the
    /// message is lost.
    pub fn draw_delays(&self, bytes: usize, rng: &mut Rng) -> Vec<Duration> {
        let copies = if rng.u32(..100) < self.duplication_percent { 2 } else { 1 };
        let extra_delay =
            if bytes >= self.slow_frame_bytes { self.slow_frame_delay } else { Duration::ZERO };
        let max_delay_us = (self.max_delay + extra_delay).as_micros() as u64;
        let arriving = (0..copies).filter(|_| rng.u32(..100) >= self.loss_percent).count();
        (0..arriving).map(|_| Duration::from_micros(rng.u64(0..=max_delay_us))).collect()
    }

    /// Returns `true` if frames from host `from` can reach host `to`.
    pub fn can_carry_frames(&self, from: usize, to: usize) -> bool {
        self.partition_of[from] == self.partition_of[to]
            && !self.blocked_links.contains(&(from, to))
    }

    /// Returns `true` if two hosts can open a connection to each other.
    pub fn can_connect(&self, one: usize, other: usize) -> bool {
        self.can_carry_frames(one, other) && self.can_carry_frames(other, one)
    }
}
