//! The state of a key with a sliding window: the entries of its compacted log.
//!
//! Most keys have one entry, which takes no allocation. Up to 72 entries take one allocation, with seven bytes for each
//! entry but the newest, and more entries take two. The sizes of the allocations fill the memory blocks that allocators
//! reserve.

use std::fmt;

use crate::heap::{HeapSize, allocated_bytes};

/// The largest number of ticks in a window. All entries lie within one window and one tick, so that the lowest 26 bits
/// of a tick determine the order of the entries.
pub(super) const MAX_TICKS_PER_WINDOW: u32 = 1 << 25;

/// The number of bits of a tick that an entry in a ring contains.
const TICK_BITS: u32 = 26;

/// Units that were charged within a short time, and that leave the window together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    /// The tick of the entry's last charge.
    pub(super) tick: u64,
    pub(super) units: u32,
}

/// The newest entry of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Newest {
    pub(super) entry: Entry,
    /// The number of ticks from the first to the last charge of the entry. More ticks if the first charge is not known.
    span: u32,
}

impl Newest {
    /// Returns the number of ticks from the first charge of the entry to `tick`.
    #[inline(always)]
    pub(super) fn span_to(&self, tick: u64) -> u64 {
        tick - self.entry.tick + u64::from(self.span)
    }

    /// Returns a tick before which the entry has no charges.
    #[inline(always)]
    fn first(&self) -> u64 {
        self.entry.tick.saturating_sub(self.span.into())
    }
}

/// The entries of a log that have left the window: their number and their units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Expired {
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
}

