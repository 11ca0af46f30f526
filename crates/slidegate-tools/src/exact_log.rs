//! A log of all units that one key received within a window, from which the units are counted exactly.
//!
//! Access logs have a resolution of one second. Units with the same time share one entry of 16 bytes.

use std::collections::VecDeque;

/// A log that counts the units of one key exactly, over `N` windows of different lengths. Each window is the interval
/// `(now - length, now]`.
#[derive(Debug)]
pub struct ExactLog<const N: usize> {
    /// One entry for each point in time at which units were added, oldest first.
    entries: VecDeque<UnitsAtOneTime>,
    windows: [WindowStartAndUnits; N],
}

/// The number of units that were added at one point in time.
#[derive(Debug)]
struct UnitsAtOneTime {
    at_us: u64,
    units: u32,
}

/// The position of a window in the log: it contains all entries from index `first` on, and `units` is their sum.
#[derive(Clone, Copy, Debug, Default)]
struct WindowStartAndUnits {
    first: u32,
    units: u32,
}

impl<const N: usize> Default for ExactLog<N> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), windows: [WindowStartAndUnits::default(); N] }
    }
}

impl<const N: usize> ExactLog<N> {
    /// Returns the number of units in each window that ends at `now_us`. If the newest entry is later than `now_us`,
    /// the windows end at the time of this entry. The store does the same: it never moves the time of a key backward.
    pub fn units_in_windows(&mut self, now_us: u64, lengths_us: &[u64; N]) -> [u32; N] {
        let now_us = self.entries.back().map_or(now_us, |newest| newest.at_us.max(now_us));
        for (window, length_us) in self.windows.iter_mut().zip(lengths_us) {
            window.move_window_end(now_us, *length_us, &self.entries);
        }
        self.windows.map(|window| window.units)
    }

    /// Adds units at the time `now_us`, or at the time of the newest entry if it is later. Returns the number of units
    /// in each window that ends at this time.
    pub fn add(&mut self, now_us: u64, units: u32, lengths_us: &[u64; N]) -> [u32; N] {
        let at_us = self.entries.back().map_or(now_us, |newest| newest.at_us.max(now_us));
        self.units_in_windows(at_us, lengths_us);
        // The time never goes back before the newest entry, so entries outside of all windows are no longer needed.
        self.remove_expired_entries();
        match self.entries.back_mut() {
            Some(newest) if newest.at_us == at_us => {
                newest.units = newest.units.saturating_add(units)
            }
            _ => self.entries.push_back(UnitsAtOneTime { at_us, units }),
        }
        for window in &mut self.windows {
            window.units = window.units.saturating_add(units);
        }
        self.windows.map(|window| window.units)
    }

    /// Removes the entries that are in no window, and releases their memory. Returns `true` if any entries remain.
    pub fn release_memory(&mut self, now_us: u64, lengths_us: &[u64; N]) -> bool {
        self.units_in_windows(now_us, lengths_us);
        self.remove_expired_entries();
        // Some spare capacity is kept, because an active key soon needs it again.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        !self.entries.is_empty()
    }

    /// Returns the number of entries. Each entry is one point in time.
    #[cfg(test)]
    pub fn entry_count(&self) -> usize {
        self.entries.len()
    }

    /// Removes the entries that have left all windows.
    fn remove_expired_entries(&mut self) {
        let expired = self.windows.iter().map(|window| window.first).min().unwrap_or_default();
        if expired > 0 {
            self.entries.drain(..expired as usize);
            self.windows.iter_mut().for_each(|window| window.first -= expired);
        }
    }
}

impl WindowStartAndUnits {
    /// Moves the end of the window to the time `now_us`, which may be earlier than the previous end, because log lines
    /// are not completely sorted.
    fn move_window_end(&mut self, now_us: u64, length_us: u64, entries: &VecDeque<UnitsAtOneTime>) {
        let is_in_window = |entry: &&UnitsAtOneTime| entry.at_us.saturating_add(length_us) > now_us;
        while let Some(before) = self.first.checked_sub(1)
            && let Some(entry) = entries.get(before as usize).filter(is_in_window)
        {
            self.units = self.units.saturating_add(entry.units);
            self.first = before;
        }
        while let Some(entry) = entries.get(self.first as usize)
            && !is_in_window(&entry)
        {
            self.units = self.units.saturating_sub(entry.units);
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW_LENGTHS_US: [u64; 3] = [1, 5, 30];

    proptest! {
        /// Compares the counts in all windows with a direct computation, at random times that may go backward.
        #[test]
        fn window_unit_counts_match_direct_computation(
            steps in proptest::collection::vec((-9..12i64, any::<bool>()), 0..200),
        ) {
            let mut log = ExactLog::<3>::default();
            let (mut now, mut added) = (50, Vec::<u64>::new());
            let expected = |added: &[u64], now: u64| {
                let now = added.last().map_or(now, |&newest| newest.max(now));
                WINDOW_LENGTHS_US.map(|length| added.iter().filter(|&&at| at + length > now).count() as u32)
            };
            for (step, adds) in steps {
                // Most steps are small, so that windows fill up.
                now = u64::saturating_add_signed(now, if step % 2 == 0 { step / 4 } else { step });
                prop_assert_eq!(log.units_in_windows(now, &WINDOW_LENGTHS_US), expected(&added, now));
                if adds {
                    added.push(added.last().map_or(now, |&newest| newest.max(now)));
                    prop_assert_eq!(log.add(now, 1, &WINDOW_LENGTHS_US), expected(&added, now));
                }
            }
            let newest = added.last().copied().unwrap_or_default();
            prop_assert_eq!(log.release_memory(newest + 29, &WINDOW_LENGTHS_US), !added.is_empty());
            prop_assert!(!log.release_memory(newest + 30, &WINDOW_LENGTHS_US));
        }
    }

    #[test]
    fn units_at_same_time_share_log_entry() {
        let mut log = ExactLog::<1>::default();
        for _ in 0..1000 {
            log.add(5, 1, &[1]);
        }
        assert_eq!((log.entry_count(), log.units_in_windows(5, &[1])), (1, [1000]));
    }

    #[test]
    fn log_entries_outside_all_windows_are_removed() {
        let mut log = ExactLog::<2>::default();
        for at in 0..1000 {
            log.add(at, 1, &[5, 30]);
        }
        assert_eq!(log.entry_count(), 30);
    }
}
