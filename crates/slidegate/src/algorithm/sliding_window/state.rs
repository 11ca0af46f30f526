//! The state of a key with a sliding window: the entries of its compacted log.
//!
//! Most keys have one entry, which takes no allocation. Up to 72 entries take one allocation, with seven bytes for each
//! entry but the newest, and more entries take two. The sizes of the allocations fill the memory blocks that allocators
//! reserve. A log of at least 2^30 units takes 16 bytes for each entry.

use std::fmt;

use super::large_log::LargeLog;
use super::ring::{MAX_RING_UNITS, PackedEntry, Ring, RingMut, RingRef};
use crate::layout::{HeapSize, allocator_block_bytes};

/// The largest number of ticks in a window. All entries lie within one window and one tick, so that the lowest 26 bits
/// of a tick determine the order of the entries.
pub(super) const MAX_TICKS_PER_WINDOW: u32 = 1 << 25;

/// Units that were charged within a short time, and that leave the window together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The tick of the entry's last charge.
    pub(super) tick: u64,
    pub(super) units: u64,
}

/// The newest entry of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct NewestEntry {
    pub(super) entry: Entry,
    /// The number of ticks from the first to the last charge of the entry. If the first charge is not known, an upper
    /// bound.
    pub(super) span: u32,
}

impl NewestEntry {
    /// Returns the number of ticks from the first charge of the entry to `tick`.
    pub(super) fn ticks_from_first_charge(&self, tick: u64) -> u64 {
        tick - self.entry.tick + u64::from(self.span)
    }

    /// Returns a tick before which the entry has no charges.
    pub(super) fn first_charge_tick(&self) -> u64 {
        self.entry.tick.saturating_sub(self.span.into())
    }
}

/// The entries of a log that have left the window: their number and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ExpiredEntries {
    pub(super) entries: usize,
    pub(super) units: u64,
}

/// The log of a key: its entries, oldest first. Each entry has a later tick than the one before it.
#[derive(Clone)]
pub struct State(Log);

/// The entries in the smallest form that has space for them.
#[derive(Clone)]
enum Log {
    /// At most one entry, which has 0 units if there is none. The tick has 56 bits, so that a log takes 16 bytes.
    One {
        tick_high: u8,
        tick_middle: u16,
        tick_low: u32,
        units: u32,
        span: u32,
    },
    UpTo4(Box<Ring<[PackedEntry; 3]>>),
    UpTo8(Box<Ring<[PackedEntry; 7]>>),
    UpTo14(Box<Ring<[PackedEntry; 13]>>),
    UpTo23(Box<Ring<[PackedEntry; 22]>>),
    UpTo33(Box<Ring<[PackedEntry; 32]>>),
    UpTo49(Box<Ring<[PackedEntry; 48]>>),
    UpTo72(Box<Ring<[PackedEntry; 71]>>),
    Many(Box<Ring<Box<[PackedEntry]>>>),
    /// Any number of entries, with more units than the other forms can have.
    Large(Box<LargeLog>),
}

/// Evaluates to `$some` with `$ring` bound to the ring of a log, or to `$none` if the log has no ring.
macro_rules! with_ring {
    ($log:expr, $ring:ident => $some:expr, $none:expr) => {
        match $log {
            Log::One { .. } | Log::Large(_) => $none,
            Log::UpTo4($ring) => $some,
            Log::UpTo8($ring) => $some,
            Log::UpTo14($ring) => $some,
            Log::UpTo23($ring) => $some,
            Log::UpTo33($ring) => $some,
            Log::UpTo49($ring) => $some,
            Log::UpTo72($ring) => $some,
            Log::Many($ring) => $some,
        }
    };
}

impl Default for State {
    fn default() -> Self {
        Self::from_entry(Entry { tick: 0, units: 0 }, 0)
    }
}

impl State {
    fn from_entry(entry: Entry, span: u32) -> Self {
        let Entry { tick, units } = entry;
        if units > MAX_RING_UNITS {
            let oldest_entry_start_tick = NewestEntry { entry, span }.first_charge_tick();
            return Self(Log::Large(LargeLog::boxed(&[entry], (oldest_entry_start_tick, span))));
        }
        let units = units as u32;
        let (tick_high, tick_middle) = ((tick >> 48) as u8, (tick >> 32) as u16);
        Self(Log::One { tick_high, tick_middle, tick_low: tick as u32, units, span })
    }

