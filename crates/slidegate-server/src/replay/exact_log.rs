//! An exact log of one key: every unit that it was given within the last windows, counted anew at each
//! moment. Logs tell whole seconds, so what comes at one moment is kept as one number: 16 bytes for each
//! moment at which the key was there, however often it was.

use std::collections::VecDeque;

/// Counts one key over `N` windows at once; each is `(now - window, now]`.
#[derive(Debug)]
pub struct ExactLog<const N: usize> {
    /// Oldest first.
    entries: VecDeque<TimedUnits>,
    windows: [WindowCursor; N],
}

#[derive(Debug)]
struct TimedUnits {
    at_us: u64,
    units: u32,
}

/// What one window holds: all moments from the `first` on.
#[derive(Clone, Copy, Debug, Default)]
struct WindowCursor {
    first: u32,
    units: u32,
}

impl<const N: usize> Default for ExactLog<N> {
    fn default() -> Self {
        Self { entries: VecDeque::new(), windows: [WindowCursor::default(); N] }
    }
}

impl<const N: usize> ExactLog<N> {
    /// Units in each window that ends now. A key's time never runs back behind its newest unit, as in the
    /// store: an earlier `now` is taken as that.
    pub fn units_in_windows(&mut self, now_us: u64, lengths_us: &[u64; N]) -> [u32; N] {
        let now_us = self.entries.back().map_or(now_us, |newest| newest.at_us.max(now_us));
        for (window, length_us) in self.windows.iter_mut().zip(lengths_us) {
            window.move_to(now_us, *length_us, &self.entries);
        }
        self.windows.map(|window| window.units)
    }

    /// Adds units, and returns how many each window then holds.
    pub fn add(&mut self, now_us: u64, units: u32, lengths_us: &[u64; N]) -> [u32; N] {
        let at_us = self.entries.back().map_or(now_us, |newest| newest.at_us.max(now_us));
        self.units_in_windows(at_us, lengths_us);
        // Now that time cannot run back any more.
        self.remove_expired();
        match self.entries.back_mut() {
            Some(newest) if newest.at_us == at_us => {
                newest.units = newest.units.saturating_add(units)
            }
            _ => self.entries.push_back(TimedUnits { at_us, units }),
        }
        for window in &mut self.windows {
            window.units = window.units.saturating_add(units);
        }
        self.windows.map(|window| window.units)
    }

    /// Gives back the memory of what has left; says whether anything is there still.
    pub fn release_memory(&mut self, now_us: u64, lengths_us: &[u64; N]) -> bool {
        self.units_in_windows(now_us, lengths_us);
        self.remove_expired();
        // A little room is left, which a key that is still there soon needs again.
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(2 * self.entries.len());
        }
        !self.entries.is_empty()
    }

    /// Moments that it remembers.
    #[cfg(test)]
    pub fn entries(&self) -> usize {
        self.entries.len()
    }

    /// Drops the moments that are in no window.
    fn remove_expired(&mut self) {
        let gone = self.windows.iter().map(|window| window.first).min().unwrap_or_default();
        if gone > 0 {
            self.entries.drain(..gone as usize);
            self.windows.iter_mut().for_each(|window| window.first -= gone);
        }
    }
}

impl WindowCursor {
    /// Moves the window. Late lines move it back a little.
    fn move_to(&mut self, now_us: u64, length_us: u64, entries: &VecDeque<TimedUnits>) {
        let is_inside = |entry: &&TimedUnits| entry.at_us.saturating_add(length_us) > now_us;
        while let Some(before) = self.first.checked_sub(1)
            && let Some(entry) = entries.get(before as usize).filter(is_inside)
        {
            self.units += entry.units;
            self.first = before;
        }
        while let Some(entry) = entries.get(self.first as usize)
            && !is_inside(&entry)
        {
            self.units -= entry.units;
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LENGTHS: [u64; 3] = [1, 5, 30];

    proptest! {
        /// Also of times that run back.
        #[test]
        fn every_window_holds_what_a_look_at_all_finds(
            steps in proptest::collection::vec((-9..12i64, any::<bool>()), 0..200),
        ) {
            let mut log = ExactLog::<3>::default();
            let (mut now, mut added) = (50, Vec::<u64>::new());
            let look = |added: &[u64], now: u64| {
                let now = added.last().map_or(now, |&newest| newest.max(now));
                LENGTHS.map(|length| added.iter().filter(|&&at| at + length > now).count() as u32)
            };
            for (step, adds) in steps {
                // Mostly small steps, so that windows fill.
                now = u64::saturating_add_signed(now, if step % 2 == 0 { step / 4 } else { step });
                prop_assert_eq!(log.units_in_windows(now, &LENGTHS), look(&added, now));
                if adds {
                    added.push(added.last().map_or(now, |&newest| newest.max(now)));
                    prop_assert_eq!(log.add(now, 1, &LENGTHS), look(&added, now));
                }
            }
            let newest = added.last().copied().unwrap_or_default();
            prop_assert_eq!(log.release_memory(newest + 29, &LENGTHS), !added.is_empty());
            prop_assert!(!log.release_memory(newest + 30, &LENGTHS));
        }
    }

    #[test]
    fn what_comes_at_one_moment_is_one_entry() {
        let mut log = ExactLog::<1>::default();
        for _ in 0..1000 {
            log.add(5, 1, &[1]);
        }
        assert_eq!((log.entries(), log.units_in_windows(5, &[1])), (1, [1000]));
    }

    #[test]
    fn no_moment_is_kept_that_is_in_no_window() {
        let mut log = ExactLog::<2>::default();
        for at in 0..1000 {
            log.add(at, 1, &[5, 30]);
        }
        assert_eq!(log.entries(), 30);
    }
}
