//! Replicated counters in plain maps, without limits, expiry or memory bounds.

use std::collections::BTreeMap;
use std::sync::Mutex;

use slidegate::Timestamp;
use slidegate_cluster::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::{FlushSeq, ReplicatedCounters};

/// The bucket layout of all counters.
pub const BUCKET_LAYOUT: BucketLayout = BucketLayout {
    bucket_us: 10_000_000,
    buckets: 2,
    mean_excess_us: 0,
    epoch_offset_in_first_period_s: 0,
};

/// Counters by key, incarnation and bucket.
pub type CounterMap = BTreeMap<(u64, Incarnation, u64), PnCounter>;

/// The counters of one node.
#[derive(Debug)]
pub struct MapCounters {
    incarnation: Incarnation,
    state: Mutex<MapCountersState>,
}

/// The content of [`MapCounters`], inside its mutex.
#[derive(Debug, Default)]
struct MapCountersState {
    counters: CounterMap,
    /// For each key charged by this node, the last flush that contained the key; `None` if the key has unsent charges.
    last_flush: BTreeMap<u64, Option<FlushSeq>>,
}

impl MapCounters {
    /// Returns empty counters of one incarnation.
    pub fn new(incarnation: Incarnation) -> Self {
        Self { incarnation, state: Mutex::default() }
    }

    /// Charges one unit to a key.
    pub fn charge(&self, key: u64, now: Timestamp) {
        let mut state = self.state.lock().unwrap();
        let bucket = BUCKET_LAYOUT.bucket(now);
        state.counters.entry((key, self.incarnation, bucket)).or_default().charged += 1;
        state.last_flush.insert(key, None);
    }

    /// Returns a copy of all counters.
    pub fn all(&self) -> CounterMap {
        self.state.lock().unwrap().counters.clone()
    }

    /// Returns the units of a key that all incarnations together have charged.
    pub fn units(&self, key: u64) -> u64 {
        let state = self.state.lock().unwrap();
        let counters_of_key = state.counters.iter().filter(|((other, ..), _)| *other == key);
        counters_of_key.map(|(_, counter)| counter.charged).sum()
    }

    /// Calls `visit` for each counter with a key and an incarnation that `filter` accepts.
    fn visit_matching_counters(
        &self,
        state: &MapCountersState,
        filter: impl Fn(u64, Incarnation) -> bool,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        for (&(key, incarnation, bucket), &units) in &state.counters {
            if filter(key, incarnation) {
                visit(CounterUpdate { key, layout: BUCKET_LAYOUT, incarnation, bucket, units });
            }
        }
    }
}

impl ReplicatedCounters for MapCounters {
    fn drain_changed_counters(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        updates: &mut Vec<CounterUpdate>,
    ) -> bool {
        let mut state = self.state.lock().unwrap();
        let changed = state.last_flush.iter().filter(|(_, last_flush)| last_flush.is_none());
        let mut changed: Vec<u64> = changed.map(|(key, _)| *key).collect();
        let has_more = changed.len() > max_keys;
        changed.truncate(max_keys);
        self.visit_matching_counters(
            &state,
            |key, incarnation| incarnation == self.incarnation && changed.contains(&key),
            &mut |update| updates.push(update),
        );
        state.last_flush.extend(changed.into_iter().map(|key| (key, Some(flush))));
        has_more
    }

    fn visit_counters_changed_since(
        &self,
        flush: FlushSeq,
        include_remote: bool,
        _: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        let state = self.state.lock().unwrap();
        let last_flush = |key| state.last_flush.get(&key).copied().flatten();
        let has_changed = |key| last_flush(key).is_none_or(|last_flush| last_flush > flush);
        let filter = |key, incarnation| {
            if incarnation == self.incarnation { has_changed(key) } else { include_remote }
        };
        self.visit_matching_counters(&state, filter, visit);
    }

    fn visit_counters_of_incarnation(
        &self,
        incarnation: Incarnation,
        _: Timestamp,
        visit: &mut dyn FnMut(CounterUpdate),
    ) {
        let state = self.state.lock().unwrap();
        self.visit_matching_counters(&state, |_, other| other == incarnation, visit);
    }

    fn merge(&self, updates: &[CounterUpdate], _: Timestamp) {
        let mut state = self.state.lock().unwrap();
        for CounterUpdate { key, incarnation, bucket, units, .. } in updates {
            state.counters.entry((*key, *incarnation, *bucket)).or_default().merge(units);
        }
    }
}
