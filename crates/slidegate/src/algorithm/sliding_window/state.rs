//! The state of a key with a sliding window: the entries of its compacted log.
//!
//! Most keys have one entry, which takes no allocation. More entries take one allocation, with seven bytes for each entry
//! but the newest. The sizes of the allocations fill the memory blocks that allocators reserve.

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
        tick_high: [u8; 3],
        tick_low: u32,
        units: u32,
        span: u32,
    },
    UpTo4(Box<Ring<[PackedEntry; 2]>>),
    UpTo8(Box<Ring<[PackedEntry; 6]>>),
    UpTo14(Box<Ring<[PackedEntry; 12]>>),
    UpTo23(Box<Ring<[PackedEntry; 21]>>),
    UpTo33(Box<Ring<[PackedEntry; 31]>>),
    UpTo49(Box<Ring<[PackedEntry; 47]>>),
    UpTo72(Box<Ring<[PackedEntry; 70]>>),
    Many(Box<Ring<Box<[PackedEntry]>>>),
}

/// Evaluates `$body` with `$ring` bound to the ring of a log, or returns `$one` if the log has no ring.
macro_rules! with_ring {
    ($log:expr, $ring:ident => $body:expr, $one:expr) => {
        match $log {
            Log::One { .. } => $one,
            Log::UpTo4($ring) => $body,
            Log::UpTo8($ring) => $body,
            Log::UpTo14($ring) => $body,
            Log::UpTo23($ring) => $body,
            Log::UpTo33($ring) => $body,
            Log::UpTo49($ring) => $body,
            Log::UpTo72($ring) => $body,
            Log::Many($ring) => $body,
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

/// Several entries. The newest and the oldest one, which nearly every decision reads, are beside the values that it also
/// needs. So it reads one cache line. The others form a ring.
#[derive(Clone)]
struct Ring<E> {
    /// The tick of the newest entry.
    newest: u64,
    newest_units: u32,
    /// The sum of the units of all entries.
    total: u32,
    /// See [`Newest::span`].
    span: u32,
    /// The lowest bits of a tick before which the oldest entry has no charges.
    oldest_first: u32,
    /// The number of entries, at least 1.
    len: u16,
    /// The index of the second oldest entry in `others`.
    second: u16,
    /// The oldest entry; unused if there is only one entry.
    oldest: PackedEntry,
    /// The entries between the oldest and the newest one.
    others: E,
}

impl<E: AsRef<[PackedEntry]> + AsMut<[PackedEntry]>> Ring<E> {
    /// Creates a ring of entries, of which there must be at least two, and at most two more than `space` has.
    fn boxed(log: &[Entry], (oldest_first, span): (u64, u32), mut space: E) -> Box<Self> {
        let (oldest, newest) = (log[0], log[log.len() - 1]);
        for (packed, entry) in space.as_mut().iter_mut().zip(&log[1..]) {
            *packed = PackedEntry::new(*entry);
        }
        Box::new(Self {
            newest: newest.tick,
            newest_units: newest.units,
            total: log.iter().map(|entry| entry.units).sum(),
            span,
            oldest_first: (oldest_first & TICK_MASK) as u32,
            len: log.len() as u16,
            second: 0,
            oldest: PackedEntry::new(oldest),
            others: space,
        })
    }

    /// Converts an index, counted from the second oldest entry, into an index in `others`.
    #[inline(always)]
    fn position(&self, index: usize) -> usize {
        let (position, space) = (usize::from(self.second) + index, self.others.as_ref().len());
        if position < space { position } else { position - space }
    }

    /// Returns the entry at `index`, counted from the oldest one.
    #[inline(always)]
    fn get(&self, index: usize) -> Entry {
        if index + 1 == usize::from(self.len) {
            return self.newest().entry;
        }
        let packed = match index.checked_sub(1) {
            Some(index) => self.others.as_ref()[self.position(index)],
            None => self.oldest,
        };
        packed.unpack(self.newest)
    }

    fn oldest_first(&self) -> u64 {
        self.newest - (self.newest.wrapping_sub(self.oldest_first.into()) & TICK_MASK)
    }

    #[inline(always)]
    fn newest(&self) -> Newest {
        let entry = Entry { tick: self.newest, units: self.newest_units };
        Newest { entry, span: self.span }
    }

    #[inline(always)]
    fn expired_before(&self, tick: u64) -> Expired {
        let mut expired = Expired { entries: 0, units: 0 };
        for entry in (0..self.len.into()).map(|index| self.get(index)) {
            if entry.tick >= tick {
                break;
            }
            expired.entries += 1;
            expired.units += u64::from(entry.units);
        }
        expired
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`.
    #[inline(always)]
    fn join_newest(&mut self, tick: u64, units: u32) {
        self.span += (tick - self.newest) as u32;
        self.newest = tick;
        self.newest_units += units;
        self.total += units;
    }

    /// Appends an entry. Returns `false` if there is no space for it, or if the ring is larger than necessary.
    #[inline(always)]
    fn push(&mut self, entry: Entry) -> bool {
        let (len, space) = (usize::from(self.len), self.others.as_ref().len());
        if len == space + 2 || 4 * (len + 1) < space + 2 {
            return false;
        }
        let packed = PackedEntry::new(self.newest().entry);
        match len.checked_sub(2) {
            Some(others) => {
                let position = self.position(others);
                self.others.as_mut()[position] = packed;
            }
            None => self.oldest = packed,
        }
        self.len += 1;
        self.newest = entry.tick;
        self.newest_units = entry.units;
        self.total += entry.units;
        self.span = 0;
        true
    }

    /// Removes the first entries, but not all.
    #[inline(always)]
    fn remove_first(&mut self, Expired { entries, units }: Expired) {
        self.oldest_first = ((self.get(entries - 1).tick + 1) & TICK_MASK) as u32;
        self.len -= entries as u16;
        self.total -= units as u32;
        if self.len > 1 {
            self.oldest = self.others.as_ref()[self.position(entries - 1)];
            self.second = self.position(entries) as u16;
        }
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
        let [a, b, c, d, e, f, g, _] = tick.to_le_bytes();
        let tick_low = u32::from_le_bytes([a, b, c, d]);
        Self(Log::One { tick_high: [e, f, g], tick_low, units, span })
    }

    /// Returns the log of these entries. The first one has no charges before `oldest_first`, and `span` is the
    /// [`Newest::span`] of the last one.
    fn of_entries(entries: &[Entry], oldest_first: u64, span: u32) -> Self {
        let bounds = (oldest_first, span);
        let empty = PackedEntry::default();
        Self(match entries.len() {
            0 => return Self::default(),
            1 => return Self::of_one(entries[0], span),
            2..=4 => Log::UpTo4(Ring::boxed(entries, bounds, [empty; 2])),
            5..=8 => Log::UpTo8(Ring::boxed(entries, bounds, [empty; 6])),
            9..=14 => Log::UpTo14(Ring::boxed(entries, bounds, [empty; 12])),
            15..=23 => Log::UpTo23(Ring::boxed(entries, bounds, [empty; 21])),
            24..=33 => Log::UpTo33(Ring::boxed(entries, bounds, [empty; 31])),
            34..=49 => Log::UpTo49(Ring::boxed(entries, bounds, [empty; 47])),
            50..=72 => Log::UpTo72(Ring::boxed(entries, bounds, [empty; 70])),
            len => Log::Many(Ring::boxed(entries, bounds, vec![empty; len + len / 2].into())),
        })
    }

    /// Returns the only entry of the log, which has 0 units if the log is empty; `None` if there are several entries.
    #[inline(always)]
    pub(super) fn single(&self) -> Option<Newest> {
        let Log::One { tick_high: [e, f, g], tick_low, units, span } = self.0 else { return None };
        let [a, b, c, d] = tick_low.to_le_bytes();
        let entry = Entry { tick: u64::from_le_bytes([a, b, c, d, e, f, g, 0]), units };
        Some(Newest { entry, span })
    }

    /// Replaces all entries by one. `span` is its [`Newest::span`].
    #[inline(always)]
    pub(super) fn replace_single(&mut self, entry: Entry, span: u32) {
        *self = Self::of_one(entry, span);
    }

    /// Returns the sum of the units of all entries.
    #[inline(always)]
    pub(super) fn total(&self) -> u64 {
        with_ring!(&self.0, ring => ring.total, self.single().map_or(0, |one| one.entry.units))
            .into()
    }

    /// Returns the newest entry; `None` if the log is empty.
    #[inline(always)]
    pub(super) fn newest(&self) -> Option<Newest> {
        let one = || self.single().filter(|one| one.entry.units > 0);
        with_ring!(&self.0, ring => Some(ring.newest()), one())
    }

    /// Returns the number of entries.
    pub(super) fn len(&self) -> usize {
        with_ring!(&self.0, ring => ring.len.into(), self.newest().iter().len())
    }

    /// Returns the entry at `index`, counted from the oldest one; `None` if there are not as many entries.
    #[inline(always)]
    pub(super) fn get(&self, index: usize) -> Option<Entry> {
        with_ring!(
            &self.0,
            ring => (index < ring.len.into()).then(|| ring.get(index)),
            self.newest().filter(|_| index == 0).map(|one| one.entry)
        )
    }

    /// Iterates over the entries, oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = Entry> {
        (0..).map_while(|index| self.get(index))
    }

    /// Returns the entries whose last charge was before `tick`.
    #[inline(always)]
    pub(super) fn expired_before(&self, tick: u64) -> Expired {
        let one = || self.newest().filter(|one| one.entry.tick < tick);
        let units = |one: Newest| Expired { entries: 1, units: one.entry.units.into() };
        let none = Expired { entries: 0, units: 0 };
        with_ring!(&self.0, ring => ring.expired_before(tick), one().map_or(none, units))
    }

    /// Removes the oldest entries.
    #[inline(always)]
    pub(super) fn remove_first(&mut self, expired: Expired) {
        if expired.entries == self.len() {
            *self = Self::default();
        } else if expired.entries > 0 {
            with_ring!(&mut self.0, ring => ring.remove_first(expired), ());
        }
    }

    /// Appends an entry of a single charge, whose tick must be after the tick of the newest entry.
    #[inline(always)]
    pub(super) fn push(&mut self, entry: Entry) {
        if self.newest().is_none() {
            *self = Self::of_one(entry, 0);
        } else if !with_ring!(&mut self.0, ring => ring.push(entry), false) {
            self.push_and_resize(entry);
        }
    }

    #[cold]
    fn push_and_resize(&mut self, entry: Entry) {
        let entries: Vec<Entry> = self.iter().chain([entry]).collect();
        *self = Self::of_entries(&entries, self.oldest_first(), 0);
    }

    /// Adds units to the newest entry, whose last charge is then at `tick`. The log must not be empty.
    #[inline(always)]
    pub(super) fn join_newest(&mut self, tick: u64, units: u32) {
        match self.single() {
            Some(Newest { entry, span }) => {
                let span = span + (tick - entry.tick) as u32;
                *self = Self::of_one(Entry { tick, units: entry.units + units }, span);
            }
            None => with_ring!(&mut self.0, ring => ring.join_newest(tick, units), ()),
        }
    }

    /// Returns a tick before which the oldest entry has no charges; 0 if the log is empty.
    pub(super) fn oldest_first(&self) -> u64 {
        let one = || self.single().map_or(0, |one| one.entry.tick - u64::from(one.span));
        with_ring!(&self.0, ring => ring.oldest_first(), one())
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
                allocated_bytes(size_of_val(&**ring)) + allocated_bytes(size_of_val(&*ring.others))
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
