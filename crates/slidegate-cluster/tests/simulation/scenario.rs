//! What a seed stands for.

use std::num::NonZeroU64;
use std::time::Duration;

use fastrand::Rng;
use slidegate::{Algorithm, Align, ClusterOptions, Limit, OnPartition};
use slidegate_cluster::bound;

/// One run: the cluster, the limit and who asks.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub sites: usize,
    pub limit: Limit,
    /// Keys that are asked for.
    pub keys: usize,
    /// The largest cost of a request.
    pub largest_cost: u64,
    /// Requests per second that each site gets, at most.
    pub rate: u64,
    /// What the rule says to the cluster.
    pub terms: ClusterOptions,
    /// Every so many-th charge is given back.
    pub given_back_every: Option<u64>,
    /// Whether several nodes reset and refund counts at the same time.
    pub takes_off: bool,
    pub interval: Duration,
    /// How long the weather is bad.
    pub bad_weather: Duration,
    pub may_partition: bool,
    pub may_restart: bool,
    pub may_lose: bool,
}

pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

impl Scenario {
    /// Half of all seeds are anything. The others are those in which whoever charges freely and should not is found
    /// out: one key that everybody asks for, a long window, and few units that others may not know of.
    pub fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_hot = rng.bool();
        let limit = draw_limit(&mut rng, is_hot);
        let max = limit.quota().max();
        let has_costs = !is_hot && rng.u32(..3) == 0;
        Self {
            seed,
            sites: rng.usize(3..=if is_hot { 5 } else { 7 }),
            limit,
            keys: if is_hot { 1 } else { [1, 1, 2, 8][rng.usize(..4)] },
            largest_cost: if has_costs { rng.u64(1..=max.min(7)) } else { 1 },
            terms: if is_hot { strict_terms() } else { draw_terms(&mut rng, max) },
            rate: if is_hot { 60 } else { [5, 20, 60][rng.usize(..3)] },
            given_back_every: (rng.u32(..3) == 0).then(|| rng.u64(2..10)),
            takes_off: seed.is_multiple_of(4),
            interval: Duration::from_millis([50, 100, 250, 1_000][rng.usize(..4)]),
            bad_weather: Duration::from_secs(rng.u64(8..=20)),
            may_partition: is_hot || rng.u32(..4) > 0,
            may_restart: rng.u32(..3) > 0,
            may_lose: rng.u32(..5) > 0,
        }
    }

    /// Units of one node that others may not know of, as long as that one counts so many nodes.
    pub fn most_unsynced(&self, nodes: u32) -> u64 {
        let default = bound::default_max_unsynced(&self.limit, nodes.max(2).into());
        self.terms.max_unsynced().map_or(default, NonZeroU64::get)
    }

    pub fn window(&self) -> Duration {
        self.limit.quota().window()
    }
}

fn draw_limit(rng: &mut Rng, is_hot: bool) -> Limit {
    let (max, window) = match is_hot {
        true => ([20, 100][rng.usize(..2)], ["5s", "20s"][rng.usize(..2)]),
        false => {
            let max = [1, 2, 5, 20, 100, 400][rng.usize(..6)];
            (max, ["1s", "2s", "5s", "20s"][rng.usize(..4)])
        }
    };
    let algorithm = match rng.u32(if is_hot { 1..4 } else { 0..4 }) {
        0 => Algorithm::SlidingWindow,
        1 => Algorithm::SlidingBuckets { precision: None },
        2 => Algorithm::FixedWindow { align: Align::Clock },
        _ => Algorithm::FixedWindow { align: Align::Key },
    };
    Limit::new(format!("{max}/{window}").parse().unwrap(), algorithm).unwrap()
}

fn strict_terms() -> ClusterOptions {
    ClusterOptions::new().with_max_unsynced(1).unwrap()
}

fn draw_terms(rng: &mut Rng, max: u64) -> ClusterOptions {
    let terms = ClusterOptions::new();
    let on_partition =
        if rng.u32(..10) == 0 { OnPartition::Available } else { OnPartition::Bounded };
    let terms = terms.with_on_partition(on_partition);
    match rng.u32(..3) {
        0 => terms.with_max_unsynced(rng.u64(1..=max)).unwrap(),
        _ => terms,
    }
}
