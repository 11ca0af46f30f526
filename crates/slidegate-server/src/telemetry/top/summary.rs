//! Approximate counts of the most frequent keys in bounded memory, by the Filtered Space-Saving algorithm. Pure data
//! structure without time, locks or key names.
//!
//! Metwally, Agrawal and El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005:
//! a summary holds `k` keys. A key that is not held replaces the key with the smallest count and continues from that
//! count, which is recorded as the *maximum overcount* of the new key.
//!
//! Homem and Carvalho, "Finding top-k elements in data streams", Information Sciences 2010: keys that are not held
//! share counters, each of which is an upper bound of the true count of all its keys. A key replaces the key with the
//! smallest count only when its counter has reached that count, and continues from its counter. Rare keys then replace
//! each other seldom, which is faster, and the counts are closer to the truth.
//!
//! Merging follows Agarwal, Cormode, Huang, Phillips, Wei and Yi, "Mergeable summaries", PODS 2012.
//!
//! For every order of keys and of merges, if N is the total of all counts:
//!
//! - `count - max_overcount <= true count <= count` for every key that is held,
//! - `max_overcount <= N / k`,
//! - every key with a true count above `N / k` is held.
//!
//! No existing crate is suitable. `topk` allocates its whole capacity in advance, six kilobytes per rule and minute,
//! and clones every key that it counts. `datasketches` has one error bound for all keys, so that one flood makes every
//! count uncertain.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::mem;

/// A map from the hash of a key to a value.
type MapByKeyHash<T> = HashMap<u64, T, foldhash::fast::RandomState>;

/// Number of shared counters for each key that a summary holds.
const SHARED_COUNTERS_PER_KEY: usize = 4;

/// A summary of the most frequent keys with approximate counts. Keys are identified by their hashes, and each has a
/// label of type `L`.
#[derive(Debug)]
pub struct Summary<L> {
    /// The keys with their counts, in no particular order. Each entry keeps its index.
    entries: Vec<SummaryEntry<L>>,
    indices: MapByKeyHash<u32>,
    /// The count and index of each entry, smallest count first. A count may be outdated: it is updated only when the
    /// smallest entry is needed, so that a key that the summary already holds is incremented quickly.
    heap: BinaryHeap<Reverse<(u64, u32)>>,
    /// Upper bounds of the true counts of the keys that the summary does not hold, which share these counters by their
    /// hashes. Empty until the first key that cannot be added.
    filter: Box<[u64]>,
    /// The largest counter of the filter, which is an upper bound of the true count of every key that the summary does
    /// not hold.
    max_untracked_count: u64,
    total: u64,
}

/// A key that the summary holds, with its approximate count.
#[derive(Debug)]
struct SummaryEntry<L> {
    key: u64,
    count: u64,
    max_overcount: u64,
    label: L,
}

/// A frequent key with its approximate count, as the result of merged summaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TopEntry<L> {
    pub label: L,
    /// Upper bound of the true count of the key.
    pub count: u64,
    /// Maximum difference between `count` and the true count: the true count is at least `count - max_overcount`.
    pub max_overcount: u64,
}

impl<L> Default for Summary<L> {
    fn default() -> Self {
        Self {
            entries: Vec::new(),
            indices: MapByKeyHash::default(),
            heap: BinaryHeap::new(),
            filter: Box::default(),
            max_untracked_count: 0,
            total: 0,
        }
    }
}

impl<L: Default> Summary<L> {
    /// Adds `amount` to the count of a key. If the key is new, calls `can_grow` with the number of held keys. If
    /// `can_grow` returns `true`, the new key is added. Otherwise the new key is counted in the filter, and replaces
    /// the key with the smallest count once it may be as frequent. From then on, `can_grow` is not called any more.
    /// `write_label` is called only for a key that is added, and overwrites the label of a replaced key.
    pub fn add(
        &mut self,
        key: u64,
        amount: u64,
        can_grow: impl FnOnce(usize) -> bool,
        write_label: impl FnOnce(&mut L),
    ) {
        self.total = self.total.saturating_add(amount);
        if let Some(&index) = self.indices.get(&key) {
            self.entries[index as usize].increase_count(amount);
        } else if self.max_untracked_count == 0 && can_grow(self.entries.len()) {
            self.push_new_key(key, amount, write_label);
        } else {
            self.count_untracked_key(key, amount, write_label);
        }
    }