    /// Returns the log of these entries. The first one has no charges before `oldest_entry_start_tick`, and `span` is
    /// the [`NewestEntry::span`] of the last one.
    fn from_entries(entries: &[Entry], oldest_entry_start_tick: u64, span: u32) -> Self {
        let bounds = (oldest_entry_start_tick, span);
        let empty = PackedEntry::default();
        let units: u64 = entries.iter().map(|entry| entry.units).sum();
        Self(match entries.len() {
            0 => return Self::default(),
            1 => return Self::from_entry(entries[0], span),
            _ if units > MAX_RING_UNITS => Log::Large(LargeLog::boxed(entries, bounds)),
            2..=4 => Log::UpTo4(Ring::boxed(entries, bounds, [empty; 3])),
            5..=8 => Log::UpTo8(Ring::boxed(entries, bounds, [empty; 7])),
            9..=14 => Log::UpTo14(Ring::boxed(entries, bounds, [empty; 13])),
            15..=23 => Log::UpTo23(Ring::boxed(entries, bounds, [empty; 22])),
            24..=33 => Log::UpTo33(Ring::boxed(entries, bounds, [empty; 32])),
            34..=49 => Log::UpTo49(Ring::boxed(entries, bounds, [empty; 48])),
            50..=72 => Log::UpTo72(Ring::boxed(entries, bounds, [empty; 71])),
            len => Log::Many(Ring::boxed(entries, bounds, vec![empty; len + len / 2].into())),
        })
    }

    /// Returns the only entry of the log, which has 0 units if the log is empty; `None` if there are several entries.
    pub(super) fn single_entry(&self) -> Option<NewestEntry> {
        let Log::One { tick_high, tick_middle, tick_low, units, span } = self.0 else {
            return None;
        };
        let tick = u64::from(tick_high) << 48 | u64::from(tick_middle) << 32 | u64::from(tick_low);
        Some(NewestEntry { entry: Entry { tick, units: units.into() }, span })
    }

    fn large_log(&self) -> Option<&LargeLog> {
        if let Log::Large(log) = &self.0 { Some(log) } else { None }
    }

