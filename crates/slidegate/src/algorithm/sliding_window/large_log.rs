//! A compacted log with more units than the packed entries of a ring can contain. Its entries are not packed.

use std::collections::VecDeque;

use super::state::{Entry, ExpiredEntries, NewestEntry};
use crate::layout::{HeapSize, allocator_block_bytes};

/// The entries of a log, of which there is at least one.
#[derive(Clone)]
pub(super) struct LargeLog {
    entries: VecDeque<Entry>,
    /// The sum of the units of all entries.
    total_units: u64,
    /// A tick before which the oldest entry has no charges.
    oldest_entry_start_tick: u64,
    /// See [`NewestEntry::span`].
    span: u32,
}

impl LargeLog {
    /// Creates a log. The first entry has no charges before `oldest_entry_start_tick`, and `span` is the
    /// [`NewestEntry::span`] of the last one.
    pub(super) fn boxed(
        entries: &[Entry],
        (oldest_entry_start_tick, span): (u64, u32),
    ) -> Box<Self> {
        let total_units = entries.iter().map(|entry| entry.units).sum();
        let entries = entries.iter().copied().collect();
        Box::new(Self { entries, total_units, oldest_entry_start_tick, span })
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn total_units(&self) -> u64 {
        self.total_units
    }

    pub(super) fn oldest_entry_start_tick(&self) -> u64 {
        self.oldest_entry_start_tick
    }

    pub(super) fn newest(&self) -> Option<NewestEntry> {
        self.entries.back().map(|entry| NewestEntry { entry: *entry, span: self.span })
    }

    /// Returns the entry at `index`, counted from the oldest one.
    pub(super) fn get(&self, index: usize) -> Option<Entry> {
        self.entries.get(index).copied()
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`.
    pub(super) fn add_to_newest_entry(&mut self, tick: u64, units: u64) {
        if let Some(newest) = self.entries.back_mut() {
            self.span += (tick - newest.tick) as u32;
            *newest = Entry { tick, units: newest.units + units };
            self.total_units += units;
        }
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry.
    pub(super) fn push(&mut self, entry: Entry) {
        self.entries.push_back(entry);
        self.total_units += entry.units;
        self.span = 0;
    }

    /// Removes the expired entries, which are the oldest ones. At least one entry must remain.
    pub(super) fn remove_expired(&mut self, ExpiredEntries { entries, units }: ExpiredEntries) {
        let Some(last_removed) = self.entries.drain(..entries).next_back() else { return };
        self.total_units -= units;
        self.oldest_entry_start_tick = match self.newest() {
            // The log stores the first charge of the newest entry. For other entries, the removed entry gives a bound.
            Some(newest) if self.len() == 1 => newest.first_charge_tick(),
            _ => last_removed.tick + 1,
        };
    }

    /// Returns the largest number of heap bytes of a log with at most `entries` entries, whose queue has a capacity of
    /// at most twice as many.
    pub(super) fn max_heap_bytes(entries: usize) -> usize {
        allocator_block_bytes(size_of::<Self>())
            + allocator_block_bytes(2 * entries * size_of::<Entry>())
    }
}

impl HeapSize for LargeLog {
    fn heap_bytes(&self) -> usize {
        let queue_bytes = self.entries.capacity() * size_of::<Entry>();
        allocator_block_bytes(size_of::<Self>()) + allocator_block_bytes(queue_bytes)
    }
}