    fn push_new_key(&mut self, key: u64, amount: u64, write_label: impl FnOnce(&mut L)) {
        let index = self.entries.len() as u32;
        let mut entry = SummaryEntry { key, count: amount, max_overcount: 0, label: L::default() };
        write_label(&mut entry.label);
        self.entries.push(entry);
        self.indices.insert(key, index);
        self.heap.push(Reverse((amount, index)));
    }

    /// Counts a key that the summary does not hold. Replaces the key with the smallest count if the new key may be as
    /// frequent.
    fn count_untracked_key(&mut self, key: u64, amount: u64, write_label: impl FnOnce(&mut L)) {
        if self.filter.is_empty() {
            let counters = self.entries.len().next_power_of_two() * SHARED_COUNTERS_PER_KEY;
            self.filter = vec![0; counters].into();
        }
        let Some(smallest) = self.find_smallest_count() else { return };
        let counter = self.shared_counter_index(key);
        let (overcount, count) =
            (self.filter[counter], self.filter[counter].saturating_add(amount));
        let replaced_count = self.entries[smallest].count;
        if count < replaced_count {
            self.filter[counter] = count;
            self.max_untracked_count = self.max_untracked_count.max(count);
            return;
        }
        let entry = &mut self.entries[smallest];
        let replaced = mem::replace(&mut entry.key, key);
        (entry.count, entry.max_overcount) = (count, overcount);
        write_label(&mut entry.label);
        self.indices.remove(&replaced);
        self.indices.insert(key, smallest as u32);
        let counter = self.shared_counter_index(replaced);
        self.filter[counter] = replaced_count;
        self.max_untracked_count = self.max_untracked_count.max(replaced_count);
    }

    fn shared_counter_index(&self, key: u64) -> usize {
        // The length is a power of two, so the mask selects a valid index.
        key as usize & (self.filter.len() - 1)
    }

    /// Returns the index of the entry with the smallest count. For this, updates outdated counts in the heap.
    fn find_smallest_count(&mut self) -> Option<usize> {
        while let Some(mut smallest) = self.heap.peek_mut() {
            let Reverse((queued_count, index)) = &mut *smallest;
            let index = *index as usize;
            let count = self.entries[index].count;
            if *queued_count == count {
                // The peeked entry is unchanged, so dropping it does not move entries of the heap.
                return Some(index);
            }
            *queued_count = count;
        }
        None
    }
}

impl<L> Summary<L> {
    /// Returns the number of keys that the summary holds.
    pub fn keys(&self) -> usize {
        self.entries.len()
    }
}

impl<L> SummaryEntry<L> {
    fn increase_count(&mut self, amount: u64) {
        self.count = self.count.saturating_add(amount);
    }
}

/// The combination of several summaries of frequent keys.
#[derive(Debug)]
pub struct MergedSummary<L> {
    entries: MapByKeyHash<MergedSummaryEntry<L>>,
    /// Upper bound of the true count of a key that the combination does not hold.
    max_untracked_count: u64,
    total: u64,
}

/// A key in a combination of summaries, with its approximate count.
#[derive(Clone, Copy, Debug)]
struct MergedSummaryEntry<L> {
    label: L,
    /// The sum of `count - max_untracked_count` over the merged summaries. The keys with the largest excess are kept.
    /// The excess never exceeds the true count, and `excess + max_untracked_count` is never less than the true count.
    excess: u64,
    /// Lower bound of the true count of the key.
    min_count: u64,
    /// Upper bound of the true count of the key.
    max_count: u64,
}