    /// Returns the entries of the log if they are in a ring.
    pub(super) fn ring(&self) -> Option<RingRef<'_>> {
        with_ring!(
            &self.0,
            ring => Some(ring.view()),
            None
        )
    }

    /// Returns a mutable view of the entries of the log if they are in a ring.
    pub(super) fn ring_mut(&mut self) -> Option<RingMut<'_>> {
        with_ring!(
            &mut self.0,
            ring => Some(ring.view_mut()),
            None
        )
    }

    /// Replaces all entries by one. `span` is its [`NewestEntry::span`].
    pub(super) fn replace_with_entry(&mut self, entry: Entry, span: u32) {
        *self = Self::from_entry(entry, span);
    }

    /// Returns the sum of the units of all entries.
    pub(super) fn total_units(&self) -> u64 {
        match self.ring() {
            Some(ring) => ring.total_units(),
            None => match self.single_entry() {
                Some(one) => one.entry.units,
                None => self.large_log().map_or(0, LargeLog::total_units),
            },
        }
    }

    /// Returns the newest entry; `None` if the log is empty.
    pub(super) fn newest(&self) -> Option<NewestEntry> {
        match self.ring() {
            Some(ring) => Some(ring.newest()),
            None => match self.single_entry() {
                Some(one) => (one.entry.units > 0).then_some(one),
                None => self.large_log().and_then(LargeLog::newest),
            },
        }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        match self.ring() {
            Some(ring) => ring.len(),
            None => match self.large_log() {
                Some(log) => log.len(),
                None => self.newest().iter().len(),
            },
        }
    }

    /// Returns the entry at `index`, counted from the oldest one; `None` if there are not as many entries.
    pub(super) fn get(&self, index: usize) -> Option<Entry> {
        match self.ring() {
            Some(ring) => (index < ring.len()).then(|| ring.get(index)),
            None => match self.large_log() {
                Some(log) => log.get(index),
                None => self.newest().filter(|_| index == 0).map(|one| one.entry),
            },
        }
    }

    /// Iterates over the entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        (0..).map_while(|index| self.get(index))
    }

    /// Returns the entries whose last charge was before `tick`.
    pub(super) fn entries_expired_before(&self, tick: u64) -> ExpiredEntries {
        if let Some(ring) = self.ring() {
            return ring.entries_expired_before(tick);
        }
        let expired = self.iter().take_while(|entry| entry.tick < tick);
        expired.fold(ExpiredEntries::default(), |ExpiredEntries { entries, units }, entry| {
            ExpiredEntries { entries: entries + 1, units: units + entry.units }
        })
    }

    /// Removes the entries that have left the window, which are the oldest ones.
    pub(super) fn remove_expired(&mut self, expired: ExpiredEntries) {
        if expired.entries == self.len() {
            *self = Self::default();
        } else if let Some(mut ring) = self.ring_mut() {
            ring.remove_expired(expired);
        } else if let Log::Large(log) = &mut self.0 {
            log.remove_expired(expired);
        }
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.newest().is_none() {
            *self = Self::from_entry(entry, 0);
            return;
        }
        if let Log::Large(log) = &mut self.0 {
            return log.push(entry);
        }
        match self.ring_mut() {
            Some(mut ring) if ring.as_ref().has_space_for(entry) => {
                ring.push(entry);
            }
            _ => {
                let entries: Vec<Entry> = self.iter().chain([entry]).collect();
                *self = Self::from_entries(&entries, self.oldest_entry_start_tick(), 0);
            }
        }
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`. The log must not be empty.
    pub(super) fn add_to_newest_entry(&mut self, tick: u64, units: u64) {
        if let Log::Large(log) = &mut self.0 {
            return log.add_to_newest_entry(tick, units);
        }
        let Some(newest) = self.newest() else { return };
        let (joined, span) = (
            Entry { tick, units: newest.entry.units + units },
            newest.ticks_from_first_charge(tick) as u32,
        );
        if self.single_entry().is_some() {
            *self = Self::from_entry(joined, span);
        } else if self.total_units() + units > MAX_RING_UNITS {
            let older = self.iter().take(self.len() - 1);
            let entries: Vec<Entry> = older.chain([joined]).collect();
            *self = Self::from_entries(&entries, self.oldest_entry_start_tick(), span);
        } else if let Some(mut ring) = self.ring_mut() {
            ring.add_to_newest_entry(tick, units);
        }
    }

    /// Returns a tick before which the oldest entry has no charges; 0 if the log is empty.
    pub(super) fn oldest_entry_start_tick(&self) -> u64 {
        match self.ring() {
            Some(ring) => ring.oldest_entry_start_tick(),
            None => match self.single_entry() {
                Some(one) => one.first_charge_tick(),
                None => self.large_log().map_or(0, LargeLog::oldest_entry_start_tick),
            },
        }
    }

    /// Edits the units of the entries. Entries that have no units after that are removed.
    pub(super) fn edit_units(&mut self, edit: impl FnOnce(&mut [Entry])) {
        let Some(NewestEntry { mut span, .. }) = self.newest() else { return };
        let mut oldest_entry_start_tick = self.oldest_entry_start_tick();
        let mut entries: Vec<Entry> = self.iter().collect();
        edit(&mut entries);
        let has_units = |entry: &Entry| entry.units > 0;
        let (oldest, newest) =
            (entries.iter().position(has_units), entries.iter().rposition(has_units));
        if let (Some(oldest), Some(newest)) = (oldest, newest) {
            // An entry can have charges from the tick after the last charge of the previous entry.
            let first = |index: usize| match index.checked_sub(1) {
                Some(before) => entries[before].tick + 1,
                None => oldest_entry_start_tick,
            };
            if newest + 1 < entries.len() {
                span = (entries[newest].tick - first(newest)) as u32;
            }
            oldest_entry_start_tick = first(oldest);
        }
        entries.retain(has_units);
        *self = Self::from_entries(&entries, oldest_entry_start_tick, span);
    }

    /// Replaces all entries except the newest one by the entries that `merge_entries` returns, which have the same
    /// units and the same last tick.
    pub(super) fn merge_entries(
        &mut self,
        merge_entries: impl FnOnce(&[Entry], u64) -> Vec<Entry>,
    ) {
        let Some(NewestEntry { entry, span }) = self.newest() else { return };
        let (oldest_entry_start_tick, older) = (self.oldest_entry_start_tick(), self.len() - 1);
        let entries: Vec<Entry> = self.iter().take(older).collect();
        let mut merged = merge_entries(&entries, oldest_entry_start_tick);
        merged.push(entry);
        *self = Self::from_entries(&merged, oldest_entry_start_tick, span);
    }
}

/// Returns the largest number of heap bytes of a log with at most `entries` entries. With `is_large`, the log can have
/// more than [`MAX_RING_UNITS`] units.
pub(super) fn max_heap_bytes(entries: usize, is_large: bool) -> usize {
    if is_large {
        return LargeLog::max_heap_bytes(entries);
    }
    let longest = vec![Entry { tick: 0, units: 1 }; entries];
    State::from_entries(&longest, 0, 0).heap_bytes()
}

impl HeapSize for State {
    fn heap_bytes(&self) -> usize {
        match &self.0 {
            Log::One { .. } => 0,
            Log::Large(log) => log.heap_bytes(),
            Log::Many(ring) => {
                allocator_block_bytes(size_of_val(&**ring))
                    + allocator_block_bytes(ring.slot_bytes())
            }
            log => with_ring!(log, ring => allocator_block_bytes(size_of_val(&**ring)), 0),
        }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}
