//! Room for keys, shared by all rules.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Keys that are kept at once, of all rules, kinds and minutes.
pub const MAX_KEYS: usize = 65_536;

/// Of the last half of the room, no summary takes more than makes this many: it is for those that have
/// little, so that the floods of some rules do not hide that others deny, too.
const MIN_KEYS_PER_SUMMARY: usize = 4;

/// Room for so many keys, and what is left of it.
#[derive(Clone, Debug)]
pub struct KeyBudget {
    keys: usize,
    remaining: Arc<AtomicUsize>,
}

/// What one summary has taken of it; gives it back when it goes.
#[derive(Debug)]
pub struct BudgetGuard {
    of: KeyBudget,
    keys: usize,
}

impl KeyBudget {
    /// Room for so many keys.
    pub fn new(keys: usize) -> Self {
        Self { keys, remaining: Arc::new(AtomicUsize::new(keys)) }
    }

    /// Nothing yet.
    pub fn guard(&self) -> BudgetGuard {
        BudgetGuard { of: self.clone(), keys: 0 }
    }

    /// One, for whoever has so many.
    fn try_take_key(&self, held_keys: usize) -> bool {
        let kept = if held_keys < MIN_KEYS_PER_SUMMARY { 0 } else { self.keys / 2 };
        let less = |remaining: usize| (remaining > kept).then(|| remaining - 1);
        self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// For how many keys there is room.
    #[cfg(test)]
    pub fn remaining(&self) -> usize {
        self.remaining.load(Ordering::Relaxed)
    }
}

impl BudgetGuard {
    /// Takes room for one more, if it may.
    pub fn try_take(&mut self) -> bool {
        let took = self.of.try_take_key(self.keys);
        self.keys += usize::from(took);
        took
    }
}

impl Drop for BudgetGuard {
    fn drop(&mut self) {
        self.of.remaining.fetch_add(self.keys, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(guard: &mut BudgetGuard, most: usize) {
        while guard.keys < most && guard.try_take() {}
    }

    #[test]
    fn what_goes_gives_its_room_back() {
        let key_budget = KeyBudget::new(1_000);
        let mut guard = key_budget.guard();
        fill(&mut guard, 10);
        assert_eq!(key_budget.remaining(), 990);
        drop(guard);
        assert_eq!(key_budget.remaining(), 1_000);
    }

    #[test]
    fn fifty_rules_have_what_they_want_and_eight_hundred_more_a_few() {
        let key_budget = KeyBudget::new(MAX_KEYS);
        // Two kinds, five minutes, 64 keys each.
        let mut all: Vec<BudgetGuard> = (0..860 * 10).map(|_| key_budget.guard()).collect();
        all.iter_mut().for_each(|guard| fill(guard, 64));
        let least = |of: &[BudgetGuard]| of.iter().map(|guard| guard.keys).min().unwrap();
        assert_eq!((least(&all[..500]), least(&all[500..])), (64, MIN_KEYS_PER_SUMMARY));
        let guard: usize = all.iter().map(|guard| guard.keys).sum();
        assert_eq!(guard + key_budget.remaining(), MAX_KEYS);
    }
}