impl<L> Default for MergedSummary<L> {
    fn default() -> Self {
        Self { entries: MapByKeyHash::default(), max_untracked_count: 0, total: 0 }
    }
}

impl<'s, L> From<&'s Summary<L>> for MergedSummary<&'s L> {
    fn from(summary: &'s Summary<L>) -> Self {
        let entries =
            summary.entries.iter().map(|SummaryEntry { key, count, max_overcount, label }| {
                let excess = count.saturating_sub(summary.max_untracked_count);
                (
                    *key,
                    MergedSummaryEntry {
                        label,
                        excess,
                        min_count: count.saturating_sub(*max_overcount),
                        max_count: *count,
                    },
                )
            });
        Self {
            entries: entries.collect(),
            max_untracked_count: summary.max_untracked_count,
            total: summary.total,
        }
    }
}

impl<L: Copy> MergedSummary<L> {
    /// Merges two combinations of summaries into one with at most `capacity` keys. The guarantees of this module hold
    /// for every order of merges.
    pub fn merge(mut self, other: Self, capacity: usize) -> Self {
        let (self_max, other_max) = (self.max_untracked_count, other.max_untracked_count);
        for (key, entry) in &mut self.entries {
            if !other.entries.contains_key(key) {
                entry.max_count = entry.max_count.saturating_add(other_max);
            }
        }
        for (key, other_entry) in other.entries {
            let absent = MergedSummaryEntry {
                label: other_entry.label,
                excess: 0,
                min_count: 0,
                max_count: self_max,
            };
            let entry = self.entries.entry(key).or_insert(absent);
            entry.excess = entry.excess.saturating_add(other_entry.excess);
            entry.min_count = entry.min_count.saturating_add(other_entry.min_count);
            entry.max_count = entry.max_count.saturating_add(other_entry.max_count);
        }
        self.max_untracked_count = self_max.saturating_add(other_max);
        self.total = self.total.saturating_add(other.total);
        self.keep_keys_with_largest_excess(capacity);
        self
    }

    /// Keeps the `capacity` keys with the largest excess. The largest excess among the removed keys is subtracted from
    /// each remaining key and added to `max_untracked_count`. The same number is subtracted from all keys, so that the
    /// error stays within the bound after a merge.
    fn keep_keys_with_largest_excess(&mut self, capacity: usize) {
        if self.entries.len() <= capacity {
            return;
        }
        let mut entries: Vec<(u64, MergedSummaryEntry<L>)> = self.entries.drain().collect();
        entries.sort_unstable_by_key(|(_, entry)| Reverse((entry.excess, entry.max_count)));
        let cutoff = entries[capacity].1.excess;
        entries.truncate(capacity);
        entries.iter_mut().for_each(|(_, entry)| entry.excess -= cutoff);
        self.max_untracked_count = self.max_untracked_count.saturating_add(cutoff);
        self.entries.extend(entries);
    }

    /// Returns an upper bound of the true count of each key that the combination does not hold.
    pub fn max_untracked_count(&self) -> u64 {
        self.max_untracked_count
    }

    /// Returns the sum of the counts of all keys, also of keys that are no longer tracked. It is exact, although the
    /// count of a single key may be an estimate.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Returns the keys with their counts, largest count first. Among equal counts, the key with the smaller
    /// `max_overcount` comes first.
    pub fn top_entries(&self) -> Vec<TopEntry<L>> {
        let top_entry =
            |&MergedSummaryEntry { label, min_count, max_count, .. }: &MergedSummaryEntry<L>| {
                let max_overcount = max_count.saturating_sub(min_count);
                TopEntry { label, count: max_count, max_overcount }
            };
        let mut top_entries: Vec<TopEntry<L>> = self.entries.values().map(top_entry).collect();
        top_entries.sort_unstable_by_key(|entry| (Reverse(entry.count), entry.max_overcount));
        top_entries
    }
}
