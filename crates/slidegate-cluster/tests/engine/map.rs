//! A ledger of plain maps.

use std::collections::BTreeMap;
use std::sync::Mutex;

use slidegate::Timestamp;
use slidegate_cluster::pn_counter::{BucketLayout, CounterUpdate, Incarnation, PnCounter};
use slidegate_cluster::replicated_counters::{FlushSeq, ReplicatedCounters};

pub const SHAPE: BucketLayout = BucketLayout { bucket_us: 10_000_000, buckets: 2 };

/// By key, incarnation and bucket.
pub type Tallies = BTreeMap<(u64, Incarnation, u64), PnCounter>;

/// The counts of one node.
#[derive(Debug)]
pub struct Map {
    incarnation: Incarnation,
    kept: Mutex<HasTable>,
}

#[derive(Debug, Default)]
struct HasTable {
    tallies: Tallies,
    /// The flush that last told of an own key; none: something of it is to be told.
    told_in: BTreeMap<u64, Option<FlushSeq>>,
}

impl Map {
    pub fn new(me: Incarnation) -> Self {
        Self { incarnation: me, kept: Mutex::default() }
    }

    /// Charges a unit.
    pub fn charge(&self, key: u64, now: Timestamp) {
        let mut kept = self.kept.lock().unwrap();
        let bucket = SHAPE.bucket(now);
        kept.tallies.entry((key, self.incarnation, bucket)).or_default().charged += 1;
        kept.told_in.insert(key, None);
    }

    /// All that is known.
    pub fn tallies(&self) -> Tallies {
        self.kept.lock().unwrap().tallies.clone()
    }

    /// Units of a key that are known, whoever has charged them.
    pub fn units(&self, key: u64) -> u64 {
        let kept = self.kept.lock().unwrap();
        let of_key = kept.tallies.iter().filter(|((of, ..), _)| *of == key);
        of_key.map(|(_, tally)| tally.charged).sum()
    }

    fn tell(
        &self,
        kept: &HasTable,
        tells: impl Fn(u64, Incarnation) -> bool,
        tell: &mut dyn FnMut(CounterUpdate),
    ) {
        for (&(key, incarnation, bucket), &tally) in &kept.tallies {
            if tells(key, incarnation) {
                tell(CounterUpdate { key, layout: SHAPE, incarnation, bucket, units: tally });
            }
        }
    }
}

impl ReplicatedCounters for Map {
    fn drain_changed(
        &self,
        flush: FlushSeq,
        max_keys: usize,
        told: &mut Vec<CounterUpdate>,
    ) -> bool {
        let mut kept = self.kept.lock().unwrap();
        let changed = kept.told_in.iter().filter(|(_, told_in)| told_in.is_none());
        let mut changed: Vec<u64> = changed.map(|(key, _)| *key).collect();
        let are_left = changed.len() > max_keys;
        changed.truncate(max_keys);
        self.tell(
            &kept,
            |key, of| of == self.incarnation && changed.contains(&key),
            &mut |tally| told.push(tally),
        );
        kept.told_in.extend(changed.into_iter().map(|key| (key, Some(flush))));
        are_left
    }

    fn visit_changed_since(
        &self,
        flush: FlushSeq,
        others: bool,
        _: Timestamp,
        tell: &mut dyn FnMut(CounterUpdate),
    ) {
        let kept = self.kept.lock().unwrap();
        let has_changed = |key| kept.told_in[&key].is_none_or(|told_in| told_in > flush);
        let tells = |key, of| if of == self.incarnation { has_changed(key) } else { others };
        self.tell(&kept, tells, tell);
    }

    fn visit_incarnation(
        &self,
        incarnation: Incarnation,
        _: Timestamp,
        tell: &mut dyn FnMut(CounterUpdate),
    ) {
        self.tell(&self.kept.lock().unwrap(), |_, of| of == incarnation, tell);
    }

    fn merge(&self, told: &[CounterUpdate], _: Timestamp) {
        let mut kept = self.kept.lock().unwrap();
        for CounterUpdate { key, incarnation, bucket, units: tally, .. } in told {
            kept.tallies.entry((*key, *incarnation, *bucket)).or_default().merge(tally);
        }
    }
}
