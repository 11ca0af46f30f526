//! A ledger of plain maps.

use std::collections::BTreeMap;
use std::sync::Mutex;

use slidegate::Timestamp;
use slidegate_cluster::counts::{BucketLayout, Incarnation, Tally, Told};
use slidegate_cluster::ledger::{Flush, Ledger};

pub const SHAPE: BucketLayout = BucketLayout { bucket_us: 10_000_000, buckets: 2 };

/// By key, incarnation and bucket.
pub type Tallies = BTreeMap<(u64, Incarnation, u64), Tally>;

/// The counts of one node.
#[derive(Debug)]
pub struct Map {
    me: Incarnation,
    kept: Mutex<HasTable>,
}

#[derive(Debug, Default)]
struct HasTable {
    tallies: Tallies,
    /// The flush that last told of an own key; none: something of it is to be told.
    told_in: BTreeMap<u64, Option<Flush>>,
}

impl Map {
    pub fn new(me: Incarnation) -> Self {
        Self { me, kept: Mutex::default() }
    }

    /// Charges a unit.
    pub fn charge(&self, key: u64, now: Timestamp) {
        let mut kept = self.kept.lock().unwrap();
        let bucket = SHAPE.bucket(now);
        kept.tallies.entry((key, self.me, bucket)).or_default().charged += 1;
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
        tell: &mut dyn FnMut(Told),
    ) {
        for (&(key, incarnation, bucket), &tally) in &kept.tallies {
            if tells(key, incarnation) {
                tell(Told { key, shape: SHAPE, incarnation, bucket, tally });
            }
        }
    }
}

impl Ledger for Map {
    fn take_changed(&self, flush: Flush, most_keys: usize, told: &mut Vec<Told>) -> bool {
        let mut kept = self.kept.lock().unwrap();
        let changed = kept.told_in.iter().filter(|(_, told_in)| told_in.is_none());
        let mut changed: Vec<u64> = changed.map(|(key, _)| *key).collect();
        let are_left = changed.len() > most_keys;
        changed.truncate(most_keys);
        self.tell(&kept, |key, of| of == self.me && changed.contains(&key), &mut |tally| {
            told.push(tally)
        });
        kept.told_in.extend(changed.into_iter().map(|key| (key, Some(flush))));
        are_left
    }

    fn changed_since(&self, flush: Flush, others: bool, _: Timestamp, tell: &mut dyn FnMut(Told)) {
        let kept = self.kept.lock().unwrap();
        let has_changed = |key| kept.told_in[&key].is_none_or(|told_in| told_in > flush);
        let tells = |key, of| if of == self.me { has_changed(key) } else { others };
        self.tell(&kept, tells, tell);
    }

    fn of(&self, incarnation: Incarnation, _: Timestamp, tell: &mut dyn FnMut(Told)) {
        self.tell(&self.kept.lock().unwrap(), |_, of| of == incarnation, tell);
    }

    fn merge(&self, told: &[Told], _: Timestamp) {
        let mut kept = self.kept.lock().unwrap();
        for Told { key, incarnation, bucket, tally, .. } in told {
            kept.tallies.entry((*key, *incarnation, *bucket)).or_default().merge(tally);
        }
    }
}