/// Evaluates to `$some` with `$ring` bound to the ring of a log, or to `$none` if the log has no ring.
macro_rules! with_ring {
    ($log:expr, $ring:ident => $some:expr, $none:expr) => {
        match $log {
            Log::One { .. } => $none,
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

/// An entry in 56 bits: the lowest bits of the tick, then the units.
#[derive(Clone, Copy, Debug, Default)]
struct PackedEntry([u8; 7]);

impl PackedEntry {
    #[inline(always)]
    fn new(Entry { tick, units }: Entry) -> Self {
        let bits = tick & TICK_MASK | u64::from(units) << TICK_BITS;
        let [a, b, c, d, e, f, g, _] = bits.to_le_bytes();
        Self([a, b, c, d, e, f, g])
    }

    /// Returns the entry. `newest` is the tick of the newest entry of the log.
    #[inline(always)]
    fn unpack(self, newest: u64) -> Entry {
        let [a, b, c, d, e, f, g] = self.0;
        let bits = u64::from_le_bytes([a, b, c, d, e, f, g, 0]);
        let age = newest.wrapping_sub(bits) & TICK_MASK;
        Entry { tick: newest.saturating_sub(age), units: (bits >> TICK_BITS) as u32 }
    }
}

/// The lowest bits of a tick.
const TICK_MASK: u64 = (1 << TICK_BITS) - 1;

/// The memory of several entries, in one allocation.
#[derive(Clone)]
struct Ring<E> {
    head: RingHead,
    /// The first slot has the oldest entry if there are several entries. The other slots are a ring of the entries between
    /// the oldest and the newest one. Nearly every decision reads only the newest and the oldest entry, which are on one
    /// cache line.
    slots: E,
}

/// The newest entry of a ring, and the position of the others.
#[derive(Clone)]
struct RingHead {
    /// The tick of the newest entry. The lower half is first. Two halves need no padding behind the head.
    newest: [u32; 2],
    newest_units: u32,
    /// The sum of the units of all entries.
    total: u32,
    /// See [`Newest::span`].
    span: u32,
    /// The lowest bits of a tick before which the oldest entry has no charges.
    oldest_first: u32,
    /// The number of entries, at least 1.
    len: u16,
    /// The index of the second oldest entry in the ring.
    second: u16,
}

/// The number of entries that a ring has in addition to those in its slots.
const ENTRIES_IN_HEAD: usize = 1;

/// Several entries, whatever form the log has.
#[derive(Clone, Copy)]
pub(super) struct RingRef<'s> {
    head: &'s RingHead,
    slots: &'s [PackedEntry],
}

/// Several entries that can be changed without a change of heap allocations.
pub(super) struct RingMut<'s> {
    head: &'s mut RingHead,
    slots: &'s mut [PackedEntry],
}

/// Creates a ring of entries, of which there must be at least two, and at most one more than there are `slots`.
fn new_ring<E: AsMut<[PackedEntry]>>(
    log: &[Entry],
    (oldest_first, span): (u64, u32),
    mut slots: E,
) -> Box<Ring<E>> {
    let newest = log[log.len() - 1];
    for (packed, entry) in slots.as_mut().iter_mut().zip(&log[..log.len() - 1]) {
        *packed = PackedEntry::new(*entry);
    }
    let head = RingHead {
        newest: halves(newest.tick),
        newest_units: newest.units,
        total: log.iter().map(|entry| entry.units).sum(),
        span,
        oldest_first: (oldest_first & TICK_MASK) as u32,
        len: log.len() as u16,
        second: 0,
    };
    Box::new(Ring { head, slots })
}

/// Returns the lower and the upper half of a tick.
#[inline(always)]
fn halves(tick: u64) -> [u32; 2] {
    [tick as u32, (tick >> 32) as u32]
}

/// Converts an index, counted from the second oldest entry, into an index in the slots of a ring.
#[inline(always)]
fn slot_index(head: &RingHead, slots: usize, index: usize) -> usize {
    let (position, space) = (usize::from(head.second) + index, slots - 1);
    1 + if position < space { position } else { position - space }
}

impl RingRef<'_> {
    #[inline(always)]
    fn len(self) -> usize {
        self.head.len.into()
    }

    #[inline(always)]
    fn newest_tick(self) -> u64 {
        u64::from(self.head.newest[1]) << 32 | u64::from(self.head.newest[0])
    }

    #[inline(always)]
    pub(super) fn newest(self) -> Newest {
        let entry = Entry { tick: self.newest_tick(), units: self.head.newest_units };
        Newest { entry, span: self.head.span }
    }

    /// Returns the sum of the units of all entries.
    #[inline(always)]
    pub(super) fn total(self) -> u64 {
        self.head.total.into()
    }

    /// Returns the entry at `index`, counted from the oldest one.
    #[inline(always)]
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

    fn oldest_first(self) -> u64 {
        let newest = self.newest_tick();
        newest - (newest.wrapping_sub(self.head.oldest_first.into()) & TICK_MASK)
    }

    /// Returns the entries whose last charge was before `tick`.
    #[inline(always)]
    pub(super) fn expired_before(self, tick: u64) -> Expired {
        let mut expired = Expired { entries: 0, units: 0 };
        for entry in (0..self.len()).map(|index| self.get(index)) {
            if entry.tick >= tick {
                break;
            }
            expired.entries += 1;
            expired.units += u64::from(entry.units);
        }
        expired
    }

    /// Returns whether all entries have expired.
    #[inline(always)]
    pub(super) fn has_only(self, expired: Expired) -> bool {
        expired.entries == self.len()
    }

    /// Returns whether an entry can be appended after the removal of expired entries, in the same allocation, and the
    /// allocation is not larger than necessary.
    #[inline(always)]
    pub(super) fn has_space_for_one(self, expired: Expired) -> bool {
        let (len, space) = (self.len() - expired.entries, self.slots.len() + ENTRIES_IN_HEAD);
        len < space && 4 * (len + 1) >= space
    }

    /// Returns the number of entries after the removal of expired entries.
    #[inline(always)]
    pub(super) fn len_without(self, expired: Expired) -> usize {
        self.len() - expired.entries
    }
}

