//! Statistics of simulated runs, and checks of the allowed charges against the documented overshoot bound.

use std::collections::BTreeMap;

use slidegate::testkit::oracle::Oracle;
use slidegate::{Algorithm, Limit, Timestamp};
use slidegate_cluster::bound;
use slidegate_cluster::pn_counter::Incarnation;

/// A charge of an allowed request.
#[derive(Clone, Copy, Debug)]
pub struct AllowedCharge {
    /// Time of the charge on the clock of the node while it is right.
    pub timestamp_us: u64,
    /// Time of the charge on the clock of the simulation.
    pub true_time_us: u64,
    /// Units charged.
    pub units: u64,
    /// The incarnation of the node that charged the units.
    pub incarnation: Incarnation,
    /// The number of times that the clock of the node was set before. A node whose clock was set counts as another
    /// node.
    pub clock_jumps: u64,
    /// Maximum number of unacknowledged units that the node was allowed to have at this time.
    pub max_unsynced: u64,
    /// Whether the charge has been reverted, or may have been removed by a reset or a refund.
    pub is_reverted: bool,
}

impl AllowedCharge {
    /// Returns the maximum number of units that the node has charged and that other nodes do not know. After a clock was
    /// set back, these are twice as many: the node may have lost counters, and may make further charges with the same
    /// counters before it receives them again.
    fn max_unknown_units(&self) -> u64 {
        let was_set_back = self.clock_jumps > 0 && self.clock_jumps.is_multiple_of(2);
        let factor = if was_set_back { 2 } else { 1 };
        factor * self.max_unsynced.max(self.units)
    }
}

/// Statistics of one or more runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Number of runs.
    pub runs: u64,
    /// Number of allowed requests.
    pub allowed: u64,
    /// Number of denied requests.
    pub denied: u64,
    /// Number of requests that waited for acknowledgements.
    pub unsynced: u64,
    /// Number of frames sent.
    pub frames: u64,
    /// Number of nodes stopped during a run.
    pub stopped: u64,
    /// Number of stopped nodes that announced their departure.
    pub left: u64,
    /// Number of times that a clock was set to a wrong or a right time.
    pub set_clocks: u64,
    /// Number of network changes that caused a partition.
    pub partitions: u64,
    /// Number of charges that a node made although a silent member had not acknowledged the earlier charges.
    pub proceeded_without_silent: u64,
    /// Number of units that were charged after the last reset or refund of their key. All of them must be in the
    /// counters at the end.
    pub charged_after_removal: u64,
    /// Number of counters compared at the end.
    pub compared_counters: u64,
    /// Number of runs in which a window contained more units than a single node admits.
    pub overshoot_runs: u64,
    /// Maximum number of units in a window, in thousandths of the bound.
    pub max_bound_permille: u64,
}

impl RunStats {
    /// Adds the statistics of other runs.
    pub fn add(&mut self, other: &Self) {
        self.runs += other.runs;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unsynced += other.unsynced;
        self.frames += other.frames;
        self.stopped += other.stopped;
        self.left += other.left;
        self.set_clocks += other.set_clocks;
        self.partitions += other.partitions;
        self.proceeded_without_silent += other.proceeded_without_silent;
        self.charged_after_removal += other.charged_after_removal;
        self.compared_counters += other.compared_counters;
        self.overshoot_runs += other.overshoot_runs;
        self.max_bound_permille = self.max_bound_permille.max(other.max_bound_permille);
    }

    /// Asserts that faults, waiting requests and overshoot were frequent enough in the runs to test the guarantees.
    ///
    /// # Panics
    ///
    /// Panics if faults, waits or overshoot were too rare.
    pub fn assert_coverage(&self) {
        assert!(self.allowed > 100 * self.runs && self.denied > 100 * self.runs, "{self:?}");
        assert!(self.unsynced > self.runs && self.stopped > self.runs, "{self:?}");
        assert!(self.left > self.runs / 10 && self.partitions > self.runs, "{self:?}");
        assert!(
            self.proceeded_without_silent > self.runs / 10 && self.compared_counters > self.runs,
            "{self:?}"
        );
        assert!(self.set_clocks > self.runs / 10, "{self:?}");
        assert!(self.charged_after_removal > self.runs / 4, "{self:?}");
        assert!(self.overshoot_runs > self.runs / 20 && self.max_bound_permille > 800, "{self:?}");
    }
}

/// Units charged to one key in one window.
#[derive(Default)]
struct WindowUsage {
    units: u64,
    max_unknown: MaxUnknownUnits,
}

/// The maximum number of units that are unknown to other nodes, for each incarnation and number of clock jumps.
type MaxUnknownUnits = BTreeMap<(Incarnation, u64), u64>;

