//! An exact log of one key: every unit that it was given within the last windows, counted anew at each
//! moment. Logs tell whole seconds, so what comes at one moment is kept as one number: 16 bytes for each
//! moment at which the key was there, however often it was.

use std::collections::VecDeque;

/// Counts one key over `N` windows at once; each is `(now - window, now]`.
#[derive(Debug)]
pub struct ExactLog<const N: usize> {
    /// Oldest first.
    moments: VecDeque<Moment>,
    windows: [Window; N],
}

#[derive(Debug)]
struct Moment {
    at_us: u64,
    units: u32,
}

/// What one window holds: all moments from the `first` on.
#[derive(Clone, Copy, Debug, Default)]
struct Window {
    first: u32,
    units: u32,
}

impl<const N: usize> Default for ExactLog<N> {
    fn default() -> Self {
        Self { moments: VecDeque::new(), windows: [Window::default(); N] }
    }
}

impl<const N: usize> ExactLog<N> {
    /// Units in each window that ends now. Time never runs backwards: a `now` before the newest moment is
    /// taken as that.
    pub fn inside(&mut self, now_us: u64, lengths_us: &[u64; N]) -> [u32; N] {
        for (window, length_us) in self.windows.iter_mut().zip(lengths_us) {
            while let Some(moment) = self.moments.get(window.first as usize)
                && moment.at_us.saturating_add(*length_us) <= now_us
            {
                window.units -= moment.units;
                window.first += 1;
            }
        }
        self.forget();
        self.windows.map(|window| window.units)
    }

    /// Adds one unit.
    pub fn add(&mut self, now_us: u64) {
        let at_us = self.moments.back().map_or(now_us, |newest| newest.at_us.max(now_us));
        // A late unit may find that its moment has left a window already.
        let held = self.windows.iter().all(|window| (window.first as usize) < self.moments.len());
        match self.moments.back_mut() {
            Some(newest) if newest.at_us == at_us && held => newest.units += 1,
            _ => self.moments.push_back(Moment { at_us, units: 1 }),
        }
        self.windows.iter_mut().for_each(|window| window.units += 1);
    }

    /// Whether it holds nothing.
    pub fn is_empty(&self) -> bool {
        self.moments.is_empty()
    }

    /// Gives back the memory of what has left.
    pub fn shrink(&mut self) {
        self.moments.shrink_to_fit();
    }

    /// Drops the moments that are in no window.
    fn forget(&mut self) {
        let gone = self.windows.iter().map(|window| window.first).min().unwrap_or_default();
        if gone > 0 {
            self.moments.drain(..gone as usize);
            self.windows.iter_mut().for_each(|window| window.first -= gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_window_holds_what_a_look_at_all_finds(
            steps in proptest::collection::vec((0..12u64, any::<bool>()), 0..200),
        ) {
            let lengths = [1, 5, 30];
            let mut log = ExactLog::<3>::default();
            let (mut now, mut added) = (0, Vec::new());
            for (step, adds) in steps {
                // Mostly small steps, so that windows fill.
                now += step.saturating_sub(6);
                if adds {
                    log.add(now);
                    added.push(now);
                }
                let expected = lengths
                    .map(|length| added.iter().filter(|&&at| at + length > now).count() as u32);
                prop_assert_eq!(log.inside(now, &lengths), expected);
            }
            prop_assert_eq!(log.inside(now + 30, &lengths), [0; 3]);
            prop_assert!(log.is_empty());
        }
    }

    #[test]
    fn a_late_unit_counts_at_the_newest_moment() {
        let mut log = ExactLog::<1>::default();
        log.add(100);
        log.add(90);
        assert_eq!(log.inside(80, &[10]), [2]);
        assert_eq!(log.inside(109, &[10]), [2]);
        assert_eq!(log.inside(110, &[10]), [0]);
    }

    proptest! {
        #[test]
        fn whatever_the_order_of_times_windows_hold_their_moments(
            times in proptest::collection::vec(0..100u64, 0..100),
        ) {
            let mut log = ExactLog::<3>::default();
            for now in times {
                log.inside(now, &[1, 5, 30]);
                log.add(now);
                for window in &log.windows {
                    let held = log.moments.iter().skip(window.first as usize);
                    prop_assert_eq!(held.map(|moment| moment.units).sum::<u32>(), window.units);
                }
            }
        }
    }

    #[test]
    fn what_comes_at_one_moment_is_one_entry() {
        let mut log = ExactLog::<1>::default();
        (0..1000).for_each(|_| log.add(5));
        assert_eq!((log.moments.len(), log.inside(5, &[1])), (1, [1000]));
    }
}
