//! Upper bound of the overshoot. The overshoot is the number of units that a cluster admits beyond a limit.
//!
//! A node stops admitting requests for a key when it has charged `max_unsynced` units (N below) that not every member
//! has acknowledged. A single charge above N is admitted if the node has no unacknowledged units. So at most C = max(N,
//! largest cost) units of each node are unknown to any other node. A node that admits a request sees at most max units
//! including the request, and misses at most C units of each other node. So all nodes together admit at most max +
//! (nodes - 1) * C units into the window on which the node bases its decision. `nodes` is the number of incarnations
//! that charge within the window: a node that restarts counts twice. A node whose clock was outside the limit for a
//! while counts up to five times: once before; twice while its clock was wrong, since two of its fixed windows can
//! overlap one window of the other nodes; and twice after, since charges that it makes before it has received its lost
//! counters again can be counted together with them.
//!
//! The bound holds for any window of a `sliding_buckets` limit, since its buckets cover the whole window in each
//! decision, and for any window of a `sliding_window` limit, which the nodes count in buckets. An arbitrary time range of
//! the window's length can overlap two windows of a `fixed_window` limit, or two counts of a `sliding_counter` limit. Each
//! of the two is limited separately, so each can exceed its maximum by this amount.

use slidegate::{Algorithm, Align, Limit};

/// Returns the maximum overshoot of a cluster: the number of units that it can admit into any window of the limit's
/// length in addition to the maximum of a single node.
///
/// The timestamp that the charging node has assigned to a charge determines the windows to which the charge belongs.
///
/// - `nodes`: number of node incarnations that charge within the window, at least 1. A restarted node counts twice.
/// - `max_unsynced`: units that a node may charge before every member has acknowledged them. If the rule does not set
///   the value, it is [`default_max_unsynced`].
/// - `largest_cost`: the largest cost of one request, in units.
///
/// ```
/// use slidegate::{Algorithm, Align, Limit};
/// use slidegate_cluster::bound::{default_max_unsynced, max_units_in_window, overshoot_bound};
///
/// let buckets = Algorithm::SlidingBuckets { precision: None };
/// let limit = Limit::new("6000/min".parse()?, buckets)?;
/// let max_unsynced = default_max_unsynced(&limit, 3);
/// assert_eq!(max_unsynced, 1_000);
/// assert_eq!(overshoot_bound(&limit, 3, max_unsynced, 1), 2_000);
/// assert_eq!(max_units_in_window(&limit, 3, max_unsynced, 1), 8_000);
/// assert_eq!(overshoot_bound(&limit, 1, max_unsynced, 1), 0, "a single node is exact");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn overshoot_bound(limit: &Limit, nodes: u64, max_unsynced: u64, largest_cost: u64) -> u64 {
    let unknown_units = nodes.saturating_sub(1).saturating_mul(max_unsynced.max(largest_cost));
    unknown_units.saturating_mul(overshoot_factor_for_any_window(limit))
}

/// Returns the maximum number of units that the nodes of a cluster admit into any window of the limit's length: the
/// maximum of a single node plus [`overshoot_bound`].
pub fn max_units_in_window(limit: &Limit, nodes: u64, max_unsynced: u64, largest_cost: u64) -> u64 {
    max_units_of_single_node(limit).saturating_add(overshoot_bound(
        limit,
        nodes,
        max_unsynced,
        largest_cost,
    ))
}

/// Returns the default value of `max_unsynced`, the number of units that a node may charge before every member has
/// acknowledged them.
///
/// It is the capacity of the limit divided by twice the number of nodes, but at least 1.
pub fn default_max_unsynced(limit: &Limit, nodes: u64) -> u64 {
    (limit.capacity() / nodes.max(1).saturating_mul(2)).max(1)
}

/// Returns the maximum number of units that a single node admits into any window of the limit's length.
fn max_units_of_single_node(limit: &Limit) -> u64 {
    let max = limit.quota().max();
    match limit.algorithm() {
        Algorithm::SlidingWindow { .. }
        | Algorithm::SlidingLog
        | Algorithm::SlidingBuckets { .. }
        | Algorithm::Concurrent => max,
        Algorithm::SlidingCounter => (2 * max).saturating_sub(1),
        Algorithm::FixedWindow { align: Align::Calendar(_) } => 3 * max,
        Algorithm::FixedWindow { .. } => 2 * max,
        Algorithm::TokenBucket { .. } => max + limit.capacity(),
    }
}

/// Returns the factor by which the overshoot is multiplied for an arbitrary time range of one window's length. The
/// factor is 2 for `fixed_window` and `sliding_counter`, since such a range can overlap two windows or two counts, and
/// each of the two can exceed its maximum. It is 3 for a calendar limit, since a range of 31 days can contain February,
/// and parts of January and March. For other algorithms, the factor is 1.
fn overshoot_factor_for_any_window(limit: &Limit) -> u64 {
    match limit.algorithm() {
        Algorithm::FixedWindow { align: Align::Calendar(_) } => 3,
        Algorithm::SlidingCounter | Algorithm::FixedWindow { .. } => 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn new_limit_per_minute(max: u64, algorithm: Algorithm) -> Limit {
        Limit::new(format!("{max}/min").parse().unwrap(), algorithm).unwrap()
    }

    #[test]
    fn single_node_cluster_bound_equals_algorithm_bound() {
        for limit in slidegate::testkit::properties::limits() {
            let algorithm_bound = slidegate::testkit::properties::max_units_in_window(&limit);
            assert_eq!(max_units_in_window(&limit, 1, 100, 100), algorithm_bound, "{limit}");
        }
    }

    #[test]
    fn sliding_counter_has_twice_the_overshoot() {
        let buckets = new_limit_per_minute(100, Algorithm::SlidingBuckets { precision: None });
        assert_eq!(max_units_in_window(&buckets, 3, 10, 25), 100 + 2 * 25);
        let window = new_limit_per_minute(100, Algorithm::SlidingCounter);
        assert_eq!(max_units_in_window(&window, 3, 10, 1), 199 + 2 * 2 * 10);
    }

    #[test]
    fn max_units_in_window_saturates_at_u64_max() {
        let window = new_limit_per_minute(100, Algorithm::SlidingCounter);
        assert_eq!(max_units_in_window(&window, u64::MAX, u64::MAX, 1), u64::MAX);
        assert_eq!(overshoot_bound(&window, 0, 7, 7), 0);
    }
}