/// Checks the charges to one key against the overshoot bound, for each window that ends with a charge.
///
/// # Errors
///
/// Returns a description of the first window with too many units.
pub fn check_bound(
    limit: &Limit,
    charges: &[AllowedCharge],
    stats: &mut RunStats,
) -> Result<(), String> {
    let mut charges: Vec<&AllowedCharge> =
        charges.iter().filter(|charge| !charge.is_reverted).collect();
    charges.sort_by_key(|charge| charge.timestamp_us);
    let window_us = limit.quota().window().as_micros() as u64;
    let single_node_bound = bound::max_units_in_window(limit, 1, 0, 0);
    let mut max_units = 0;
    for (nth, last) in charges.iter().enumerate() {
        let is_last_at_timestamp =
            charges.get(nth + 1).is_none_or(|next| next.timestamp_us > last.timestamp_us);
        if !is_last_at_timestamp {
            continue;
        }
        let usage = units_in_window_ending_at(&charges[..=nth], last.timestamp_us, window_us);
        let bound = max_units_of_cluster(limit, &usage.max_unknown);
        max_units = max_units.max(usage.units);
        stats.max_bound_permille = stats.max_bound_permille.max(usage.units * 1_000 / bound.max(1));
        if usage.units > bound {
            let WindowUsage { units, max_unknown } = usage;
            let end_us = last.timestamp_us;
            return Err(format!(
                "{units} units in the window that ends at {end_us}, at most {bound}: {max_unknown:?}"
            ));
        }
    }
    if charges.len() < 300 {
        assert_eq!(
            max_units,
            brute_force_max_units_in_window(limit, &charges),
            "the oracle computes a different maximum"
        );
    }
    stats.overshoot_runs = stats.overshoot_runs.max(u64::from(max_units > single_node_bound));
    Ok(())
}

/// Returns the units charged in the window that ends with the last of `charges`, which are sorted by timestamp.
fn units_in_window_ending_at(
    charges: &[&AllowedCharge],
    end_us: u64,
    window_us: u64,
) -> WindowUsage {
    let mut usage = WindowUsage::default();
    for charge in charges.iter().rev().take_while(|charge| charge.timestamp_us + window_us > end_us)
    {
        usage.units += charge.units;
        let max_unknown =
            usage.max_unknown.entry((charge.incarnation, charge.clock_jumps)).or_default();
        *max_unknown = (*max_unknown).max(charge.max_unknown_units());
    }
    usage
}

/// Returns the documented maximum number of units in a window, generalized to a different maximum of unacknowledged
/// units for each node.
fn max_units_of_cluster(limit: &Limit, max_unknown: &MaxUnknownUnits) -> u64 {
    let mut max_unknown: Vec<u64> = max_unknown.values().copied().collect();
    max_unknown.sort_unstable();
    let overshoot =
        max_unknown.iter().skip(1).map(|units| bound::overshoot_bound(limit, 2, *units, 0));
    bound::max_units_in_window(limit, 1, 0, 0) + overshoot.sum::<u64>()
}

/// Returns the maximum number of units in any window, computed by brute force.
fn brute_force_max_units_in_window(limit: &Limit, charges: &[&AllowedCharge]) -> u64 {
    let mut oracle = Oracle::default();
    for charge in charges {
        oracle.charge(Timestamp::from_micros(charge.timestamp_us), charge.units);
    }
    oracle.max_units_in_any_window(limit.quota().window())
}

/// Checks each window of a `fixed_window` limit against its own bound, which is stricter than the bound of an arbitrary
/// window. Does nothing for other algorithms. `phase_us` is the offset of the windows of the key.
///
/// # Errors
///
/// Returns a description of the first window with too many units.
pub fn check_fixed_windows(
    limit: &Limit,
    charges: &[AllowedCharge],
    phase_us: u64,
) -> Result<(), String> {
    if !matches!(limit.algorithm(), Algorithm::FixedWindow { .. }) {
        return Ok(());
    }
    let window_us = limit.quota().window().as_micros() as u64;
    let mut windows: BTreeMap<u64, WindowUsage> = BTreeMap::new();
    for charge in charges.iter().filter(|charge| !charge.is_reverted) {
        let usage = windows.entry((charge.timestamp_us + phase_us) / window_us).or_default();
        usage.units += charge.units;
        let max_unknown =
            usage.max_unknown.entry((charge.incarnation, charge.clock_jumps)).or_default();
        // Two windows of a wrong clock can overlap one window of the right clocks.
        let overlapping_windows = 1 + charge.clock_jumps % 2;
        *max_unknown = (*max_unknown).max(overlapping_windows * charge.max_unknown_units());
    }
    for (window, WindowUsage { units, max_unknown }) in windows {
        let mut unknown_units: Vec<u64> = max_unknown.values().copied().collect();
        unknown_units.sort_unstable();
        let bound = limit.quota().max() + unknown_units.iter().skip(1).sum::<u64>();
        if units > bound {
            return Err(format!(
                "{units} units in fixed window {window}, at most {bound}: {max_unknown:?}"
            ));
        }
    }
    Ok(())
}
