//! A budget of keys that all summaries of frequent keys share. It bounds their memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum number of keys in memory, over all rules, lists and minutes together.
pub const MAX_KEYS: usize = 65_536;

/// Number of keys that each summary may take as long as any key is left in the budget. A summary that already holds
/// this number of keys takes more only while more than half of the budget is left. Without this reserve, floods of keys
/// in some rules would hide the denials of other rules.
const MIN_KEYS_PER_MINUTE_SUMMARY: usize = 4;

/// The maximum number of keys that all summaries together may hold, and the number that is left. Clones share the
/// budget.
#[derive(Clone, Debug)]
pub struct KeyBudget {
    keys: usize,
    remaining: Arc<AtomicUsize>,
}

/// The number of keys that one summary has taken from the budget. Dropping the guard returns them to the budget.
#[derive(Debug)]
pub struct KeyBudgetGuard {
    budget: KeyBudget,
    keys: usize,
}

impl KeyBudget {
    /// Creates a budget of `keys` keys that clones and guards share.
    pub fn new(keys: usize) -> Self {
        Self { keys, remaining: Arc::new(AtomicUsize::new(keys)) }
    }

    /// Creates a guard for a new summary, which has taken no keys yet.
    pub fn guard(&self) -> KeyBudgetGuard {
        KeyBudgetGuard { budget: self.clone(), keys: 0 }
    }

    /// Takes one key from the budget, for a summary that already holds `held_keys` keys. Returns `false` if the budget
    /// has no key left for such a summary.
    fn try_take_key(&self, held_keys: usize) -> bool {
        let reserved = if held_keys < MIN_KEYS_PER_MINUTE_SUMMARY { 0 } else { self.keys / 2 };
        let decrement = |remaining: usize| (remaining > reserved).then(|| remaining - 1);
        self.remaining.fetch_update(Ordering::Relaxed, Ordering::Relaxed, decrement).is_ok()
    }

    /// Returns the number of keys that are left in the budget.
    #[cfg(test)]
    pub fn remaining(&self) -> usize {
        self.remaining.load(Ordering::Relaxed)
    }
}

impl KeyBudgetGuard {
    /// Takes one more key from the budget. Returns `false` if the budget has no key left for this summary.
    pub fn try_take(&mut self) -> bool {
        let is_taken = self.budget.try_take_key(self.keys);
        self.keys += usize::from(is_taken);
        is_taken
    }
}

impl Drop for KeyBudgetGuard {
    fn drop(&mut self) {
        self.budget.remaining.fetch_add(self.keys, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_keys_up_to(guard: &mut KeyBudgetGuard, max_keys: usize) {
        while guard.keys < max_keys && guard.try_take() {}
    }

    #[test]
    fn dropped_budget_guard_returns_keys_to_budget() {
        let key_budget = KeyBudget::new(1_000);
        let mut guard = key_budget.guard();
        take_keys_up_to(&mut guard, 10);
        assert_eq!(key_budget.remaining(), 990);
        drop(guard);
        assert_eq!(key_budget.remaining(), 1_000);
    }

    #[test]
    fn key_budget_reserves_keys_for_later_summaries() {
        let key_budget = KeyBudget::new(MAX_KEYS);
        // Two lists, five minutes, 64 keys each.
        let mut guards: Vec<KeyBudgetGuard> = (0..860 * 10).map(|_| key_budget.guard()).collect();
        guards.iter_mut().for_each(|guard| take_keys_up_to(guard, 64));
        let min_keys =
            |guards: &[KeyBudgetGuard]| guards.iter().map(|guard| guard.keys).min().unwrap();
        assert_eq!(
            (min_keys(&guards[..500]), min_keys(&guards[500..])),
            (64, MIN_KEYS_PER_MINUTE_SUMMARY)
        );
        let taken_keys: usize = guards.iter().map(|guard| guard.keys).sum();
        assert_eq!(taken_keys + key_budget.remaining(), MAX_KEYS);
    }
}
