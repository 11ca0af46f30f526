//! Units of other nodes are added to the state of a key when they arrive.

use std::sync::Arc;
use std::time::Duration;

use slidegate::store::{ClusterOptions, Hit, Key, OnPartition, Scope};
use slidegate::{Algorithm, Align, Limit, Timestamp};
use slidegate_cluster::counters::{ChargeAttempt, CounterSettings, Counters, MaxUnsyncedAction};
use slidegate_cluster::pn_counter::{CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::progress::{MemberProgress, Progress};
use slidegate_cluster::replicated_counters::ReplicatedCounters;

const START: Timestamp = Timestamp::from_micros(1_750_000_000_000_000);

/// The length of a bucket of the tested limit.
const BUCKET: Duration = Duration::from_secs(6);

/// A node of a cluster of two nodes. The other node acknowledges all charges.
struct TestNode {
    counters: Counters,
    scope: Scope,
    limit: Limit,
}

impl TestNode {
    fn new() -> Self {
        Self::with_algorithm(Algorithm::SlidingBuckets { precision: None })
    }

    fn with_algorithm(algorithm: Algorithm) -> Self {
        let settings = CounterSettings {
            incarnation: Incarnation(1),
            secret: [7; 16].into(),
            max_clock_skew_us: 0,
            sync_interval: Duration::from_millis(250),
            max_keys: 1_000,
            max_memory: 1 << 20,
        };
        let counters = Counters::new(settings, START);
        let other = MemberProgress {
            incarnation: Incarnation(2),
            acknowledged_flush: u64::MAX,
            silent_since: None,
        };
        counters.progress().store(Arc::new(Progress {
            members: vec![other],
            nodes: 2,
            majority_since: Some(START),
            ..Progress::default()
        }));
        let options = ClusterOptions::new()
            .with_max_unsynced(1_000)
            .unwrap()
            .with_on_partition(OnPartition::Available);
        let scope = Scope::new("d", "r", "l", &["client"]).with_cluster(options);
        let limit = Limit::new("10/min".parse().unwrap(), algorithm);
        Self { counters, scope, limit: limit.unwrap() }
    }

    /// Charges one unit. Returns the number of remaining units; `None` if the charge is denied.
    fn charge(&self, now: Timestamp) -> Option<u64> {
        let values = ["a".into()];
        let hit = Hit::new(Key::new(&self.scope, &values), &self.limit, 1);
        match self.counters.try_charge_request(&[hit], now, MaxUnsyncedAction::Deny).unwrap() {
            ChargeAttempt::Decided(result) => {
                result.allowed.then(|| result.outcomes[0].remaining())
            }
            ChargeAttempt::Unsynced => panic!("unsynced although all charges are acknowledged"),
        }
    }

    /// Returns the changed counters of the key, with the number of charged units of each.
    fn drain(&self, flush: u64) -> Vec<CounterUpdate> {
        let mut updates = Vec::new();
        self.counters.drain_changed_counters(flush, usize::MAX, &mut updates);
        updates
    }

    /// Merges an update: the other node has charged this number of units in the bucket of `update`.
    fn merge_charges(&self, update: &CounterUpdate, charged: u64, now: Timestamp) {
        let units = PnCounter { charged, removed: 0 };
        let update = CounterUpdate { incarnation: Incarnation(2), units, ..*update };
        self.counters.merge(&[update], now);
    }
}

fn charged_units(updates: &[CounterUpdate]) -> Vec<u64> {
    updates.iter().map(|update| update.units.charged).collect()
}

#[test]
fn added_units_are_counted_once_and_not_sent_back() {
    let node = TestNode::new();
    assert_eq!(node.charge(START), Some(9));
    let updates = node.drain(1);
    assert_eq!(charged_units(&updates), [1]);
    for (charged, remaining) in [(2, 6), (5, 2), (5, 1)] {
        node.merge_charges(&updates[0], charged, START);
        assert_eq!(node.charge(START), Some(remaining), "{charged}");
    }
    assert_eq!(charged_units(&node.drain(2)), [4], "only the units of this node");
}

#[test]
fn charges_before_units_are_added_are_sent() {
    let node = TestNode::new();
    node.charge(START);
    let updates = node.drain(1);
    node.charge(START);
    node.merge_charges(&updates[0], 3, START);
    assert_eq!(charged_units(&node.drain(2)), [2]);
    assert_eq!(node.charge(START), Some(4));
}

#[test]
fn overshoot_of_added_units_is_recorded() {
    let node = TestNode::new();
    node.charge(START);
    let updates = node.drain(1);
    node.merge_charges(&updates[0], 14, START);
    assert_eq!(node.charge(START), None);
    let later = START.after(12 * BUCKET);
    let update = CounterUpdate { bucket: updates[0].bucket + 12, ..updates[0] };
    node.merge_charges(&update, 1, later);
    assert_eq!(node.charge(later), Some(8));
    let (counts, sum) = node.counters.overshoot().snapshot();
    assert_eq!((counts.iter().sum::<u64>(), sum), (1, 0.5), "15 of 10 units");
}

#[test]
fn added_units_of_ended_bucket_are_counted_in_later_bucket() {
    let node = TestNode::new();
    node.charge(START);
    let updates = node.drain(1);
    let later = START.after(BUCKET);
    assert_eq!(node.charge(later), Some(8));
    node.merge_charges(&updates[0], 3, later);
    assert_eq!(node.charge(later), Some(4));
}

#[test]
fn charges_before_clock_was_ahead_count_again() {
    for algorithm in [
        Algorithm::SlidingBuckets { precision: None },
        Algorithm::SlidingWindow { resolution: None },
        Algorithm::SlidingCounter,
        Algorithm::FixedWindow { align: Align::Clock },
    ] {
        let node = TestNode::with_algorithm(algorithm);
        (0..9).for_each(|_| assert!(node.charge(START).is_some()));
        let updates = node.drain(1);
        let (ahead, later) = (START.after(20 * BUCKET), START.after(Duration::from_secs(1)));
        assert!(node.charge(ahead).is_some(), "{algorithm:?}");
        node.counters.prune(ahead);
        // The other node knows the charges that this node may have lost.
        node.counters.merge(&updates, later);
        assert_eq!(node.charge(later), None, "{algorithm:?}");
    }
}

#[test]
fn more_removed_than_charged_units_do_not_hide_later_charges() {
    let node = TestNode::new();
    node.charge(START);
    let own = node.drain(1)[0];
    let units = PnCounter { removed: 100, ..own.units };
    node.counters.merge(&[CounterUpdate { units, ..own }], START);
    assert_eq!(node.charge(START), Some(9), "the first charge was removed");
    node.drain(2);
    // Units of another bucket, so that the state is built from all counters.
    let earlier = CounterUpdate { bucket: own.bucket - 1, ..own };
    node.merge_charges(&earlier, 1, START);
    assert_eq!(node.charge(START), Some(7));
}
