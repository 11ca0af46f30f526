//! Several entries of a compacted log, in one allocation: the newest entry and a ring of the others.

use super::state::{Entry, ExpiredEntries, NewestEntry};

/// The number of bits of a tick that an entry in a ring contains.
const TICK_BITS: u32 = 26;

/// The largest sum of the units in a ring, so that each packed entry has enough bits for its units.
pub(super) const MAX_RING_UNITS: u64 = (1 << (56 - TICK_BITS)) - 1;

/// An entry in 56 bits: the lowest bits of the tick, then the units.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PackedEntry([u8; 7]);

impl PackedEntry {
    fn new(Entry { tick, units }: Entry) -> Self {
        let bits = tick & TICK_MASK | units << TICK_BITS;
        let [a, b, c, d, e, f, g, _] = bits.to_le_bytes();
        Self([a, b, c, d, e, f, g])
    }

    /// Returns the entry. `newest` is the tick of the newest entry of the log.
    fn unpack(self, newest: u64) -> Entry {
        let [a, b, c, d, e, f, g] = self.0;
        let bits = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
        let age = newest.wrapping_sub(bits) & TICK_MASK;
        Entry { tick: newest.saturating_sub(age), units: bits >> TICK_BITS }
    }
}

/// The lowest bits of a tick.
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;

/// Several entries of a log: the newest one in the head, and the others in slots of the type `E`.
#[derive(Clone)]
pub(super) struct Ring<E> {
    head: RingHead,
    /// The first slot has the oldest entry if there are several entries. The other slots are a ring of the entries
    /// between the oldest and the newest one. Nearly every decision reads only the newest and the oldest entry, which
    /// are on one cache line.
    slots: E,
}

/// The newest entry of a ring, and the position of the others.
#[derive(Clone)]
struct RingHead {
    /// The tick of the newest entry, lower half first. Two halves are aligned to 4 bytes, so that the head needs no
    /// padding.
    newest: [u32; 2],
    newest_units: u32,
    /// The sum of the units of all entries.
    total_units: u32,
    /// See [`NewestEntry::span`].
    span: u32,
    /// The lowest bits of a tick before which the oldest entry has no charges.
    oldest_entry_start_tick: u32,
    /// The number of entries, at least 1.
    len: u16,
    /// The index of the second oldest entry in the ring.
    second: u16,
}

/// The number of entries that a ring has in addition to those in its slots.
const ENTRIES_IN_HEAD: usize = 1;

/// A read-only view of a ring, the same type for every number of slots.
#[derive(Clone, Copy)]
pub(super) struct RingRef<'s> {
    head: &'s RingHead,
    slots: &'s [PackedEntry],
}

/// A mutable view of a ring, for changes that need no other allocation.
pub(super) struct RingMut<'s> {
    head: &'s mut RingHead,
    slots: &'s mut [PackedEntry],
}

impl<E: AsRef<[PackedEntry]> + AsMut<[PackedEntry]>> Ring<E> {
    /// Creates a ring of entries, of which there must be at least two, and at most one more than there are `slots`. The
    /// first entry has no charges before `oldest_entry_start_tick`, and `span` is the [`NewestEntry::span`] of the last
    /// one. The entries must have at most [`MAX_RING_UNITS`].
    pub(super) fn boxed(
        log: &[Entry],
        (oldest_entry_start_tick, span): (u64, u32),
        mut slots: E,
    ) -> Box<Self> {
        let newest = log[log.len() - 1];
        for (packed, entry) in slots.as_mut().iter_mut().zip(&log[..log.len() - 1]) {
            *packed = PackedEntry::new(*entry);
        }
        let head = RingHead {
            newest: tick_halves(newest.tick),
            newest_units: newest.units as u32,
            total_units: log.iter().map(|entry| entry.units as u32).sum(),
            span,
            oldest_entry_start_tick: (oldest_entry_start_tick & TICK_MASK) as u32,
            len: log.len() as u16,
            second: 0,
        };
        Box::new(Self { head, slots })
    }

    /// Returns a view of the ring whose type does not depend on the number of slots.
    pub(super) fn view(&self) -> RingRef<'_> {
        RingRef { head: &self.head, slots: self.slots.as_ref() }
    }

    /// Returns a mutable view of the ring.
    pub(super) fn view_mut(&mut self) -> RingMut<'_> {
        RingMut { head: &mut self.head, slots: self.slots.as_mut() }
    }

    /// Returns the number of bytes of all slots.
    pub(super) fn slot_bytes(&self) -> usize {
        size_of_val(self.slots.as_ref())
    }
}

