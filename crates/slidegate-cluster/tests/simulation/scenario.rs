//! The parameters of a run, drawn from its seed.

use std::num::NonZeroU64;
use std::time::Duration;

use fastrand::Rng;
use slidegate::store::{ClusterOptions, OnPartition};
use slidegate::{Algorithm, Align, Limit};
use slidegate_cluster::bound;

/// The parameters of one run: cluster, limit, requests and faults.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// Seed of the run.
    pub seed: u64,
    /// Number of hosts, each of which runs at most one node at a time.
    pub hosts: usize,
    /// The limit of all requests.
    pub limit: Limit,
    /// Number of different keys.
    pub keys: usize,
    /// Maximum cost of a request.
    pub max_cost: u64,
    /// Approximate number of requests per second on each host.
    pub rate: u64,
    /// The cluster options of the rule that contains the limit.
    pub cluster_options: ClusterOptions,
    /// Average number of charges per reverted charge; `None` if no charge is reverted.
    pub revert_one_in: Option<u64>,
    /// Whether several nodes reset and refund the same keys at the same time.
    pub has_removals: bool,
    /// The replication interval.
    pub interval: Duration,
    /// The time during which faults occur.
    pub fault_duration: Duration,
    /// Whether the network can be partitioned.
    pub can_partition: bool,
    /// Whether nodes can stop and restart.
    pub can_restart: bool,
    /// Whether clocks can be set to a time outside the limit, one at a time. Then no node stops, and the network is not
    /// partitioned.
    pub can_set_clocks: bool,
    /// Whether the network can lose and duplicate messages.
    pub can_lose_frames: bool,
}

/// Maximum difference between the clocks of two nodes.
pub const MAX_CLOCK_SKEW: Duration = Duration::from_secs(2);

impl Scenario {
    /// Draws the parameters of a scenario from a seed. Half of the seeds combine arbitrary parameters. The other half
    /// use parameters that reveal nodes that charge without the required acknowledgements: one hot key, a long window,
    /// and at most one unacknowledged unit per node.
    pub fn from_seed(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let is_hot = rng.bool();
        let limit = draw_random_limit(&mut rng, is_hot);
        let max = limit.quota().max();
        // A node that is alone with a wrong clock counts in the windows of this clock, so most nodes must be connected.
        let can_set_clocks = rng.u32(..10) == 0;
        let has_costs = !is_hot && rng.u32(..3) == 0;
        Self {
            seed,
            hosts: rng.usize(3..=if is_hot { 5 } else { 7 }),
            limit,
            keys: if is_hot { 1 } else { [1, 1, 2, 8][rng.usize(..4)] },
            max_cost: if has_costs { rng.u64(1..=max.min(7)) } else { 1 },
            cluster_options: if is_hot {
                strict_cluster_options()
            } else {
                draw_random_cluster_options(&mut rng, max)
            },
            rate: if is_hot { 60 } else { [5, 20, 60][rng.usize(..3)] },
            revert_one_in: (rng.u32(..3) == 0).then(|| rng.u64(2..10)),
            has_removals: seed.is_multiple_of(4),
            interval: Duration::from_millis([50, 100, 250, 1_000][rng.usize(..4)]),
            fault_duration: Duration::from_secs(rng.u64(8..=20)),
            can_partition: (is_hot || rng.u32(..4) > 0) && !can_set_clocks,
            can_restart: rng.u32(..3) > 0 && !can_set_clocks,
            can_lose_frames: rng.u32(..5) > 0,
            can_set_clocks,
        }
    }

    /// Returns the maximum number of unacknowledged units that a node may have if it knows `nodes` nodes.
    pub fn max_unsynced(&self, nodes: u32) -> u64 {
        let default = bound::default_max_unsynced(&self.limit, nodes.max(2).into());
        self.cluster_options.max_unsynced().map_or(default, NonZeroU64::get)
    }

    /// Returns the window of the limit.
    pub fn window(&self) -> Duration {
        self.limit.quota().window()
    }
}

/// Draws a random limit. If `is_hot` is `true`, all requests use one key, and the limit has a long window.
fn draw_random_limit(rng: &mut Rng, is_hot: bool) -> Limit {
    let (max, window) = if is_hot {
        ([20, 100][rng.usize(..2)], ["5s", "20s"][rng.usize(..2)])
    } else {
        let max = [1, 2, 5, 20, 100, 400][rng.usize(..6)];
        (max, ["1s", "2s", "5s", "20s"][rng.usize(..4)])
    };
    let algorithm = match rng.u32(if is_hot { 1..5 } else { 0..5 }) {
        0 => Algorithm::SlidingCounter,
        1 => Algorithm::SlidingBuckets { precision: None },
        4 => {
            // 1024 does not divide the windows, so the buckets together are longer than the window.
            let resolution = [None, Some(8), Some(1_024)][rng.usize(..3)];
            Algorithm::SlidingWindow { resolution }
        }
        2 => Algorithm::FixedWindow { align: Align::Clock },
        _ => Algorithm::FixedWindow { align: Align::Key },
    };
    Limit::new(format!("{max}/{window}").parse().unwrap(), algorithm).unwrap()
}

/// Returns options that allow one unacknowledged unit per node.
fn strict_cluster_options() -> ClusterOptions {
    ClusterOptions::new().with_max_unsynced(1).unwrap()
}

/// Draws cluster options for a limit of `max` units.
fn draw_random_cluster_options(rng: &mut Rng, max: u64) -> ClusterOptions {
    let cluster_options = ClusterOptions::new();
    let on_partition =
        if rng.u32(..10) == 0 { OnPartition::Available } else { OnPartition::Bounded };
    let cluster_options = cluster_options.with_on_partition(on_partition);
    match rng.u32(..3) {
        0 => cluster_options.with_max_unsynced(rng.u64(1..=max)).unwrap(),
        _ => cluster_options,
    }
}
