//! Who comes most, of more than can be kept: Space-Saving. Pure: it knows no time, no lock, no names.
//!
//! Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data
//! streams", ICDT 2005. It keeps `k` keys. One that is not kept takes the place of the least, and its
//! count goes on from there: the count of the least is then the *error* of the newcomer. Merged as Agarwal,
//! Cormode, Huang, Phillips, Wei and Yi show in "Mergeable summaries", PODS 2012.
//!
//! Whatever comes, in whichever order, merged however often: of N in all,
//! - `count - max_overcount <= truth <= count` for every key that is kept,
//! - `max_overcount <= N / k`,
//! - a key whose truth is beyond `N / k` is kept.
//!
//! No crate has just that. `topk` takes all its room at once, six kilobytes for each rule and minute, and
//! owns every key that it is shown, kept or not; `datasketches` has one error for all keys, so that one
//! flood makes every count doubtful.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

/// By keys, which are hashes.
type MapByKey<T> = HashMap<u64, T, foldhash::fast::RandomState>;

/// The keys that came most. A key is a hash; what is known of it, an `L`, goes with it.
#[derive(Debug)]
pub struct Summary<L> {
    /// In no order; an entry stays where it is.
    entries: Vec<Entry<L>>,
    indices: MapByKey<u32>,
    /// All entries, the least first, by the counts that they had when last looked at: only who seeks the
    /// least looks, so that a key that is known costs little.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// What a key that is not kept may have had: the count of the last that had to go.
    untracked_max: u64,
    total: u64,
}

#[derive(Debug)]
struct Entry<L> {
    key: u64,
    count: u64,
    max_overcount: u64,
    label: L,
}

/// A key that is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopEntry<L> {
    pub label: L,
    /// Never too low.
    pub count: u64,
    /// `count - max_overcount` is never too high.
    pub max_overcount: u64,
}

impl<L> Default for Summary<L> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            indices: MapByKey::default(),
            heap: BinaryHeap::new(),
            untracked_max: 0,
            total: 0,
        }
    }
}

impl<L: Default> Summary<L> {
    /// Counts so much of a key. `can_grow` tells whether there is room for one more than the number that it
    /// is given; once a key had to go, it is not asked again. Only of a key that is new `label` is asked,
    /// to be written over what the last one left.
    pub fn count(
        &mut self,
        key: u64,
        cost: u64,
        can_grow: impl FnOnce(usize) -> bool,
        label: impl FnOnce(&mut L),
    ) {
        self.total = self.total.saturating_add(cost);
        if let Some(&index) = self.indices.get(&key) {
            self.entries[index as usize].add(cost);
        } else if self.untracked_max == 0 && can_grow(self.entries.len()) {
            self.push(key, cost, label);
        } else {
            self.replace_least(key, cost, label);
        }
    }

    fn push(&mut self, key: u64, cost: u64, label: impl FnOnce(&mut L)) {
        let index = self.entries.len() as u32;
        let mut entry = Entry { key, count: cost, max_overcount: 0, label: L::default() };
        label(&mut entry.label);
        self.entries.push(entry);
        self.indices.insert(key, index);
        self.heap.push(Reverse((cost, index)));
    }

    fn replace_least(&mut self, key: u64, cost: u64, label: impl FnOnce(&mut L)) {
        while let Some(mut least) = self.heap.peek_mut() {
            let Reverse((queued_count, index)) = &mut *least;
            let entry = &mut self.entries[*index as usize];
            if *queued_count == entry.count {
                self.indices.remove(&entry.key);
                self.indices.insert(key, *index);
                self.untracked_max = entry.count;
                (entry.key, entry.max_overcount) = (key, entry.count);
                entry.add(cost);
                label(&mut entry.label);
                *queued_count = entry.count;
                return;
            }
            *queued_count = entry.count;
        }
    }
}

impl<L> Entry<L> {
    fn add(&mut self, cost: u64) {
        self.count = self.count.saturating_add(cost);
    }
}

/// Several summaries as one.
#[derive(Debug)]
pub struct Merged<L> {
    entries: MapByKey<MergedEntry<L>>,
    /// What a key that is not kept may have had.
    untracked_max: u64,
    total: u64,
}

/// A key in several summaries.
#[derive(Clone, Copy, Debug)]
struct MergedEntry<L> {
    label: L,
    /// By how much it is more than the floor of every summary that it may have been in: what decides who
    /// is kept. Never beyond the truth, and `sure + untracked_max` is never below it.
    sure: u64,
    /// Never above the truth.
    least: u64,
    /// Never below the truth.
    most: u64,
}

impl<L> Default for Merged<L> {
    fn default() -> Self {
        Self { entries: MapByKey::default(), untracked_max: 0, total: 0 }
    }
}

impl<'s, L> From<&'s Summary<L>> for Merged<&'s L> {
    fn from(summary: &'s Summary<L>) -> Self {
        let entries = summary.entries.iter().map(|Entry { key, count, max_overcount, label }| {
            let sure = count.saturating_sub(summary.untracked_max);
            (
                *key,
                MergedEntry {
                    label,
                    sure,
                    least: count.saturating_sub(*max_overcount),
                    most: *count,
                },
            )
        });
        Self {
            entries: entries.collect(),
            untracked_max: summary.untracked_max,
            total: summary.total,
        }
    }
}

impl<L: Copy> Merged<L> {
    /// Both as one, of at most `capacity` keys. In which order, and into how many, changes no promise.
    pub fn merge(mut self, other: Self, capacity: usize) -> Self {
        let (mine, theirs) = (self.untracked_max, other.untracked_max);
        for (key, entry) in &mut self.entries {
            if !other.entries.contains_key(key) {
                entry.most = entry.most.saturating_add(theirs);
            }
        }
        for (key, theirs) in other.entries {
            let absent = MergedEntry { label: theirs.label, sure: 0, least: 0, most: mine };
            let entry = self.entries.entry(key).or_insert(absent);
            entry.sure = entry.sure.saturating_add(theirs.sure);
            entry.least = entry.least.saturating_add(theirs.least);
            entry.most = entry.most.saturating_add(theirs.most);
        }
        self.untracked_max = mine.saturating_add(theirs);
        self.total = self.total.saturating_add(other.total);
        self.truncate(capacity);
        self
    }

    /// The surest of them. What the first of the others has is taken from each that stays, and added to
    /// the floor: that is what makes it mergeable, since as much goes from all as the bound allows.
    fn truncate(&mut self, capacity: usize) {
        if self.entries.len() <= capacity {
            return;
        }
        let mut all: Vec<(u64, MergedEntry<L>)> = self.entries.drain().collect();
        all.sort_unstable_by_key(|(_, entry)| Reverse((entry.sure, entry.most)));
        let cutoff = all[capacity].1.sure;
        all.truncate(capacity);
        all.iter_mut().for_each(|(_, entry)| entry.sure -= cutoff);
        self.untracked_max = self.untracked_max.saturating_add(cutoff);
        self.entries.extend(all);
    }

    /// All that was counted, exactly.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// The keys that are kept, those that came most first; of those that came alike, the surer one.
    pub fn top_entries(&self) -> Vec<TopEntry<L>> {
        let top_entries = |&MergedEntry { label, least, most, .. }: &MergedEntry<L>| {
            let max_overcount = most.saturating_sub(least);
            TopEntry { label, count: most, max_overcount }
        };
        let mut all: Vec<TopEntry<L>> = self.entries.values().map(top_entries).collect();
        all.sort_unstable_by_key(|key| (Reverse(key.count), key.max_overcount));
        all
    }
}