/// Returns the lower and the upper half of a tick.
fn tick_halves(tick: u64) -> [u32; 2] {
    [tick as u32, (tick >> 32) as u32]
}

/// Converts an index, counted from the second oldest entry, into an index in the slots of a ring.
fn slot_index(head: &RingHead, slots: usize, index: usize) -> usize {
    let (position, space) = (usize::from(head.second) + index, slots - 1);
    1 + if position < space { position } else { position - space }
}

impl RingRef<'_> {
    pub(super) fn len(self) -> usize {
        self.head.len.into()
    }

    fn newest_tick(self) -> u64 {
        u64::from(self.head.newest[1]) << 32 | u64::from(self.head.newest[0])
    }

    pub(super) fn newest(self) -> NewestEntry {
        let entry = Entry { tick: self.newest_tick(), units: self.head.newest_units.into() };
        NewestEntry { entry, span: self.head.span }
    }

    /// Returns the sum of the units of all entries.
    pub(super) fn total_units(self) -> u64 {
        self.head.total_units.into()
    }

    /// Returns the entry at `index`, counted from the oldest one.
    pub(super) fn get(self, index: usize) -> Entry {
        if index + 1 == self.len() {
            return self.newest().entry;
        }
        let slot = match index.checked_sub(1) {
            Some(index) => slot_index(self.head, self.slots.len(), index),
            None => 0,
        };
        self.slots[slot].unpack(self.newest_tick())
    }

    /// Returns a tick before which the oldest entry has no charges.
    pub(super) fn oldest_entry_start_tick(self) -> u64 {
        let newest = self.newest_tick();
        newest - (newest.wrapping_sub(self.head.oldest_entry_start_tick.into()) & TICK_MASK)
    }

    /// Returns the entries whose last charge was before `tick`.
    pub(super) fn entries_expired_before(self, tick: u64) -> ExpiredEntries {
        let mut expired = ExpiredEntries { entries: 0, units: 0 };
        for entry in (0..self.len()).map(|index| self.get(index)) {
            if entry.tick >= tick {
                break;
            }
            expired.entries += 1;
            expired.units += entry.units;
        }
        expired
    }

    /// Returns whether an entry can be appended in the same allocation. Also returns `false` if more than three
    /// quarters of the slots would stay unused, so that the log moves to a smaller allocation.
    pub(super) fn has_space_for(self, entry: Entry) -> bool {
        let (len, space) = (self.len(), self.slots.len() + ENTRIES_IN_HEAD);
        len < space && 4 * (len + 1) >= space && self.total_units() + entry.units <= MAX_RING_UNITS
    }
}

impl RingMut<'_> {
    pub(super) fn as_ref(&self) -> RingRef<'_> {
        RingRef { head: self.head, slots: self.slots }
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`.
    pub(super) fn add_to_newest_entry(&mut self, tick: u64, units: u64) {
        self.head.span += (tick - self.as_ref().newest_tick()) as u32;
        self.head.newest = tick_halves(tick);
        self.head.newest_units += units as u32;
        self.head.total_units += units as u32;
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry. There must be
    /// [space](RingRef::has_space_for) for it.
    pub(super) fn push(&mut self, entry: Entry) {
        let newest = PackedEntry::new(self.as_ref().newest().entry);
        let slot = match usize::from(self.head.len).checked_sub(2) {
            Some(index) => slot_index(self.head, self.slots.len(), index),
            None => 0,
        };
        self.slots[slot] = newest;
        self.head.len += 1;
        self.head.newest = tick_halves(entry.tick);
        self.head.newest_units = entry.units as u32;
        self.head.total_units += entry.units as u32;
        self.head.span = 0;
    }

    /// Removes the expired entries, which are the oldest ones. At least one entry must remain.
    pub(super) fn remove_expired(&mut self, ExpiredEntries { entries, units }: ExpiredEntries) {
        if entries == 0 {
            return;
        }
        let last_removed = self.as_ref().get(entries - 1).tick;
        let len = usize::from(self.head.len) - entries;
        let newest = self.as_ref().newest();
        let oldest_entry_start_tick = match len {
            // The ring stores the first charge of the newest entry. For other entries, the removed entry gives a bound.
            1 => newest.first_charge_tick(),
            _ => last_removed + 1,
        };
        if len > 1 {
            self.slots[0] = self.slots[slot_index(self.head, self.slots.len(), entries - 1)];
            self.head.second = (slot_index(self.head, self.slots.len(), entries) - 1) as u16;
        }
        self.head.oldest_entry_start_tick = (oldest_entry_start_tick & TICK_MASK) as u32;
        self.head.len = len as u16;
        self.head.total_units -= units as u32;
    }
}