impl RingMut<'_> {
    #[inline(always)]
    pub(super) fn as_ref(&self) -> RingRef<'_> {
        RingRef { head: self.head, slots: self.slots }
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`.
    #[inline(always)]
    pub(super) fn join_newest(&mut self, tick: u64, units: u32) {
        self.head.span += (tick - self.as_ref().newest_tick()) as u32;
        self.head.newest = halves(tick);
        self.head.newest_units += units;
        self.head.total += units;
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry. There must be
    /// [space](RingRef::has_space_for_one) for it.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: Entry) {
        let newest = PackedEntry::new(self.as_ref().newest().entry);
        let slot = match usize::from(self.head.len).checked_sub(2) {
            Some(index) => slot_index(self.head, self.slots.len(), index),
            None => 0,
        };
        self.slots[slot] = newest;
        self.head.len += 1;
        self.head.newest = halves(entry.tick);
        self.head.newest_units = entry.units;
        self.head.total += entry.units;
        self.head.span = 0;
    }

    /// Removes the first entries, but not all.
    #[inline(always)]
    pub(super) fn remove_first(&mut self, Expired { entries, units }: Expired) {
        if entries == 0 {
            return;
        }
        let last_removed = self.as_ref().get(entries - 1).tick;
        let len = usize::from(self.head.len) - entries;
        let newest = self.as_ref().newest();
        let oldest_first = match len {
            // The first charge of the newest entry is known.
            1 => newest.first(),
            _ => last_removed + 1,
        };
        if len > 1 {
            self.slots[0] = self.slots[slot_index(self.head, self.slots.len(), entries - 1)];
            self.head.second = (slot_index(self.head, self.slots.len(), entries) - 1) as u16;
        }
        self.head.oldest_first = (oldest_first & TICK_MASK) as u32;
        self.head.len = len as u16;
        self.head.total -= units as u32;
    }
}

impl Default for State {
    #[inline(always)]
    fn default() -> Self {
        Self::of_one(Entry { tick: 0, units: 0 }, 0)
    }
}

impl State {
    #[inline(always)]
    fn of_one(Entry { tick, units }: Entry, span: u32) -> Self {
        let (tick_high, tick_middle) = ((tick >> 48) as u8, (tick >> 32) as u16);
        Self(Log::One { tick_high, tick_middle, tick_low: tick as u32, units, span })
    }

    /// Returns the log of these entries. The first one has no charges before `oldest_first`, and `span` is the
    /// [`Newest::span`] of the last one.
    fn of_entries(entries: &[Entry], oldest_first: u64, span: u32) -> Self {
        let bounds = (oldest_first, span);
        let empty = PackedEntry::default();
        Self(match entries.len() {
            0 => return Self::default(),
            1 => return Self::of_one(entries[0], span),
            2..=4 => Log::UpTo4(new_ring(entries, bounds, [empty; 3])),
            5..=8 => Log::UpTo8(new_ring(entries, bounds, [empty; 7])),
            9..=14 => Log::UpTo14(new_ring(entries, bounds, [empty; 13])),
            15..=23 => Log::UpTo23(new_ring(entries, bounds, [empty; 22])),
            24..=33 => Log::UpTo33(new_ring(entries, bounds, [empty; 32])),
            34..=49 => Log::UpTo49(new_ring(entries, bounds, [empty; 48])),
            50..=72 => Log::UpTo72(new_ring(entries, bounds, [empty; 71])),
            len => Log::Many(new_ring(entries, bounds, vec![empty; len + len / 2].into())),
        })
    }

    /// Returns the only entry of the log, which has 0 units if the log is empty; `None` if there are several entries.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<Newest> {
        let Log::One { tick_high, tick_middle, tick_low, units, span } = self.0 else {
            return None;
        };
        let tick = u64::from(tick_high) << 48 | u64::from(tick_middle) << 32 | u64::from(tick_low);
        Some(Newest { entry: Entry { tick, units }, span })
    }

    /// Returns the entries of the log if they have an allocation.
    #[inline(always)]
    pub(super) fn ring(&self) -> Option<RingRef<'_>> {
        with_ring!(
            &self.0,
            ring => Some(RingRef { head: &ring.head, slots: ring.slots.as_ref() }),
            None
        )
    }

    /// Returns the entries of the log, to be changed, if they have an allocation.
    #[inline(always)]
    pub(super) fn ring_mut(&mut self) -> Option<RingMut<'_>> {
        with_ring!(
            &mut self.0,
            ring => Some(RingMut { head: &mut ring.head, slots: ring.slots.as_mut() }),
            None
        )
    }

    /// Replaces all entries by one. `span` is its [`Newest::span`].
    #[inline(always)]
    pub(super) fn replace_single(&mut self, entry: Entry, span: u32) {
        *self = Self::of_one(entry, span);
    }

    /// Returns the sum of the units of all entries.
    pub(super) fn total(&self) -> u64 {
        match self.ring() {
            Some(ring) => ring.total(),
            None => self.single().map_or(0, |one| one.entry.units.into()),
        }
    }

    /// Returns the newest entry; `None` if the log is empty.
    pub(super) fn newest(&self) -> Option<Newest> {
        match self.ring() {
            Some(ring) => Some(ring.newest()),
            None => self.single().filter(|one| one.entry.units > 0),
        }
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        match self.ring() {
            Some(ring) => ring.len(),
            None => self.newest().iter().len(),
        }
    }

    /// Returns the entry at `index`, counted from the oldest one; `None` if there are not as many entries.
    pub(super) fn get(&self, index: usize) -> Option<Entry> {
        match self.ring() {
            Some(ring) => (index < ring.len()).then(|| ring.get(index)),
            None => self.newest().filter(|_| index == 0).map(|one| one.entry),
        }
    }

    /// Iterates over the entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        (0..).map_while(|index| self.get(index))
    }

    /// Returns the entries whose last charge was before `tick`.
    pub(super) fn expired_before(&self, tick: u64) -> Expired {
        let one = || self.newest().filter(|one| one.entry.tick < tick);
        match self.ring() {
            Some(ring) => ring.expired_before(tick),
            None => one().map_or(Expired::default(), |one| Expired {
                entries: 1,
                units: one.entry.units.into(),
            }),
        }
    }

    /// Removes the oldest entries.
    pub(super) fn remove_first(&mut self, expired: Expired) {
        if expired.entries == self.len() {
            *self = Self::default();
        } else if let Some(mut ring) = self.ring_mut() {
            ring.remove_first(expired);
        }
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry.
    pub(super) fn push(&mut self, entry: Entry) {
        if self.newest().is_none() {
            *self = Self::of_one(entry, 0);
            return;
        }
        match self.ring_mut() {
            Some(mut ring) if ring.as_ref().has_space_for_one(Expired::default()) => {
                ring.push(entry);
            }
            _ => {
                let entries: Vec<Entry> = self.iter().chain([entry]).collect();
                *self = Self::of_entries(&entries, self.oldest_first(), 0);
            }
        }
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`. The log must not be empty.
    pub(super) fn join_newest(&mut self, tick: u64, units: u32) {
        if let Some(Newest { entry, span }) = self.single() {
            let span = span + (tick - entry.tick) as u32;
            *self = Self::of_one(Entry { tick, units: entry.units + units }, span);
        } else if let Some(mut ring) = self.ring_mut() {
            ring.join_newest(tick, units);
        }
    }

    /// Returns a tick before which the oldest entry has no charges; 0 if the log is empty.
    pub(super) fn oldest_first(&self) -> u64 {
        match self.ring() {
            Some(ring) => ring.oldest_first(),
            None => self.single().map_or(0, |one| one.first()),
        }
    }

    /// Edits the units of the entries. Entries that have no units then are removed.
    pub(super) fn edit_units(&mut self, edit: impl FnOnce(&mut [Entry])) {
        let Some(Newest { mut span, .. }) = self.newest() else { return };
        let mut oldest_first = self.oldest_first();
        let mut entries: Vec<Entry> = self.iter().collect();
        edit(&mut entries);
        let has_units = |entry: &Entry| entry.units > 0;
        let (oldest, newest) =
            (entries.iter().position(has_units), entries.iter().rposition(has_units));
        if let (Some(oldest), Some(newest)) = (oldest, newest) {
            // The charges of an entry are after the last charge of the entry before it.
            let first = |index: usize| match index.checked_sub(1) {
                Some(before) => entries[before].tick + 1,
                None => oldest_first,
            };
            if newest + 1 < entries.len() {
                span = (entries[newest].tick - first(newest)) as u32;
            }
            oldest_first = first(oldest);
        }
        entries.retain(has_units);
        *self = Self::of_entries(&entries, oldest_first, span);
    }

    /// Replaces all entries except the newest one by the entries that `merge` returns, which have the same units and the
    /// same last tick.
    pub(super) fn merge(&mut self, merge: impl FnOnce(&[Entry], u64) -> Vec<Entry>) {
        let Some(Newest { entry, span }) = self.newest() else { return };
        let (oldest_first, older) = (self.oldest_first(), self.len() - 1);
        let entries: Vec<Entry> = self.iter().take(older).collect();
        let mut merged = merge(&entries, oldest_first);
        merged.push(entry);
        *self = Self::of_entries(&merged, oldest_first, span);
    }
}

/// Returns the largest number of heap bytes of a log with at most `entries` entries.
pub(super) fn max_heap_bytes(entries: usize) -> usize {
    let longest = vec![Entry { tick: 0, units: 1 }; entries];
    State::of_entries(&longest, 0, 0).heap_bytes()
}

impl HeapSize for State {
    #[inline(always)]
    fn heap_bytes(&self) -> usize {
        match &self.0 {
            Log::One { .. } => 0,
            Log::Many(ring) => {
                allocated_bytes(size_of_val(&**ring)) + allocated_bytes(size_of_val(&*ring.slots))
            }
            log => with_ring!(log, ring => allocated_bytes(size_of_val(&**ring)), 0),
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
