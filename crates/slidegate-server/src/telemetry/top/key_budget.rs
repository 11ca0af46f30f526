//! Room for keys, shared by all rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keys that are kept at once, of all rules, kinds and minutes.
pub const MAX_KEYS: usize = 65_536;

/// Of the last half of the room, no summary takes more than makes this many: it is for those that have
/// little, so that the floods of some rules do not hide that others deny, too.
const FEW: usize = 4;

/// Room for so many keys, and what is left of it.
#[derive(Clone, Debug)]
pub struct Room {
    keys: usize,
    left: Arc<AtomicUsize>,
}

/// What one summary has taken of it; gives it back when it goes.
#[derive(Debug)]
pub struct Taken {
    of: Room,
    keys: usize,
}

impl Room {
    /// Room for so many keys.
    pub fn new(keys: usize) -> Self {
        Self { keys, left: Arc::new(AtomicUsize::new(keys)) }
    }

    /// Nothing yet.
    pub fn taken(&self) -> Taken {
        Taken { of: self.clone(), keys: 0 }
    }

    /// One, for whoever has so many.
    fn take(&self, has: usize) -> bool {
        let kept = if has < FEW { 0 } else { self.keys / 2 };
        let less = |left: usize| (left > kept).then(|| left - 1);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// For how many keys there is room.
    #[cfg(test)]
    pub fn left(&self) -> usize {
        self.left.load(Ordering::Relaxed)
    }
}

impl Taken {
    /// Takes room for one more, if it may.
    pub fn one_more(&mut self) -> bool {
        let took = self.of.take(self.keys);
        self.keys += usize::from(took);
        took
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.of.left.fetch_add(self.keys, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(taken: &mut Taken, most: usize) {
        while taken.keys < most && taken.one_more() {}
    }

    #[test]
    fn what_goes_gives_its_room_back() {
        let room = Room::new(1_000);
        let mut taken = room.taken();
        fill(&mut taken, 10);
        assert_eq!(room.left(), 990);
        drop(taken);
        assert_eq!(room.left(), 1_000);
    }

    #[test]
    fn fifty_rules_have_what_they_want_and_eight_hundred_more_a_few() {
        let room = Room::new(MAX_KEYS);
        // Two kinds, five minutes, 64 keys each.
        let mut all: Vec<Taken> = (0..860 * 10).map(|_| room.taken()).collect();
        all.iter_mut().for_each(|taken| fill(taken, 64));
        let least = |of: &[Taken]| of.iter().map(|taken| taken.keys).min().unwrap();
        assert_eq!((least(&all[..500]), least(&all[500..])), (64, FEW));
        let taken: usize = all.iter().map(|taken| taken.keys).sum();
        assert_eq!(taken + room.left(), MAX_KEYS);
    }
}
